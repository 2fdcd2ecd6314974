package rdb

import "fmt"

// encoding is a form in which a dump has keys of a type.
type encoding struct {
	of   Type
	skip func(*decoder) error // reads over what the key holds
}

// oldModule is what modules wrote before they said of each value what it is: nothing can read over it.
const oldModule = 6

var encodings = map[byte]encoding{
	0:  {String, nil},
	1:  {List, items(1)},
	2:  {Set, items(1)},
	3:  {ZSet, skipScores},
	4:  {Hash, items(2)},
	5:  {ZSet, skipBinaryScores},
	7:  {Module, (*decoder).skipModule},
	9:  {Hash, (*decoder).skipString}, // zipmap
	10: {List, (*decoder).skipString}, // ziplist
	11: {Set, (*decoder).skipString},  // intset
	12: {ZSet, (*decoder).skipString}, // ziplist
	13: {Hash, (*decoder).skipString}, // ziplist
	14: {List, items(1)},              // of ziplists
	15: {Stream, func(d *decoder) error { return d.skipStream(1) }},
	16: {Hash, (*decoder).skipString}, // listpack
	17: {ZSet, (*decoder).skipString}, // listpack
	18: {List, skipQuicklist},
	19: {Stream, func(d *decoder) error { return d.skipStream(2) }},
	20: {Set, (*decoder).skipString}, // listpack
	21: {Stream, func(d *decoder) error { return d.skipStream(3) }},
	24: {Hash, skipHashWithExpiry},
	25: {Hash, skipListpackWithExpiry},
}

// items reads over a list of items, each of which consists of so many strings.
func items(strings uint64) func(*decoder) error {
	return func(d *decoder) error {
		return d.each(func() error { return d.skipStrings(strings) })
	}
}

// each reads a number, and calls a function as often.
func (d *decoder) each(item func() error) error {
	n, err := d.length()
	if err == nil {
		err = d.left(n, "items")
	}
	for ; n > 0 && err == nil; n-- {
		err = item()
	}
	return err
}

// skipScores reads over a sorted set whose scores are text: a byte with their length, or a byte
// for infinity or no number.
func skipScores(d *decoder) error {
	return d.each(func() error {
		if err := d.skipString(); err != nil {
			return err
		}
		n, err := d.byte()
		if err != nil || n >= 253 {
			return err
		}
		return d.skip(uint64(n))
	})
}

func skipBinaryScores(d *decoder) error {
	return d.each(func() error {
		if err := d.skipString(); err != nil {
			return err
		}
		return d.skip(8)
	})
}

func skipQuicklist(d *decoder) error {
	return d.each(func() error {
		if err := d.skipLengths(1); err != nil { // the kind of the node
			return err
		}
		return d.skipString()
	})
}

// skipHashWithExpiry reads over a hash whose fields expire: the first expiry, and each field with its own.
func skipHashWithExpiry(d *decoder) error {
	if err := d.skip(8); err != nil {
		return err
	}
	return d.each(func() error {
		if err := d.skipLengths(1); err != nil {
			return err
		}
		return d.skipStrings(2)
	})
}

func skipListpackWithExpiry(d *decoder) error {
	if err := d.skip(8); err != nil {
		return err
	}
	return d.skipString()
}

// Sizes in streams, in bytes.
const (
	streamID = 16
	millis   = 8
)

// skipStream reads over a stream in one of its three forms: entries, figures, and consumer groups with
// what their consumers have not acknowledged.
func (d *decoder) skipStream(form int) error {
	if err := d.each(func() error { return d.skipStrings(2) }); err != nil {
		return err
	}
	figures := 3
	if form >= 2 {
		figures += 5
	}
	if err := d.skipLengths(figures); err != nil {
		return err
	}
	return d.each(func() error { // group
		if err := d.skipString(); err != nil {
			return err
		}
		figures := 2
		if form >= 2 {
			figures++
		}
		if err := d.skipLengths(figures); err != nil {
			return err
		}
		err := d.each(func() error { // entry that is not acknowledged
			if err := d.skip(streamID + millis); err != nil {
				return err
			}
			return d.skipLengths(1)
		})
		if err != nil {
			return err
		}
		return d.each(func() error { // consumer
			if err := d.skipString(); err != nil {
				return err
			}
			times := uint64(millis)
			if form >= 3 {
				times += millis
			}
			if err := d.skip(times); err != nil {
				return err
			}
			return d.each(func() error { return d.skip(streamID) })
		})
	})
}

// skipModule reads over what a module has written: its ID, and values, each behind what it is.
func (d *decoder) skipModule() error {
	if err := d.skipLengths(1); err != nil {
		return err
	}
	for {
		what, err := d.length()
		if err != nil {
			return err
		}
		switch what {
		case 0:
			return nil
		case 1, 2: // signed, unsigned
			err = d.skipLengths(1)
		case 3:
			err = d.skip(4)
		case 4:
			err = d.skip(8)
		case 5:
			err = d.skipString()
		default:
			return fmt.Errorf("a module's value has the unknown kind %d", what)
		}
		if err != nil {
			return err
		}
	}
}
