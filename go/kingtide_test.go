package kingtide_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	kingtide "github.com/kingtide/kingtide/go"
)

func open(t *testing.T) *kingtide.DB {
	t.Helper()
	db, err := kingtide.Open(filepath.Join(t.TempDir(), "db"), kingtide.Options{"block_cache_size": "8M"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestErrorsHaveAKindAMessageAndAPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db, err := kingtide.Open(path, nil)
	check(t, err)
	defer db.Close()
	_, err = kingtide.Open(path, nil)
	var e *kingtide.Error
	if !errors.Is(err, kingtide.ErrLocked) || errors.Is(err, kingtide.ErrIO) || !errors.As(err, &e) {
		t.Fatal(err)
	}
	if e.Kind.Error() != "locked" || !strings.HasSuffix(e.Path, "LOCK") || e.Offset != -1 || e.TransientConflict {
		t.Fatalf("%+v", e)
	}
	_, err = kingtide.Open(filepath.Join(t.TempDir(), "other"), kingtide.Options{"block_cash_size": "8M"})
	if !errors.Is(err, kingtide.ErrInvalidArgument) || !strings.Contains(err.Error(), "block_cache_size") {
		t.Fatal("the most similar name belongs in", err)
	}
	if err := db.Put(nil, []byte("x")); !errors.Is(err, kingtide.ErrInvalidArgument) {
		t.Fatal(err)
	}
	if _, err := db.OpenFamily("a\x00b"); !errors.Is(err, kingtide.ErrInvalidArgument) {
		t.Fatal(err)
	}
	// What C would cut off is refused in values too, and nothing has happened.
	before, err := db.FamilyOption("memtable_size")
	check(t, err)
	for name, err := range map[string]error{
		"family":   db.SetFamilyOption("memtable_size", "16M\x00b"),
		"database": db.SetOption("block_cache_size", "16M\x00b"),
		"rename":   db.RenameFamily("default", "a\x00b"),
	} {
		if !errors.Is(err, kingtide.ErrInvalidArgument) || !strings.Contains(err.Error(), "NUL") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := db.CreateFamily("a", kingtide.Options{"order": "bytewise\x00b"}); !errors.Is(err, kingtide.ErrInvalidArgument) {
		t.Error(err)
	}
	if after, err := db.FamilyOption("memtable_size"); err != nil || after != before {
		t.Error(after, err)
	}
}

func TestWhatWasClosedAnswersWithErrors(t *testing.T) {
	db := open(t)
	snapshot, err := db.Snapshot()
	check(t, err)
	it, err := db.Iterator(kingtide.Range{})
	check(t, err)
	txn, err := db.Begin(kingtide.TransactionOptions{})
	check(t, err)
	for _, c := range []interface{ Close() error }{snapshot, it, txn, snapshot, it, txn, db, db} {
		check(t, c.Close())
	}
	_, inSnapshot := snapshot.Get(db.Family, []byte("k"))
	for name, err := range map[string]error{
		"put": db.Put([]byte("k"), nil), "snapshot": inSnapshot, "iterator": it.Err(), "transaction": txn.Put(db.Family, []byte("k"), nil),
	} {
		if !errors.Is(err, kingtide.ErrClosed) && !errors.Is(err, kingtide.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if it.First() || it.Key() != nil {
		t.Error("a closed iterator is at an entry")
	}
}

// A closed snapshot may not be taken for none: that would show what was written since.
func TestAClosedSnapshotShowsNothing(t *testing.T) {
	db := open(t)
	snapshot, err := db.Snapshot()
	check(t, err)
	check(t, db.Put([]byte("k"), []byte("new")))
	check(t, snapshot.Close())
	_, get := snapshot.Get(db.Family, []byte("k"))
	_, iterator := snapshot.Iterator(db.Family, kingtide.Range{})
	_, value := snapshot.OpenValue(db.Family, []byte("k"))
	var scan error
	for _, err := range snapshot.Scan(db.Family, kingtide.Range{}) {
		scan = err
	}
	for name, err := range map[string]error{"get": get, "iterator": iterator, "value": value, "scan": scan} {
		if !errors.Is(err, kingtide.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A program may let go of everything but what it reads from.
func TestWhatIsReadCanBeReadToItsEnd(t *testing.T) {
	const entries = 20_000
	it, value := func() (*kingtide.Iterator, *kingtide.Value) {
		db, err := kingtide.Open(filepath.Join(t.TempDir(), "db"), kingtide.Options{"block_cache_size": "64K"})
		check(t, err)
		for n := range entries {
			check(t, db.Put(fmt.Appendf(nil, "%08d", n), make([]byte, 100)))
		}
		check(t, db.Put([]byte("large"), make([]byte, 1<<20)))
		check(t, db.Flush())
		it, err := db.Iterator(kingtide.Range{})
		check(t, err)
		value, err := db.OpenValue([]byte("large"))
		check(t, err)
		return it, value
	}()
	for range 5 {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	n := 0
	for there := it.First(); there; there = it.Next() {
		n++
	}
	check(t, it.Err())
	if n != entries+1 {
		t.Errorf("%d entries of %d", n, entries+1)
	}
	all, err := io.ReadAll(io.NewSectionReader(value, 0, value.Size()))
	check(t, err)
	if len(all) != 1<<20 {
		t.Errorf("%d bytes", len(all))
	}
	check(t, it.Close())
	check(t, value.Close())
}

func TestAbsentAndEmptyValuesDiffer(t *testing.T) {
	db := open(t)
	check(t, db.Put([]byte("empty"), nil))
	if v, err := db.Get([]byte("empty")); err != nil || v == nil || len(v) != 0 {
		t.Fatal(v, err)
	}
	if v, err := db.Get([]byte("absent")); err != nil || v != nil {
		t.Fatal(v, err)
	}
	many, err := db.MultiGet([]byte("empty"), []byte("absent"), nil)
	if err != nil || many[0] == nil || many[1] != nil || many[2] != nil {
		t.Fatal(many, err)
	}
}

// A scan makes more than one walk, and may be left early; a key may lie in a struct with pointers, which cgo must not mind.
func TestScansOfManyEntries(t *testing.T) {
	db := open(t)
	type row struct {
		key  [8]byte
		note *string
	}
	note := "beside the key"
	for i := range 1000 {
		r := row{note: &note}
		copy(r.key[:], fmt.Sprintf("%08d", i))
		check(t, db.Put(r.key[:], bytes.Repeat([]byte{byte(i)}, i)))
	}
	for _, reverse := range []bool{false, true} {
		n := 0
		for entry, err := range db.Scan(kingtide.Range{Reverse: reverse, Lower: kingtide.Excluded([]byte("00000099"))}) {
			check(t, err)
			i := 100 + n
			if reverse {
				i = 999 - n
			}
			if string(entry.Key) != fmt.Sprintf("%08d", i) || !bytes.Equal(entry.Value, bytes.Repeat([]byte{byte(i)}, i)) {
				t.Fatalf("%d: %s", i, entry.Key)
			}
			n++
		}
		if n != 900 {
			t.Fatal(n)
		}
	}
	n := 0
	for range db.Scan(kingtide.Range{}) {
		if n++; n == 70 {
			break
		}
	}
}

// The slices of a range are needed only during the call, although the entries are read later.
func TestAScanKeepsItsRange(t *testing.T) {
	db := open(t)
	for _, key := range []string{"a1", "a2", "b1", "b2"} {
		check(t, db.Put([]byte(key), nil))
	}
	snapshot, err := db.Snapshot()
	check(t, err)
	defer snapshot.Close()
	txn, err := db.Begin(kingtide.TransactionOptions{})
	check(t, err)
	defer txn.Close()
	lower, upper, prefix := []byte("a1"), []byte("a2"), []byte("a")
	ranges := []kingtide.Range{{Lower: kingtide.Included(lower), Upper: kingtide.Included(upper)},
		{Lower: kingtide.Excluded([]byte{}), Prefix: prefix}}
	var scans []iter.Seq2[kingtide.Entry, error]
	for _, r := range ranges {
		scans = append(scans, db.Scan(r), snapshot.Scan(db.Family, r), txn.Scan(db.Family, r))
	}
	lower[0], upper[0], prefix[0] = 'b', 'b', 'b'
	for i, scan := range scans {
		var keys []string
		for entry, err := range scan {
			check(t, err)
			keys = append(keys, string(entry.Key))
		}
		if strings.Join(keys, " ") != "a1 a2" {
			t.Errorf("scan %d: %v", i, keys)
		}
	}
}

func TestASnapshotKeepsWhatItSees(t *testing.T) {
	db := open(t)
	check(t, db.Put([]byte("k"), []byte("old")))
	s, err := db.Snapshot()
	check(t, err)
	defer s.Close()
	check(t, db.Put([]byte("k"), []byte("new")))
	check(t, db.Compact())
	if v, err := s.Get(db.Family, []byte("k")); err != nil || string(v) != "old" {
		t.Fatal(string(v), err)
	}
}

// After a minute, no attempt follows one that timed out; conflicts are retried regardless.
func TestTransactStopsRetryingTimeoutsAfterAMinute(t *testing.T) {
	db := open(t)
	var passed time.Duration
	began := time.Now()
	defer kingtide.SetClock(func() time.Time { return began.Add(passed) })()
	for kind, want := range map[kingtide.Kind]int{kingtide.ErrLockTimeout: 2, kingtide.ErrBusy: 2, kingtide.ErrConflict: 100} {
		attempts := 0
		err := db.Transact(func(*kingtide.Transaction) error {
			attempts++
			passed += 30 * time.Second
			return &kingtide.Error{Kind: kind, TransientConflict: true}
		})
		if attempts != want || !errors.Is(err, kind) {
			t.Errorf("%v: %d attempts, %v", kind, attempts, err)
		}
	}
}

func TestTransactRollsBackWhatWasPrepared(t *testing.T) {
	db := open(t)
	own := errors.New("no")
	prepare := func(txn *kingtide.Transaction) {
		check(t, txn.Put(db.Family, []byte("k"), nil))
		check(t, txn.Prepare([]byte("xid")))
	}
	inDoubt := func(after string) {
		t.Helper()
		names, err := db.Prepared()
		check(t, err)
		if len(names) != 0 {
			t.Fatalf("after %s, %q is in doubt", after, names)
		}
	}
	if err := db.Transact(func(txn *kingtide.Transaction) error { prepare(txn); return own }); err != own {
		t.Fatal(err)
	}
	inDoubt("an error")
	func() {
		defer func() {
			if recover() != own {
				t.Error("the panic was not passed on")
			}
		}()
		_ = db.Transact(func(txn *kingtide.Transaction) error { prepare(txn); panic(own) })
	}()
	inDoubt("a panic")
	// If the function closes the transaction, its own error is returned.
	if err := db.Transact(func(txn *kingtide.Transaction) error { check(t, txn.Close()); return own }); err != own {
		t.Fatal(err)
	}
	if v, err := db.Get([]byte("k")); v != nil || err != nil {
		t.Fatal(v, err)
	}
}

// Each of many goroutines adds to one counter. Memory is collected meanwhile, so that what is freed too early is noticed.
func TestTransactRepeatsAfterConflicts(t *testing.T) {
	db := open(t)
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	var all sync.WaitGroup
	for range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 25 {
				err := db.Transact(func(txn *kingtide.Transaction) error {
					v, err := txn.Get(db.Family, []byte("count"))
					if err != nil {
						return err
					}
					return txn.Put(db.Family, []byte("count"), append(v, '+'))
				})
				if err != nil {
					t.Error(err)
				}
			}
		}()
	}
	all.Wait()
	close(stop)
	if v, err := db.Get([]byte("count")); err != nil || len(v) != 200 {
		t.Fatal(len(v), err)
	}
	own := errors.New("no")
	if err := db.Transact(func(txn *kingtide.Transaction) error {
		check(t, txn.Put(db.Family, []byte("count"), nil))
		return own
	}); err != own {
		t.Fatal(err)
	}
	if v, _ := db.Get([]byte("count")); len(v) != 200 {
		t.Fatal("an error did not roll back")
	}
}

func TestAConflictNamesItself(t *testing.T) {
	db := open(t)
	a, err := db.Begin(kingtide.TransactionOptions{})
	check(t, err)
	defer a.Close()
	check(t, a.Put(db.Family, []byte("k"), []byte("a")))
	check(t, db.Put([]byte("k"), []byte("b")))
	err = a.Commit()
	var e *kingtide.Error
	if !errors.Is(err, kingtide.ErrConflict) || !errors.As(err, &e) || !e.TransientConflict {
		t.Fatal(err)
	}
}

func TestEntriesExpire(t *testing.T) {
	db := open(t)
	batch := kingtide.NewBatch()
	check(t, batch.PutUntil(db.Family, []byte("past"), []byte("1"), time.Now().Add(-time.Hour)))
	check(t, batch.PutUntil(db.Family, []byte("future"), []byte("2"), time.Now().Add(time.Hour)))
	check(t, db.WriteWith(batch, kingtide.DurabilityPower))
	many, err := db.MultiGet([]byte("past"), []byte("future"))
	if err != nil || many[0] != nil || string(many[1]) != "2" {
		t.Fatal(many, err)
	}
	// Beyond what 64 bits of milliseconds hold, with a sign and without.
	for _, seconds := range []int64{-1 << 60, 1 << 53, 1 << 54, 1 << 60, 1<<63 - 1 - 62135596800} {
		batch := kingtide.NewBatch()
		check(t, batch.PutUntil(db.Family, []byte("k"), []byte("3"), time.Unix(seconds, 999_999_999)))
		check(t, db.Write(batch))
		txn, err := db.Begin(kingtide.TransactionOptions{})
		check(t, err)
		check(t, txn.PutUntil(db.Family, []byte("l"), []byte("4"), time.Unix(seconds, 0)))
		check(t, txn.Commit())
		many, err := db.MultiGet([]byte("k"), []byte("l"))
		if err != nil || (many[0] != nil) != (seconds > 0) || (many[1] != nil) != (seconds > 0) {
			t.Fatal(seconds, many, err)
		}
	}
}

// A scan of a transaction that has ended ends with an error, whether it began before or not.
func TestAScanEndsWithItsTransaction(t *testing.T) {
	db := open(t)
	for n := range 1000 {
		check(t, db.Put(fmt.Appendf(nil, "%04d", n), []byte("v")))
	}
	for _, end := range []func(*kingtide.Transaction) error{(*kingtide.Transaction).Rollback, (*kingtide.Transaction).Commit} {
		for _, at := range []int{0, 1, 30, 500} {
			txn, err := db.Begin(kingtide.TransactionOptions{})
			check(t, err)
			scan := txn.Scan(db.Family, kingtide.Range{})
			if at == 0 {
				check(t, end(txn))
			}
			n := 0
			var last error
			for _, err := range scan {
				if n++; n == at {
					check(t, end(txn))
				}
				last = err
			}
			if !errors.Is(last, kingtide.ErrFinished) || n > at+65 {
				t.Errorf("after %d of %d entries: %v", n, at, last)
			}
			check(t, txn.Close())
		}
	}
}

// A program may let go of the DB and go on with what it made from it.
func TestADatabaseStaysOpenForWhatWasMadeFromIt(t *testing.T) {
	dir := t.TempDir()
	make := func() (*kingtide.Family, *kingtide.Family, *kingtide.Transaction, *kingtide.Snapshot) {
		db, err := kingtide.Open(filepath.Join(dir, "db"), nil)
		check(t, err)
		other, err := db.CreateFamily("other", nil)
		check(t, err)
		check(t, other.Put([]byte("k"), []byte("v")))
		txn, err := db.Begin(kingtide.TransactionOptions{})
		check(t, err)
		check(t, txn.Put(other, []byte("t"), []byte("1")))
		snapshot, err := db.Snapshot()
		check(t, err)
		return db.Family, other, txn, snapshot
	}
	collect := func() {
		for range 5 {
			runtime.GC()
			time.Sleep(time.Millisecond) // finalizers run on a goroutine of their own
		}
	}
	family, other, txn, snapshot := make()
	collect()
	check(t, family.Put([]byte("a"), []byte("1")))
	value, err := other.Get([]byte("k"))
	check(t, err)
	if string(value) != "v" {
		t.Fatalf("%q", value)
	}
	value, err = snapshot.Get(other, []byte("k"))
	check(t, err)
	if string(value) != "v" {
		t.Fatalf("%q", value)
	}
	// And not for longer: without them it is closed, so that it can be opened again.
	family, other = nil, nil
	collect()
	check(t, txn.Commit())
	check(t, txn.Close())
	check(t, snapshot.Close())
	txn, snapshot = nil, nil
	var again *kingtide.DB
	for range 100 {
		collect()
		if again, err = kingtide.Open(filepath.Join(dir, "db"), nil); !errors.Is(err, kingtide.ErrLocked) {
			break
		}
	}
	check(t, err)
	defer again.Close()
	other, err = again.OpenFamily("other")
	check(t, err)
	value, err = other.Get([]byte("t"))
	check(t, err)
	if string(value) != "1" {
		t.Fatalf("%q", value)
	}
}

// Less than a millisecond is not none: that stands for the database's own timeouts, which may be long, or for no end at all.
func TestShortTimesAreRoundedUp(t *testing.T) {
	db := open(t)
	check(t, db.SetOption("lock_timeout_ms", "86400000"))
	first, err := db.Begin(kingtide.TransactionOptions{Locking: true})
	check(t, err)
	defer first.Close()
	check(t, first.Lock(db.Family, []byte("k"), kingtide.LockExclusive))
	second, err := db.Begin(kingtide.TransactionOptions{Locking: true, LockTimeout: 100 * time.Microsecond})
	check(t, err)
	waited := make(chan error)
	go func() { waited <- second.Lock(db.Family, []byte("k"), kingtide.LockExclusive) }()
	select {
	case err := <-waited:
		if !errors.Is(err, kingtide.ErrLockTimeout) {
			t.Fatal(err)
		}
		check(t, second.Close())
	case <-time.After(20 * time.Second):
		t.Fatal("it waits as long as the database's option says")
	}
	short, err := db.Begin(kingtide.TransactionOptions{Timeout: 100 * time.Microsecond})
	check(t, err)
	defer short.Close()
	for range 1000 {
		if _, err = short.Get(db.Family, []byte("k")); err != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if !errors.Is(err, kingtide.ErrExpired) {
		t.Fatal("it has no end:", err)
	}
}
