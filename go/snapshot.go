package kingtide

/*
#include <kingtide.h>
*/
import "C"

import (
	"iter"
	"runtime"
	"unsafe"
)

// Snapshot is a view of all families as of one moment. What it sees is kept until it is closed.
type Snapshot struct{ c *C.kingtide_snapshot }

func (db *DB) snapshot(call func(s **C.kingtide_snapshot, e **C.kingtide_error) C.kingtide_status) (*Snapshot, error) {
	s := &Snapshot{}
	if err := db.run(func(e **C.kingtide_error) C.kingtide_status { return call(&s.c, e) }); err != nil {
		return nil, err
	}
	runtime.SetFinalizer(s, (*Snapshot).free)
	return s, nil
}

// Snapshot takes a snapshot of the current state. Close it after use. It succeeds after DB.Close too, but then nothing can be read from it.
func (db *DB) Snapshot() (*Snapshot, error) {
	return db.snapshot(func(s **C.kingtide_snapshot, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_db_snapshot(db.c, s, e)
	})
}

// NameSnapshot takes a snapshot of now, and keeps it under a name until it is dropped or the database closed.
//
// Errors: ErrExists, ErrInvalidArgument (the name), ErrClosed.
func (db *DB) NameSnapshot(name string) (*Snapshot, error) {
	return db.byName(name, func(n *C.char, s **C.kingtide_snapshot, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_db_name_snapshot(db.c, n, s, e)
	})
}

// NamedSnapshot returns a snapshot by its name. Close it; the name stays.
//
// Errors: ErrNotFound, ErrClosed.
func (db *DB) NamedSnapshot(name string) (*Snapshot, error) {
	return db.byName(name, func(n *C.char, s **C.kingtide_snapshot, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_db_named_snapshot(db.c, n, s, e)
	})
}

func (db *DB) byName(name string, call func(n *C.char, s **C.kingtide_snapshot, e **C.kingtide_error) C.kingtide_status) (*Snapshot, error) {
	s := &Snapshot{}
	err := named(name, func(n *C.char, e **C.kingtide_error) C.kingtide_status { return call(n, &s.c, e) }, db)
	if err != nil {
		return nil, err
	}
	runtime.SetFinalizer(s, (*Snapshot).free)
	return s, nil
}

// DropNamedSnapshot removes a name.
//
// Errors: ErrNotFound, ErrClosed.
func (db *DB) DropNamedSnapshot(name string) error {
	return named(name, func(n *C.char, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_db_drop_named_snapshot(db.c, n, e)
	}, db)
}

// SnapshotNames returns the names of all named snapshots. It also works after Close.
func (db *DB) SnapshotNames() ([]string, error) {
	return list(func(names **C.kingtide_strings, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_db_snapshot_names(db.c, names, e)
	}, db)
}

// Get reads a key as of the snapshot: as Family.Get.
//
// Errors: as Family.Get; ErrInvalidArgument (a snapshot of another database, or a closed one), ErrTooOld.
func (s *Snapshot) Get(f *Family, key []byte) ([]byte, error) {
	k := some(key)
	return read(func(value *C.kingtide_value, e **C.kingtide_error) C.kingtide_status {
		return C.kingtide_family_get_at(f.c, s.c, unsafe.Pointer(&k[0]), C.size_t(len(key)), value, e)
	}, f, s)
}

// Scan goes through a range as of the snapshot: as Family.Scan.
//
// Errors: as Family.Scan and Get.
func (s *Snapshot) Scan(f *Family, r Range) iter.Seq2[Entry, error] {
	r = r.kept()
	return scan(func() (*Iterator, error) { return f.iterator(r, s) }, r.Reverse)
}

// Iterator returns a cursor that shows the snapshot. Close it.
//
// Errors: as Scan.
func (s *Snapshot) Iterator(f *Family, r Range) (*Iterator, error) { return f.iterator(r, s) }

// OpenValue opens the value of a key as of the snapshot; nil if the key is absent. Close it.
//
// Errors: as Get.
func (s *Snapshot) OpenValue(f *Family, key []byte) (*Value, error) { return f.openValue(key, s) }

// handle returns the snapshot for a call that would read the present without one.
func (s *Snapshot) handle() (*C.kingtide_snapshot, error) {
	if s == nil {
		return nil, nil
	}
	if s.c == nil {
		return nil, &Error{Kind: ErrInvalidArgument, Message: "the snapshot is closed", Offset: -1}
	}
	return s.c, nil
}

// Close frees the snapshot.
func (s *Snapshot) Close() error {
	s.free()
	return nil
}

func (s *Snapshot) free() {
	C.kingtide_snapshot_free(s.c)
	s.c = nil
}
