package kingtide

/*
#include <kingtide.h>
#include <stdlib.h>
*/
import "C"

import (
	"errors"
	"iter"
	"runtime"
	"time"
	"unsafe"
)

// Isolation says which effects of other transactions a transaction may see: docs/isolation.md.
type Isolation int32

// The levels, from the weakest to the strongest.
const (
	// IsolationDefault is SnapshotIsolation.
	IsolationDefault  Isolation = C.KINGTIDE_ISOLATION_DEFAULT
	ReadUncommitted   Isolation = C.KINGTIDE_READ_UNCOMMITTED
	ReadCommitted     Isolation = C.KINGTIDE_READ_COMMITTED
	RepeatableRead    Isolation = C.KINGTIDE_REPEATABLE_READ
	SnapshotIsolation Isolation = C.KINGTIDE_SNAPSHOT
	Serializable      Isolation = C.KINGTIDE_SERIALIZABLE
)

// Durability says what a commit survives.
type Durability int32

// What a commit survives.
const (
	// DurabilityDefault is what the option "durability" of the database says.
	DurabilityDefault Durability = C.KINGTIDE_DURABILITY_DEFAULT
	// DurabilityProcess is the death of the process, without an fsync.
	DurabilityProcess Durability = C.KINGTIDE_DURABILITY_PROCESS
	// DurabilityPower is a power cut: an fsync, shared by all commits that wait for it together.
	DurabilityPower Durability = C.KINGTIDE_DURABILITY_POWER
	// DurabilityNone is nothing until the next flush.
	DurabilityNone Durability = C.KINGTIDE_DURABILITY_NONE
)

// LockMode is the mode of a lock.
type LockMode int32

// The modes of locks.
const (
	LockShared    LockMode = C.KINGTIDE_LOCK_SHARED
	LockExclusive LockMode = C.KINGTIDE_LOCK_EXCLUSIVE
)

// NoWait is a lock timeout: do not wait at all, but return ErrLockHeld.
const NoWait time.Duration = -1

// TransactionOptions are the options of a transaction. The zero value is snapshot isolation, optimistic.
type TransactionOptions struct {
	Isolation Isolation
	// Locking takes locks when keys are written or read for update, instead of checking at commit.
	Locking bool
	// ReadOnly refuses writes.
	ReadOnly bool
	// Durability is that of the commit.
	Durability Durability
	// Timeout is the time after which it is rolled back; 0 for the database's option. Rounded up to whole milliseconds.
	Timeout time.Duration
	// LockTimeout is the longest wait for a lock; 0 for the database's option, NoWait not to wait. Rounded up to whole milliseconds.
	LockTimeout time.Duration
}

// Transaction is a list of reads and writes that take effect together or not at all. After ErrConflict, ErrDeadlock or ErrLockTimeout
// nothing was written: reset it, and run it again, as DB.Transact does. For one goroutine at a time.
type Transaction struct {
	c    *C.kingtide_txn
	open *openDB
}

// Begin begins a transaction. Close it.
//
// Errors: ErrClosed, ErrReadOnly, ErrInvalidArgument, ErrBusy (a million transactions run).
func (db *DB) Begin(options TransactionOptions) (*Transaction, error) {
	o := C.kingtide_txn_options{
		size: C.sizeof_kingtide_txn_options, isolation: C.int32_t(options.Isolation), durability: C.int32_t(options.Durability),
		locking: flag(options.Locking), read_only: flag(options.ReadOnly), timeout_ms: milliseconds(options.Timeout),
		lock_timeout_ms: C.int64_t(milliseconds(options.LockTimeout)),
	}
	if options.LockTimeout < 0 {
		o.lock_timeout_ms = C.KINGTIDE_NO_WAIT
	}
	var c *C.kingtide_txn
	if err := db.run(func(e **C.kingtide_error) C.kingtide_status { return C.kingtide_txn_begin(db.c, &o, &c, e) }); err != nil {
		return nil, err
	}
	txn := &Transaction{c, db.open}
	runtime.SetFinalizer(txn, (*Transaction).free)
	return txn, nil
}

func flag(set bool) C.int32_t {
	if set {
		return 1
	}
	return 0
}

func isTransient(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.TransientConflict
}

func (t *Transaction) run(f *Family, call func(e **C.kingtide_error) C.kingtide_status) error {
	return run(call, t, f)
}

// Put sets a key.
//
// Errors: ErrInvalidArgument (an empty key); ErrConflict, ErrLockTimeout, ErrLockHeld, ErrDeadlock; ErrReadOnly; ErrFinished, ErrAborted,
// ErrExpired, ErrClosed.
func (t *Transaction) Put(f *Family, key, value []byte) error {
	k, v := some(key), some(value)
	return t.run(f, func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_txn_put(t.c, f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), unsafe.Pointer(&v[0]), C.size_t(len(value)), e)
	})
}

// PutTTL sets a key that expires a time after this call, rounded up to whole milliseconds.
//
// Errors: as Put.
func (t *Transaction) PutTTL(f *Family, key, value []byte, ttl time.Duration) error {
	k, v := some(key), some(value)
	return t.run(f, func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_txn_put_ttl(t.c, f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), unsafe.Pointer(&v[0]), C.size_t(len(value)),
			milliseconds(ttl), e)
	})
}

// PutUntil sets a key that expires at a moment, rounded up to whole milliseconds. A moment that 64 bits of milliseconds since 1970 cannot
// hold, in the year 584,000,000, becomes the last one that they can.
//
// Errors: as Put.
func (t *Transaction) PutUntil(f *Family, key, value []byte, at time.Time) error {
	k, v := some(key), some(value)
	return t.run(f, func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_txn_put_until(t.c, f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), unsafe.Pointer(&v[0]), C.size_t(len(value)),
			unixMilliseconds(at), e)
	})
}

// Delete deletes a key.
//
// Errors: as Put.
func (t *Transaction) Delete(f *Family, key []byte) error {
	k := some(key)
	return t.run(f, func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_txn_delete(t.c, f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), e)
	})
}

// SingleDelete deletes a key that was put exactly once since its last delete.
//
// Errors: as Put.
func (t *Transaction) SingleDelete(f *Family, key []byte) error {
	k := some(key)
	return t.run(f, func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_txn_single_delete(t.c, f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), e)
	})
}

// DeleteRange deletes all keys from start up to, and without, end.
//
// Errors: ErrInvalidArgument (the end before the start), and as Put.
func (t *Transaction) DeleteRange(f *Family, start, end []byte) error {
	s, n := some(start), some(end)
	return t.run(f, func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_txn_delete_range(t.c, f.c, unsafe.Pointer(&s[0]), C.size_t(len(start)), unsafe.Pointer(&n[0]), C.size_t(len(end)), e)
	})
}

// DeletePrefix deletes all keys that begin with a prefix.
//
// Errors: ErrInvalidArgument (a key order in which these are no neighbours), and as Put.
func (t *Transaction) DeletePrefix(f *Family, prefix []byte) error {
	p := some(prefix)
	return t.run(f, func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_txn_delete_prefix(t.c, f.c, unsafe.Pointer(&p[0]), C.size_t(len(prefix)), e)
	})
}

// Get reads a key, with the transaction's own writes: as Family.Get.
//
// Errors: as Family.Get; at levels that lock reads, those of Put.
func (t *Transaction) Get(f *Family, key []byte) ([]byte, error) {
	k := some(key)
	return read(func(value *C.kingtide_value, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_txn_get(t.c, f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), value, e)
	}, t, f)
}

// GetForUpdate reads a key that the transaction is about to change: no other may have changed it at commit.
//
// Errors: as Get and Put.
func (t *Transaction) GetForUpdate(f *Family, key []byte) ([]byte, error) {
	k := some(key)
	return read(func(value *C.kingtide_value, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_txn_get_for_update(t.c, f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), value, e)
	}, t, f)
}

// GetForShare reads a key that must still be the same at commit.
//
// Errors: as Get and Put.
func (t *Transaction) GetForShare(f *Family, key []byte) ([]byte, error) {
	k := some(key)
	return read(func(value *C.kingtide_value, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_txn_get_for_share(t.c, f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), value, e)
	}, t, f)
}

// MultiGet returns the values of several keys; nil for each that is absent.
//
// Errors: as Get, if any of them could not be read.
func (t *Transaction) MultiGet(f *Family, keys ...[]byte) ([][]byte, error) {
	return readMany(keys, func(k *C.kingtide_slice, n C.size_t, v **C.kingtide_value, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_txn_multi_get(t.c, f.c, k, n, v, nil, e)
	}, t, f)
}

// Scan goes through a range, with the transaction's own writes: as Family.Scan. If the transaction ends in the loop, this ends with
// ErrFinished after at most 64 entries that were read before.
//
// Errors: as Family.Scan and Get.
func (t *Transaction) Scan(f *Family, r Range) iter.Seq2[Entry, error] {
	r = r.kept()
	return scan(func() (*Iterator, error) { return t.Iterator(f, r) }, r.Reverse)
}

// Iterator returns a cursor over a range. It ends with the transaction. Close it.
//
// Errors: as Scan.
func (t *Transaction) Iterator(f *Family, r Range) (*Iterator, error) {
	return newIterator(r, nil, func(o *C.kingtide_read_options, it **C.kingtide_iter, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_txn_iter(t.c, f.c, o, it, e)
	}, t, f)
}

// Lock locks a key, which may be absent. Only for locking transactions.
//
// Errors: ErrInvalidArgument (an optimistic transaction), and as Put.
func (t *Transaction) Lock(f *Family, key []byte, mode LockMode) error {
	k := some(key)
	return t.run(f, func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_txn_lock(t.c, f.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), C.int32_t(mode), e)
	})
}

// RefreshSnapshot makes further reads see what is committed now, at RepeatableRead.
//
// Errors: ErrInvalidArgument at other levels; ErrFinished, ErrAborted, ErrExpired.
func (t *Transaction) RefreshSnapshot() error {
	return t.run(nil, func(e **C.kingtide_error) C.kingtide_status { return C.kingtide_txn_refresh_snapshot(t.c, e) })
}

// SetSavepoint sets a savepoint. Savepoints nest.
//
// Errors: ErrFinished, ErrAborted, ErrExpired.
func (t *Transaction) SetSavepoint(name string) error {
	return named(name, func(n *C.char, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_txn_set_savepoint(t.c, n, e)
	}, t)
}

// RollbackToSavepoint rolls back the writes since a savepoint, which stays.
//
// Errors: ErrNotFound, and as SetSavepoint.
func (t *Transaction) RollbackToSavepoint(name string) error {
	return named(name, func(n *C.char, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_txn_rollback_to_savepoint(t.c, n, e)
	}, t)
}

// ReleaseSavepoint removes a savepoint and all later ones; the writes stay.
//
// Errors: as RollbackToSavepoint.
func (t *Transaction) ReleaseSavepoint(name string) error {
	return named(name, func(n *C.char, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_txn_release_savepoint(t.c, n, e)
	}, t)
}

// Commit commits, and waits until the commit has its durability.
//
// Errors: ErrConflict (it is rolled back); ErrBusy, ErrNoSpace, ErrIO (nothing was written); ErrPoisoned (visible, and of unknown
// durability); ErrFinished, ErrAborted, ErrExpired, ErrClosed.
func (t *Transaction) Commit() error {
	return t.run(nil, func(e **C.kingtide_error) C.kingtide_status { return C.kingtide_txn_commit(t.c, nil, e) })
}

// Prepare checks and logs the transaction under a name of at most 1,024 bytes. Its commit can then no longer fail with a conflict. It is in
// doubt, also after a crash, until it is committed or rolled back, by this object or by its name.
//
// Errors: ErrConflict (it is rolled back), ErrExists or ErrInvalidArgument (the name), ErrNoSpace, ErrPoisoned; ErrFinished, ErrAborted,
// ErrExpired.
func (t *Transaction) Prepare(xid []byte) error {
	x := some(xid)
	return t.run(nil, func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_txn_prepare(t.c, unsafe.Pointer(&x[0]), C.size_t(len(xid)), e)
	})
}

// Rollback rolls back and releases all locks. It does nothing once the transaction has ended.
//
// Errors: for a prepared transaction those of the log; it then remains in doubt.
func (t *Transaction) Rollback() error {
	return t.run(nil, func(e **C.kingtide_error) C.kingtide_status { return C.kingtide_txn_rollback(t.c, e) })
}

// Reset rolls back if it is still running, and begins anew with the same options.
//
// Errors: as DB.Begin.
func (t *Transaction) Reset() error {
	return t.run(nil, func(e **C.kingtide_error) C.kingtide_status { return C.kingtide_txn_reset(t.c, e) })
}

// Close rolls back if it is still running, and frees the transaction. A prepared one stays in doubt.
func (t *Transaction) Close() error {
	t.free()
	return nil
}

func (t *Transaction) free() {
	C.kingtide_txn_free(t.c)
	t.c = nil
}
