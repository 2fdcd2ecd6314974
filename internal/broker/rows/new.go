package rows

// IsNew tells of a row of the broker, by its key and value, that no other row of its key is on
// disk: a message that is queued, or stored for several queues. Their numbers come once in the life
// of a queue, and these rows are the first of their keys; those that take their place have a packet
// identifier, or are released. After a start numbers may come again, behind the deletion of the
// rows that had them. It may answer false for a row that is new.
func IsNew(key, value []byte) bool {
	if len(key) < 2 || key[1] != '|' || len(value) < 2 || value[0] != version {
		return false
	}
	switch Kind(key[0]) {
	case PayloadKind:
		return true
	case QueuedKind:
		return value[1]&flagReleased == 0
	default:
		return false
	}
}
