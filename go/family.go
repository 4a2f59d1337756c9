package kingtide

/*
#include <kingtide.h>
#include <stdlib.h>
*/
import "C"

import (
	"io"
	"iter"
	"math"
	"runtime"
	"time"
	"unsafe"
)

// Family is a column family: one of the ordered maps of a database. The database stays open as long as the program refers to one of its
// families; after Close or DropFamily its calls return ErrClosed, except Name, Order and FamilyOption.
type Family struct {
	c    *C.kingtide_family
	open *openDB
}

func (f *Family) run(call func(e **C.kingtide_error) C.kingtide_status) error { return run(call, f) }

// Put sets a key.
//
// Errors: ErrInvalidArgument (an empty key), and as DB.Write.
func (f *Family) Put(key, value []byte) error {
	k, v := some(key), some(value)
	return f.run(func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_family_put(f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), unsafe.Pointer(&v[0]), C.size_t(len(value)), e)
	})
}

// PutTTL sets a key that expires after a time, rounded up to whole milliseconds.
//
// Errors: as Put.
func (f *Family) PutTTL(key, value []byte, ttl time.Duration) error {
	k, v := some(key), some(value)
	return f.run(func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_family_put_ttl(f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), unsafe.Pointer(&v[0]), C.size_t(len(value)),
			milliseconds(ttl), e)
	})
}

// Delete deletes a key. Deleting an absent key is not an error.
//
// Errors: as Put.
func (f *Family) Delete(key []byte) error {
	k := some(key)
	return f.run(func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_family_delete(f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), e)
	})
}

// SingleDelete deletes a key that was put exactly once since its last delete, which costs less than Delete.
//
// Errors: as Put.
func (f *Family) SingleDelete(key []byte) error {
	k := some(key)
	return f.run(func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_family_single_delete(f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), e)
	})
}

// DeleteRange deletes all keys from start up to, and without, end. It costs the same for any number of keys.
//
// Errors: ErrInvalidArgument (the end before the start), and as Put.
func (f *Family) DeleteRange(start, end []byte) error {
	s, t := some(start), some(end)
	return f.run(func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_family_delete_range(f.c, unsafe.Pointer(&s[0]), C.size_t(len(start)), unsafe.Pointer(&t[0]), C.size_t(len(end)), e)
	})
}

// DeletePrefix deletes all keys that begin with a prefix.
//
// Errors: ErrInvalidArgument (a key order in which these are no neighbours), and as Put.
func (f *Family) DeletePrefix(prefix []byte) error {
	p := some(prefix)
	return f.run(func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_family_delete_prefix(f.c, unsafe.Pointer(&p[0]), C.size_t(len(prefix)), e)
	})
}

// CompareAndSwap replaces the value of a key if it is the expected one. A nil expected value stands for an absent key, and a nil desired
// one deletes the key. If it was not replaced, found is the value that is there, nil for none.
//
// Errors: as Get and Put.
func (f *Family) CompareAndSwap(key, expected, desired []byte) (swapped bool, found []byte, err error) {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	slice := func(b []byte) *C.kingtide_slice {
		if b == nil {
			return nil
		}
		return &C.kingtide_slice{data: pin(&pinner, b), len: C.size_t(len(b))}
	}
	k, before, after := some(key), slice(expected), slice(desired)
	var done C.bool
	found, err = read(func(value *C.kingtide_value, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_family_compare_and_swap(f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), before, after, value, &done, e)
	}, f)
	return bool(done), found, err
}

// Get returns the value of a key; nil if the key is absent, which is not an error. An empty value is not nil.
//
// Errors: ErrCorruption with file and offset, ErrIO, ErrClosed.
func (f *Family) Get(key []byte) ([]byte, error) {
	k := some(key)
	return read(func(value *C.kingtide_value, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_family_get(f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), value, e)
	}, f)
}

// MultiGet returns the values of several keys as of one moment; nil for each that is absent.
//
// Errors: as Get, if any of them could not be read.
func (f *Family) MultiGet(keys ...[]byte) ([][]byte, error) {
	return readMany(keys, func(k *C.kingtide_slice, n C.size_t, v **C.kingtide_value, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_family_multi_get(f.c, k, n, v, nil, e)
	}, f)
}

// Scan goes through the entries of a range, as of the beginning of the loop: `for entry, err := range family.Scan(r)`. An error ends the
// loop, after one round with it.
//
// Errors: ErrInvalidArgument (a prefix in a key order in which its keys are no neighbours), and as Get.
func (f *Family) Scan(r Range) iter.Seq2[Entry, error] {
	r = r.kept()
	return scan(func() (*Iterator, error) { return f.Iterator(r) }, r.Reverse)
}

// Iterator returns a cursor over a range. Close it.
//
// Errors: as Scan.
func (f *Family) Iterator(r Range) (*Iterator, error) { return f.iterator(r, nil) }

func (f *Family) iterator(r Range, snapshot *Snapshot) (*Iterator, error) {
	return newIterator(r, snapshot, func(o *C.kingtide_read_options, it **C.kingtide_iter, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_family_iter(f.c, o, it, e)
	}, f, snapshot)
}

// OpenValue opens the value of a key, which may be larger than memory; nil if the key is absent. Close it.
//
// Errors: as Get.
func (f *Family) OpenValue(key []byte) (*Value, error) { return f.openValue(key, nil) }

func (f *Family) openValue(key []byte, snapshot *Snapshot) (*Value, error) {
	k, v := some(key), &Value{}
	s, err := snapshot.handle()
	if err != nil {
		return nil, err
	}
	err = run(func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_family_get_reader(f.c, s, unsafe.Pointer(&k[0]), C.size_t(len(key)), &v.c, e)
	}, f, snapshot)
	if err != nil || v.c == nil {
		return nil, err
	}
	runtime.SetFinalizer(v, (*Value).free)
	return v, nil
}

// Name returns the family's current name, or the last one if it was dropped.
func (f *Family) Name() (string, error) {
	return text(func(t **C.kingtide_text, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_family_name(f.c, t, e)
	}, f)
}

// Order returns the name of the key order.
func (f *Family) Order() (string, error) {
	return text(func(t **C.kingtide_text, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_family_order(f.c, t, e)
	}, f)
}

// FamilyOption returns an option of the family as text.
//
// Errors: ErrNotFound (the name).
func (f *Family) FamilyOption(name string) (string, error) {
	n, err := cString(name)
	if err != nil {
		return "", err
	}
	defer C.free(unsafe.Pointer(n))
	return text(func(t **C.kingtide_text, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_family_get_option(f.c, n, t, e)
	}, f)
}

// SetFamilyOption changes an option of the family, and stores it.
//
// Errors: ErrInvalidArgument (the name, the value, or an option that cannot be changed), ErrIO, ErrClosed.
func (f *Family) SetFamilyOption(name, value string) error {
	return namedTwo(name, value, func(n, v *C.char, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_family_set_option(f.c, n, v, e)
	}, f)
}

// Compact compacts the whole family into its bottom level, and waits for that.
//
// Errors: ErrIO, ErrNoSpace, ErrCorruption, ErrClosed.
func (f *Family) Compact() error {
	return f.run(func(e **C.kingtide_error) C.kingtide_status { return C.kingtide_family_compact_range(f.c, nil, nil, e) })
}

// Value is a stored value that is read in pieces, as it was when it was opened. It is an io.ReaderAt.
type Value struct{ c *C.kingtide_reader }

// Size returns the length of the value in bytes.
func (v *Value) Size() int64 {
	n := C.kingtide_reader_len(v.c)
	runtime.KeepAlive(v)
	return int64(n)
}

// ReadAt reads from a byte offset. At the end of the value it returns io.EOF.
//
// Errors: ErrCorruption with file and offset, ErrIO, ErrInvalidArgument (a negative offset, a closed value).
func (v *Value) ReadAt(p []byte, offset int64) (int, error) {
	if offset < 0 {
		return 0, &Error{Kind: ErrInvalidArgument, Message: "a negative offset", Offset: -1}
	}
	buffer := some(p)
	var n C.size_t
	err := run(func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_reader_read(v.c, C.uint64_t(offset), unsafe.Pointer(&buffer[0]), C.size_t(len(p)), &n, e)
	}, v)
	if err == nil && int(n) < len(p) {
		err = io.EOF
	}
	return int(n), err
}

// Close frees the value's file.
func (v *Value) Close() error {
	v.free()
	return nil
}

func (v *Value) free() {
	C.kingtide_reader_free(v.c)
	v.c = nil
}

// milliseconds rounds up: 0 often stands for an option of the database, which may be long.
func milliseconds(d time.Duration) C.uint64_t {
	ms := d / time.Millisecond
	if d > ms*time.Millisecond {
		ms++
	}
	return C.uint64_t(max(ms, 0))
}

// unixMilliseconds returns a moment in milliseconds since 1970, rounded up; 0 for an earlier one. Time.UnixMilli overflows in the year
// 292,000,000.
func unixMilliseconds(at time.Time) C.uint64_t {
	seconds := at.Unix()
	if seconds < 0 {
		return 0
	}
	if uint64(seconds) >= math.MaxUint64/1000 {
		return math.MaxUint64
	}
	return C.uint64_t(seconds)*1000 + C.uint64_t((at.Nanosecond()+999_999)/1_000_000)
}
