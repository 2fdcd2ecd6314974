// Package front is a program in front of a cluster: it holds the connections of clients, with TLS,
// WebSocket and keep-alives, and carries them over few links to the node that leads. So the leader
// reads the requests of many clients with one system call, and writes their answers with one. It
// keeps nothing: any number of fronts can run, and each can be stopped at any time.
//
// # A connection
//
//	client ──▶ front                       the leader's cluster port
//	           handshakes, the beginning
//	           of CONNECT; held until a
//	           leader is known, 5 s at
//	           the most
//	           ── OPEN ───────────────────▶ where it came in, its address and certificate
//	client ◀══ bytes, both ways ══════════▶ package fronts
//
// The front looks for the ends of packets, and at CONNECT and CONNACK for the keep-alive. It
// answers PINGREQ itself, and closes connections of silent clients. All else is the server's
// matter, which gets the bytes as they are.
//
// # When the leader changes
//
// The front asks all nodes for the leader, each second and when a link ends, and believes the
// newest term. Links to another node get no new clients then. They are closed after a second, in
// which that node may disconnect the clients that they have, and with them the connections of those
// that it has not disconnected. Clients connect again as they would at a node. A leader whose server
// is about to end says so on its links: new clients are held from then on, and those whose streams
// it has not taken yet, until there are links to the next leader.
//
// # Bounds
//
// Options.MaxConnections bounds connections, and so do the process's file descriptors. Each takes
// mux.Window bytes in each direction at the most, and little while it is idle; a client that does
// not read makes the server wait for it alone, and the other way round. Options.MaxBuffered bounds
// what all of them, or the leader, have not read: beyond, the clients with most
// unread are disconnected, or the client that sends more.
package front
