package topic

// largeSet is the size from which a set keeps a map of positions; below it a
// scan is as fast and needs no memory.
const largeSet = 32

// set is a small or large set without order. Its zero value is empty.
type set[V comparable] struct {
	values []V
	at     map[V]int // position in values; nil while the set is small
}

// appendTo appends the values; those of nil are none. Most sets have one.
func (s *set[V]) appendTo(out []V) []V {
	switch {
	case s == nil:
		return out
	case len(s.values) == 1:
		return append(out, s.values[0])
	}
	return append(out, s.values...)
}

func (s *set[V]) position(v V) (int, bool) {
	if s.at != nil {
		i, ok := s.at[v]
		return i, ok
	}
	for i := range s.values {
		if s.values[i] == v {
			return i, true
		}
	}
	return 0, false
}

func (s *set[V]) insert(v V) (added bool) {
	if _, found := s.position(v); found {
		return false
	}
	s.values = append(s.values, v)
	if s.at != nil {
		s.at[v] = len(s.values) - 1
	} else if len(s.values) >= largeSet {
		s.at = make(map[V]int, 2*largeSet)
		for i, v := range s.values {
			s.at[v] = i
		}
	}
	return true
}

// remove moves the last value into the gap: constant time at any size.
func (s *set[V]) remove(v V) (removed bool) {
	i, found := s.position(v)
	if !found {
		return false
	}
	last := len(s.values) - 1
	moved := s.values[last]
	s.values[i] = moved
	clear(s.values[last:])
	s.values = s.values[:last]
	if s.at != nil {
		s.at[moved] = i
		delete(s.at, v)
	}
	s.shrink()
	return true
}

// shrink gives memory back when a set has become much smaller. The factor of
// four between growing and shrinking keeps a set at a border from copying each
// time.
func (s *set[V]) shrink() {
	if len(s.values) == 0 {
		*s = set[V]{}
		return
	}
	if cap(s.values) < 2*largeSet || len(s.values) > cap(s.values)/4 {
		return
	}
	s.values = append(make([]V, 0, 2*len(s.values)), s.values...)
	s.at = nil
	if len(s.values) < largeSet {
		return
	}
	s.at = make(map[V]int, 2*len(s.values))
	for i, v := range s.values {
		s.at[v] = i
	}
}
