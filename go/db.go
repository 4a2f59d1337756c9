// Package kingtide stores ordered maps of bytes to bytes in a directory, with batches, snapshots and transactions. It is a first slice
// over the C API: see docs/go.md for what it has, and what it lacks.
//
// Every value that it returns is a copy. Slices passed to it are needed only during the call. A DB, a Family and a Snapshot may be used by
// any number of goroutines at once; everything else by one at a time. A call that waits, for the disk or a lock, occupies a thread.
package kingtide

/*
#cgo pkg-config: kingtide
#include <kingtide.h>
#include <stdlib.h>
*/
import "C"

import (
	"errors"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"
	"unsafe"
)

// Options are options by the names of docs/options.md, with their values as text: Options{"block_cache_size": "32M"}. In addition,
// "order" is the key order of the family: "bytewise" unless it is set.
type Options map[string]string

// handle makes the library's options. The caller frees them.
func (o Options) handle(withOrder bool) (*C.kingtide_options, error) {
	options := C.kingtide_options_new()
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if err := setOption(options, name, o[name], withOrder); err != nil {
			C.kingtide_options_free(options)
			return nil, err
		}
	}
	return options, nil
}

func setOption(options *C.kingtide_options, name, value string, withOrder bool) error {
	if name == "order" && !withOrder {
		return nil
	}
	return namedTwo(name, value, func(n, v *C.char, e **C.kingtide_error) C.kingtide_status {
		if name == "order" {
			return C.kingtide_options_set_order(options, v, e)
		}
		return C.kingtide_options_set(options, n, v, e)
	})
}

// named makes a call that takes a name.
func named(name string, call func(name *C.char, e **C.kingtide_error) C.kingtide_status, keep ...any) error {
	n, err := cString(name)
	if err != nil {
		return err
	}
	defer C.free(unsafe.Pointer(n))
	return run(func(e **C.kingtide_error) C.kingtide_status { return call(n, e) }, keep...)
}

// namedTwo makes a call that takes two names, or a name and a text.
func namedTwo(first, second string, call func(first, second *C.char, e **C.kingtide_error) C.kingtide_status, keep ...any) error {
	s, err := cString(second)
	if err != nil {
		return err
	}
	defer C.free(unsafe.Pointer(s))
	return named(first, func(f *C.char, e **C.kingtide_error) C.kingtide_status { return call(f, s, e) }, keep...)
}

// DB is an open database. Its default family is embedded: db.Put is a put to that.
type DB struct {
	*Family
	c    *C.kingtide_db
	open *openDB
}

// openDB frees the database when nothing refers to it. It is an object of its own, to which the DB and what is made from it refer:
// if they referred to the DB, which refers to its default family, they would form a cycle, and finalizers of a cycle never run.
type openDB struct{ c *C.kingtide_db }

// Open opens the database in a directory, which it creates if there is none. Close it.
//
// Errors: ErrLocked if another process or DB has it open; ErrInvalidArgument (an option), ErrIncompatible (another key order),
// ErrNewerFormat, ErrCorruption, ErrIO.
func Open(path string, options Options) (*DB, error) {
	o, err := options.handle(true)
	if err != nil {
		return nil, err
	}
	defer C.kingtide_options_free(o)
	open := &openDB{}
	err = named(path, func(path *C.char, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_db_open(path, o, &open.c, e)
	})
	if err != nil {
		return nil, err
	}
	runtime.SetFinalizer(open, func(open *openDB) { C.kingtide_db_free(open.c) })
	db := &DB{c: open.c, open: open}
	db.Family, err = db.family(func(f **C.kingtide_family, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_db_default_family(db.c, f, e)
	})
	return db, err
}

// run makes a call on the database.
func (db *DB) run(call func(e **C.kingtide_error) C.kingtide_status, keep ...any) error {
	return run(call, db, keep)
}

// Close flushes, cancels running compactions, and releases the directory. Calls that read or write entries then return
// ErrClosed, except those of iterators that are open already. Closing again does nothing.
//
// Errors: the reason why memtables could not be flushed; committed data is in the log all the same.
func (db *DB) Close() error {
	return db.run(func(e **C.kingtide_error) C.kingtide_status { return C.kingtide_db_close(db.c, e) })
}

// Write commits a batch: all of it becomes visible at once, and survives a crash entirely or not at all. The batch is unchanged.
//
// Errors: ErrClosed, ErrReadOnly, ErrNoSpace, ErrPoisoned, ErrLockTimeout (a transaction holds a lock on a key).
func (db *DB) Write(batch *Batch) error { return db.WriteWith(batch, DurabilityDefault) }

// WriteWith commits a batch that survives what the durability says.
//
// Errors: as Write.
func (db *DB) WriteWith(batch *Batch, durability Durability) error {
	options := C.kingtide_write_options{size: C.sizeof_kingtide_write_options, durability: C.int32_t(durability)}
	return db.run(func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_db_write(db.c, batch.c, &options, nil, e)
	}, batch)
}

// Sync makes all commits so far survive a power cut.
//
// Errors: ErrIO, ErrPoisoned, ErrClosed.
func (db *DB) Sync() error {
	return db.run(func(e **C.kingtide_error) C.kingtide_status { return C.kingtide_db_sync(db.c, e) })
}

// Flush writes the memtables of all families to tables, and waits for that.
//
// Errors: ErrIO, ErrNoSpace, ErrClosed.
func (db *DB) Flush() error {
	return db.run(func(e **C.kingtide_error) C.kingtide_status { return C.kingtide_db_flush(db.c, e) })
}

// SetOption changes an option of the database while it is open.
//
// Errors: ErrInvalidArgument (the name, the value, or an option that cannot be changed), ErrClosed.
func (db *DB) SetOption(name, value string) error {
	return namedTwo(name, value, func(n, v *C.char, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_db_set_option(db.c, n, v, e)
	}, db)
}

// family wraps a family that a call returns.
func (db *DB) family(call func(f **C.kingtide_family, e **C.kingtide_error) C.kingtide_status) (*Family, error) {
	// Not a field of the family: cgo lets C write only to memory that holds no pointer of Go's.
	var c *C.kingtide_family
	if err := db.run(func(e **C.kingtide_error) C.kingtide_status { return call(&c, e) }); err != nil {
		return nil, err
	}
	f := &Family{c, db.open}
	runtime.SetFinalizer(f, func(f *Family) { C.kingtide_family_free(f.c) })
	return f, nil
}

// namedFamily wraps a family that a call with a name returns.
func (db *DB) namedFamily(name string, call func(name *C.char, f **C.kingtide_family, e **C.kingtide_error) C.kingtide_status) (*Family, error) {
	n, err := cString(name)
	if err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(n))
	return db.family(func(f **C.kingtide_family, e **C.kingtide_error) C.kingtide_status { return call(n, f, e) })
}

// OpenFamily returns a family by its name. The default family is called "default".
//
// Errors: ErrNotFound, ErrClosed.
func (db *DB) OpenFamily(name string) (*Family, error) {
	return db.namedFamily(name, func(n *C.char, f **C.kingtide_family, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_db_family(db.c, n, f, e)
	})
}

// CreateFamily creates a family.
//
// Errors: ErrExists; ErrNotFound (the key order); ErrInvalidArgument (the name, an option), ErrIO, ErrNoSpace, ErrClosed.
func (db *DB) CreateFamily(name string, options Options) (*Family, error) {
	o, err := options.handle(false)
	if err != nil {
		return nil, err
	}
	defer C.kingtide_options_free(o)
	var order *C.char
	if word, ok := options["order"]; ok {
		if order, err = cString(word); err != nil {
			return nil, err
		}
		defer C.free(unsafe.Pointer(order))
	}
	return db.namedFamily(name, func(n *C.char, f **C.kingtide_family, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_db_create_family(db.c, n, o, order, f, e)
	})
}

// CloneFamily creates a family with the contents of another, whose files it shares. What the new family shows at snapshots that were taken
// before is undefined.
//
// Errors: ErrNotFound, ErrExists, ErrInvalidArgument, ErrIO, ErrNoSpace, ErrClosed.
func (db *DB) CloneFamily(from, to string) (*Family, error) {
	t, err := cString(to)
	if err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(t))
	return db.namedFamily(from, func(n *C.char, f **C.kingtide_family, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_db_clone_family(db.c, n, t, f, e)
	})
}

// DropFamily removes a family and all that is in it.
//
// Errors: ErrNotFound, ErrInvalidArgument (the default family), ErrIO, ErrClosed.
func (db *DB) DropFamily(name string) error {
	return named(name, func(n *C.char, e **C.kingtide_error) C.kingtide_status { return C.kingtide_db_drop_family(db.c, n, e) }, db)
}

// RenameFamily gives a family another name; handles of it stay valid.
//
// Errors: ErrNotFound, ErrExists, ErrInvalidArgument, ErrIO, ErrClosed.
func (db *DB) RenameFamily(from, to string) error {
	return namedTwo(from, to, func(f, t *C.char, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_db_rename_family(db.c, f, t, e)
	}, db)
}

// Families returns the names of all families. It also works after Close.
func (db *DB) Families() ([]string, error) {
	return list(func(names **C.kingtide_strings, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_db_families(db.c, names, e)
	}, db)
}

// now is the clock that Transact uses; tests replace it.
var now = time.Now

// Transact runs a function in a serializable transaction, and commits it. After a conflict with another transaction it runs the function
// again, up to 100 times with random waits in between; so the function should change nothing but the database. If it returns an error, or
// panics, the transaction is rolled back, even if it was prepared. After an attempt that failed with ErrBusy or ErrLockTimeout, no other
// begins once a minute has passed since the first one began.
//
// Errors: that of the function; the last conflict; those of Begin and Commit.
func (db *DB) Transact(body func(txn *Transaction) error) error {
	txn, err := db.Begin(TransactionOptions{Isolation: Serializable})
	if err != nil {
		return err
	}
	defer txn.Close()
	defer txn.Rollback() // after a panic; it does nothing once the transaction has ended
	began := now()
	for attempt := 0; ; attempt++ {
		if err = body(txn); err == nil {
			err = txn.Commit()
		}
		if err == nil {
			return nil
		}
		// Before the wait, because other transactions may want its locks.
		if undone := txn.Rollback(); undone != nil && txn.c != nil {
			return undone
		}
		if !isTransient(err) || attempt == 99 {
			return err
		}
		// This attempt may have waited for a minute, and so may the next one.
		if (errors.Is(err, ErrBusy) || errors.Is(err, ErrLockTimeout)) && now().Sub(began) >= time.Minute {
			return err
		}
		longest := min(50*time.Microsecond<<min(attempt, 8), 10*time.Millisecond)
		time.Sleep(rand.N(longest))
		if err := txn.Reset(); err != nil {
			return err
		}
	}
}

// Prepared returns the names of the transactions that are prepared and neither committed nor rolled back, oldest first. It also works
// after Close.
func (db *DB) Prepared() ([][]byte, error) {
	var prepared *C.kingtide_prepared_list
	err := db.run(func(e **C.kingtide_error) C.kingtide_status { return C.kingtide_db_prepared(db.c, &prepared, e) })
	if err != nil {
		return nil, err
	}
	defer C.kingtide_prepared_list_free(prepared)
	names := make([][]byte, int(C.kingtide_prepared_list_count(prepared)))
	info := C.kingtide_prepared_info{size: C.sizeof_kingtide_prepared_info}
	for i := range names {
		C.kingtide_prepared_list_get(prepared, C.size_t(i), &info)
		names[i] = copied(info.xid, info.xid_len)
	}
	return names, nil
}

// CommitPrepared commits a prepared transaction by its name.
//
// Errors: ErrNotFound; those of Commit, after which it is still prepared.
func (db *DB) CommitPrepared(xid []byte) error {
	x := some(xid)
	return db.run(func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_db_commit_prepared(db.c, unsafe.Pointer(&x[0]), C.size_t(len(xid)), nil, e)
	})
}

// RollbackPrepared rolls a prepared transaction back by its name.
//
// Errors: as CommitPrepared.
func (db *DB) RollbackPrepared(xid []byte) error {
	x := some(xid)
	return db.run(func(e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_db_rollback_prepared(db.c, unsafe.Pointer(&x[0]), C.size_t(len(xid)), e)
	})
}
