// Package node runs one node of a cluster: it joins the consensus, which decides and does
// nothing else (package consensus), with the Raft log on the disk, the network and the clock.
// A server stands on it with a journal whose log is the cluster's (Node.Log), and answers reads
// while Office.AwaitRead lets it.
//
// # Goroutines
//
//	port ──messages──▶ Core ──entries, votes──▶ storer (one fsync for all that wait)
//	                    ▲ │ ◀────── stored ──────┘
//	 Commit, AwaitRead ─┘ └─committed──▶ Replay, on the goroutine that opens the journal
//
// Each of them calls the Core itself, with the lock deciding held, and passes on what the Core asks for
// before it releases the lock. A goroutine that alone called the Core would have to be woken, and to wake
// others, several times for a batch, which takes more processor time than the Core. With the lock held no
// socket is waited for, and the disk only to read entries back for a node that is behind: what is to be
// stored is queued, and the transport loses what it cannot send. The queue to the storer is bounded by the
// consensus (entries that are not committed, and messages that a leader sends without an answer).
//
// # A follower is a start that goes on for long
//
// A follower's journal is being opened: Replay gives it the entries as they are committed, and
// returns when this node leads and has all entries of earlier leaders. Then the journal opens as
// any other, and what it commits is proposed. When the node loses its office, Commit fails, and
// the journal is closed and opened anew: what was in memory may not have been committed.
//
// # Snapshots
//
// A node that lacks entries which the leader's log does not have any more gets the leader's
// database instead (snapshots.go). Goroutines of their own send and receive it; the storer puts
// it in the place of the old one, when Replay has failed with ErrReplaced and the journal is
// closed.
//
// # The directory
//
//	cluster/LOCK   locked while the node runs
//	cluster/node   who this node is, and which nodes founded the cluster (identity.go)
//	cluster/raft   the Raft log
//
// and, for a while, what package snapshot has there: sending, snapshot, installing, moving.
//
// The database beside it has the index of the last entry whose rows it has (m|applied) with
// the entry's term and the membership (m|raft).
package node
