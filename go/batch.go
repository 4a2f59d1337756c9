package kingtide

/*
#include <kingtide.h>
*/
import "C"

import (
	"runtime"
	"time"
	"unsafe"
)

// Batch is a list of writes to any families, which DB.Write commits atomically. For one goroutine at a time.
type Batch struct{ c *C.kingtide_batch }

// NewBatch returns an empty batch.
func NewBatch() *Batch {
	b := &Batch{c: C.kingtide_batch_new()}
	runtime.SetFinalizer(b, func(b *Batch) { C.kingtide_batch_free(b.c) })
	return b
}

// Clear removes all writes, and keeps the memory for others.
func (b *Batch) Clear() {
	C.kingtide_batch_clear(b.c)
	runtime.KeepAlive(b)
}

// Len returns the number of writes.
func (b *Batch) Len() int {
	n := C.kingtide_batch_count(b.c)
	runtime.KeepAlive(b)
	return int(n)
}

func (b *Batch) run(f *Family, call func(e **C.kingtide_error) C.kingtide_status) error {
	return run(call, b, f)
}

// Put sets a key.
//
// Errors: ErrInvalidArgument (an empty key, or a batch that becomes too long). The batch is as before.
func (b *Batch) Put(f *Family, key, value []byte) error {
	k, v := some(key), some(value)
	return b.run(f, func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_batch_put(b.c, f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), unsafe.Pointer(&v[0]), C.size_t(len(value)), e)
	})
}

// PutTTL sets a key that expires a time after this call, rounded up to whole milliseconds.
//
// Errors: as Put.
func (b *Batch) PutTTL(f *Family, key, value []byte, ttl time.Duration) error {
	k, v := some(key), some(value)
	return b.run(f, func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_batch_put_ttl(b.c, f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), unsafe.Pointer(&v[0]), C.size_t(len(value)),
			milliseconds(ttl), e)
	})
}

// PutUntil sets a key that expires at a moment, rounded up to whole milliseconds. A moment that 64 bits of milliseconds since 1970 cannot
// hold, in the year 584,000,000, becomes the last one that they can.
//
// Errors: as Put.
func (b *Batch) PutUntil(f *Family, key, value []byte, at time.Time) error {
	k, v := some(key), some(value)
	return b.run(f, func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_batch_put_until(b.c, f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), unsafe.Pointer(&v[0]), C.size_t(len(value)),
			unixMilliseconds(at), e)
	})
}

// Delete deletes a key.
//
// Errors: as Put.
func (b *Batch) Delete(f *Family, key []byte) error {
	k := some(key)
	return b.run(f, func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_batch_delete(b.c, f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), e)
	})
}

// SingleDelete deletes a key that was put exactly once since its last delete.
//
// Errors: as Put.
func (b *Batch) SingleDelete(f *Family, key []byte) error {
	k := some(key)
	return b.run(f, func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_batch_single_delete(b.c, f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), e)
	})
}

// DeleteRange deletes all keys from start up to, and without, end.
//
// Errors: ErrInvalidArgument (the end before the start), and as Put.
func (b *Batch) DeleteRange(f *Family, start, end []byte) error {
	s, t := some(start), some(end)
	return b.run(f, func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_batch_delete_range(b.c, f.c, unsafe.Pointer(&s[0]), C.size_t(len(start)), unsafe.Pointer(&t[0]), C.size_t(len(end)), e)
	})
}

// DeletePrefix deletes all keys that begin with a prefix.
//
// Errors: ErrInvalidArgument (a key order in which these are no neighbours), and as Put.
func (b *Batch) DeletePrefix(f *Family, prefix []byte) error {
	p := some(prefix)
	return b.run(f, func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_batch_delete_prefix(b.c, f.c, unsafe.Pointer(&p[0]), C.size_t(len(prefix)), e)
	})
}
