// Package topic holds the rules of topic names and topic filters (MQTT 5,
// section 4.7) and the two indexes that routing needs: [Index] finds the
// subscribers of a topic name, [Names] finds the topic names of a filter.
//
// The broker calls it. It knows nothing of sessions, messages or permissions, does no
// I/O, and holds no lock when a function returns or calls back.
package topic
