package kingtide

/*
#include <kingtide.h>
*/
import "C"

import (
	"iter"
	"runtime"
	"slices"
	"unsafe"
)

// Entry is a key with its value.
type Entry struct{ Key, Value []byte }

// Bound is one end of a range. The zero value is no bound.
type Bound struct {
	kind int32
	key  []byte
}

// Included is a bound whose key belongs to the range.
func Included(key []byte) Bound { return Bound{C.KINGTIDE_INCLUDED, append([]byte{}, key...)} }

// Excluded is a bound whose key does not belong to the range.
func Excluded(key []byte) Bound { return Bound{C.KINGTIDE_EXCLUDED, append([]byte{}, key...)} }

// Range is a range of keys, in the family's key order. The zero value is all of them.
type Range struct {
	Lower, Upper Bound
	// Prefix restricts the range to the keys that begin with it.
	Prefix []byte
	// Reverse makes Scan go from the largest key to the smallest.
	Reverse bool
}

// kept returns the range with a copy of its prefix, since a scan begins after the call that returns it. Bounds have copies already.
func (r Range) kept() Range {
	r.Prefix = slices.Clone(r.Prefix)
	return r
}

// Iterator is a cursor over a range, in both directions. It shows the state as of its creation, and is at no entry until a
// seek. For one goroutine at a time.
type Iterator struct{ c *C.kingtide_iter }

type openIterator func(o *C.kingtide_read_options, it **C.kingtide_iter, e **C.kingtide_error) C.kingtide_status

func newIterator(r Range, snapshot *Snapshot, open openIterator, keep ...any) (*Iterator, error) {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	bound := func(b Bound) C.kingtide_bound {
		return C.kingtide_bound{kind: C.int32_t(b.kind), key: pin(&pinner, b.key), key_len: C.size_t(len(b.key))}
	}
	options := &C.kingtide_read_options{
		size: C.sizeof_kingtide_read_options, lower: bound(r.Lower), upper: bound(r.Upper),
		prefix: pin(&pinner, r.Prefix), prefix_len: C.size_t(len(r.Prefix)),
	}
	var err error
	if options.snapshot, err = snapshot.handle(); err != nil {
		return nil, err
	}
	it := &Iterator{}
	if err := run(func(e **C.kingtide_error) C.kingtide_status { return open(options, &it.c, e) }, keep...); err != nil {
		return nil, err
	}
	runtime.SetFinalizer(it, (*Iterator).free)
	return it, nil
}

// First moves to the smallest key. It returns false if there is none, and after an error: see Err.
func (it *Iterator) First() bool { return it.moved(C.kingtide_iter_seek_to_first(it.c)) }

// Last moves to the largest key; as First.
func (it *Iterator) Last() bool { return it.moved(C.kingtide_iter_seek_to_last(it.c)) }

// Seek moves to the smallest key that is not before the given one; as First.
func (it *Iterator) Seek(key []byte) bool {
	k := some(key)
	return it.moved(C.kingtide_iter_seek(it.c, unsafe.Pointer(&k[0]), C.size_t(len(key))))
}

// SeekForPrev moves to the largest key that is not behind the given one; as First.
func (it *Iterator) SeekForPrev(key []byte) bool {
	k := some(key)
	return it.moved(C.kingtide_iter_seek_for_prev(it.c, unsafe.Pointer(&k[0]), C.size_t(len(key))))
}

// Next moves to the next larger key; as First.
func (it *Iterator) Next() bool { return it.moved(C.kingtide_iter_next(it.c)) }

// Prev moves to the next smaller key; as First.
func (it *Iterator) Prev() bool { return it.moved(C.kingtide_iter_prev(it.c)) }

func (it *Iterator) moved(there C.bool) bool {
	runtime.KeepAlive(it)
	return bool(there)
}

// Key returns the key of the entry; nil if the iterator is at none.
func (it *Iterator) Key() []byte {
	var n C.size_t
	data := C.kingtide_iter_key(it.c, &n)
	if data == nil {
		return nil
	}
	key := copied(unsafe.Pointer(data), n)
	runtime.KeepAlive(it)
	return key
}

// Value returns the value of the entry.
//
// Errors: ErrInvalidArgument at no entry; ErrCorruption, ErrIO; of a transaction's iterator ErrFinished, ErrAborted, ErrExpired.
func (it *Iterator) Value() ([]byte, error) {
	var data *C.uint8_t
	var n C.size_t
	if err := run(func(e **C.kingtide_error) C.kingtide_status { return C.kingtide_iter_value(it.c, &data, &n, e) }, it); err != nil {
		return nil, err
	}
	value := copied(unsafe.Pointer(data), n)
	runtime.KeepAlive(it)
	return value, nil
}

// Err returns the error that stopped the iterator. Check it when a move returned false.
//
// Errors: as Value.
func (it *Iterator) Err() error {
	return run(func(e **C.kingtide_error) C.kingtide_status { return C.kingtide_iter_status(it.c, e) }, it)
}

// Close frees the iterator, and the data that it keeps.
func (it *Iterator) Close() error {
	it.free()
	return nil
}

func (it *Iterator) free() {
	C.kingtide_iter_free(it.c)
	it.c = nil
}

// scan goes through all entries of an iterator: the first by a seek, the others by walks, which cost one call for many of them.
func scan(open func() (*Iterator, error), reverse bool) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		it, err := open()
		if err != nil {
			yield(Entry{}, err)
			return
		}
		defer it.Close()
		there := false
		if reverse {
			there = it.Last()
		} else {
			there = it.First()
		}
		if there {
			value, err := it.Value()
			if err != nil {
				yield(Entry{}, err)
				return
			}
			if !yield(Entry{it.Key(), value}, nil) {
				return
			}
		}
		var entries [64]C.kingtide_entry
		for there {
			n := C.kingtide_iter_walk(it.c, C.bool(!reverse), &entries[0], C.size_t(len(entries)), 1<<16)
			for _, e := range entries[:n] {
				entry := Entry{copied(unsafe.Pointer(e.key), e.key_len), copied(unsafe.Pointer(e.value), e.value_len)}
				if !yield(entry, nil) {
					return
				}
			}
			there = n > 0
		}
		if err := it.Err(); err != nil {
			yield(Entry{}, err)
		}
	}
}
