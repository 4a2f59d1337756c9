package kingtide_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	kingtide "github.com/kingtide/kingtide/go"
)

// A step of the table: conformance/README.md says what it means. Words hold bytes.
type step struct {
	line      int
	operation []string
	answer    []string
}

type tableCase struct {
	file, name string
	steps      []step
}

// Characters up to U+00FF stand for bytes.
func toBytes(t *testing.T, word string) string {
	b := make([]byte, 0, len(word))
	for _, r := range word {
		if r > 0xff {
			t.Fatalf("%q is no byte", r)
		}
		b = append(b, byte(r))
	}
	return string(b)
}

func readTable(t *testing.T) []tableCase {
	files, err := filepath.Glob("../conformance/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatal("no table in ../conformance", err)
	}
	var cases []tableCase
	for _, path := range files {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		lines := bufio.NewScanner(file)
		for number := 1; lines.Scan(); number++ {
			if lines.Text() == "" {
				continue
			}
			var words []string
			if err := json.Unmarshal(lines.Bytes(), &words); err != nil {
				t.Fatalf("%s:%d: %v", path, number, err)
			}
			for i, word := range words {
				words[i] = toBytes(t, word)
			}
			if len(words) == 2 && words[0] == "case" {
				cases = append(cases, tableCase{filepath.Base(path), words[1], nil})
				continue
			}
			arrow := slices.Index(words, "=>")
			last := &cases[len(cases)-1]
			last.steps = append(last.steps, step{number, words[:arrow], words[arrow+1:]})
		}
		if err := lines.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return cases
}

// A case's directory, its database, and the handles by name.
type world struct {
	path         string
	db           *kingtide.DB
	families     map[string]*kingtide.Family
	batches      map[string]*kingtide.Batch
	snapshots    map[string]*kingtide.Snapshot
	transactions map[string]*kingtide.Transaction
}

func newWorld(path string) *world {
	return &world{path, nil, map[string]*kingtide.Family{}, map[string]*kingtide.Batch{}, map[string]*kingtide.Snapshot{},
		map[string]*kingtide.Transaction{}}
}

// free closes what the case opened, the database last.
func (w *world) free() {
	for _, txn := range w.transactions {
		txn.Close()
	}
	for _, snapshot := range w.snapshots {
		snapshot.Close()
	}
	if w.db != nil {
		w.db.Close()
	}
	*w = *newWorld(w.path)
}

type words = []string

func value(v []byte, err error) (words, error) {
	if err != nil || v == nil {
		return words{"none"}, err
	}
	return words{"value", string(v)}, nil
}

func names(all []string, err error) (words, error) { return append(words{"names"}, all...), err }

func one(text string, err error) (words, error) { return words{"text", text}, err }

func fromOptional(word string) []byte {
	if word == "-" {
		return nil
	}
	return []byte(word[1:])
}

func toOptional(v []byte) string {
	if v == nil {
		return "-"
	}
	return "=" + string(v)
}

func bound(word string) kingtide.Bound {
	switch word[0] {
	case '[':
		return kingtide.Included([]byte(word[1:]))
	case '(':
		return kingtide.Excluded([]byte(word[1:]))
	}
	return kingtide.Bound{}
}

func options(words []string) kingtide.Options {
	o := kingtide.Options{}
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		o[name] = value
	}
	return o
}

func number(word string) int {
	n, err := strconv.Atoi(word)
	if err != nil {
		panic(err)
	}
	return n
}

// perform does what a step says. Its error, too, is an answer.
func (w *world) perform(a words) (words, error) {
	for _, try := range []func(words) (words, error, bool){w.manage, w.manageFamilies, w.manageSnapshots, w.batch, w.write, w.read, w.transact} {
		if answer, err, known := try(a); known {
			if answer == nil {
				answer = words{"ok"}
			}
			return answer, err
		}
	}
	panic("no operation " + a[0])
}

func (w *world) manage(a words) (answer words, err error, known bool) {
	switch a[0] {
	case "open":
		w.free()
		if w.db, err = kingtide.Open(w.path, options(a[1:])); err == nil {
			w.families["default"] = w.db.Family
		}
	case "close":
		err = w.db.Close()
	case "flush":
		err = w.db.Flush()
	case "sync":
		err = w.db.Sync()
	case "compact":
		err = w.db.Compact()
	case "set_option":
		err = w.db.SetOption(a[1], a[2])
	default:
		return nil, nil, false
	}
	return answer, err, true
}

func (w *world) manageFamilies(a words) (answer words, err error, known bool) {
	bind := func(f *kingtide.Family, err error) error {
		if err == nil {
			w.families[a[1]] = f
		}
		return err
	}
	switch a[0] {
	case "create_family":
		err = bind(w.db.CreateFamily(a[2], options(a[3:])))
	case "family":
		err = bind(w.db.OpenFamily(a[2]))
	case "clone_family":
		err = bind(w.db.CloneFamily(a[2], a[3]))
	case "drop_family":
		err = w.db.DropFamily(a[1])
	case "rename_family":
		err = w.db.RenameFamily(a[1], a[2])
	case "families":
		answer, err = names(w.db.Families())
	case "family_name":
		answer, err = one(w.families[a[1]].Name())
	case "family_order":
		answer, err = one(w.families[a[1]].Order())
	case "family_option":
		answer, err = one(w.families[a[1]].FamilyOption(a[2]))
	case "set_family_option":
		err = w.families[a[1]].SetFamilyOption(a[2], a[3])
	default:
		return nil, nil, false
	}
	return answer, err, true
}

func (w *world) manageSnapshots(a words) (answer words, err error, known bool) {
	bind := func(s *kingtide.Snapshot, err error) error {
		if err == nil {
			w.snapshots[a[1]] = s
		}
		return err
	}
	switch a[0] {
	case "snapshot":
		err = bind(w.db.Snapshot())
	case "name_snapshot":
		err = bind(w.db.NameSnapshot(a[2]))
	case "named_snapshot":
		err = bind(w.db.NamedSnapshot(a[2]))
	case "drop_named_snapshot":
		err = w.db.DropNamedSnapshot(a[1])
	case "snapshot_names":
		answer, err = names(w.db.SnapshotNames())
	case "free_snapshot":
		err = w.snapshots[a[1]].Close()
		delete(w.snapshots, a[1])
	default:
		return nil, nil, false
	}
	return answer, err, true
}

func (w *world) batch(a words) (answer words, err error, known bool) {
	switch a[0] {
	case "batch":
		w.batches[a[1]] = kingtide.NewBatch()
	case "batch_clear":
		w.batches[a[1]].Clear()
	case "batch_count":
		answer = words{"count", strconv.Itoa(w.batches[a[1]].Len())}
	case "write":
		err = w.db.Write(w.batches[a[1]])
	default:
		return nil, nil, false
	}
	return answer, err, true
}

// target is what a batch and a transaction have in common, and a family without its first argument.
type target interface {
	Put(f *kingtide.Family, key, value []byte) error
	PutTTL(f *kingtide.Family, key, value []byte, ttl time.Duration) error
	PutUntil(f *kingtide.Family, key, value []byte, at time.Time) error
	Delete(f *kingtide.Family, key []byte) error
	SingleDelete(f *kingtide.Family, key []byte) error
	DeleteRange(f *kingtide.Family, start, end []byte) error
	DeletePrefix(f *kingtide.Family, prefix []byte) error
}

// plain writes to the family itself.
type plain struct{}

func (plain) Put(f *kingtide.Family, key, value []byte) error { return f.Put(key, value) }
func (plain) PutTTL(f *kingtide.Family, key, value []byte, ttl time.Duration) error {
	return f.PutTTL(key, value, ttl)
}
func (plain) PutUntil(*kingtide.Family, []byte, []byte, time.Time) error {
	panic("a plain write has no put_until")
}
func (plain) Delete(f *kingtide.Family, key []byte) error       { return f.Delete(key) }
func (plain) SingleDelete(f *kingtide.Family, key []byte) error { return f.SingleDelete(key) }
func (plain) DeleteRange(f *kingtide.Family, start, end []byte) error {
	return f.DeleteRange(start, end)
}
func (plain) DeletePrefix(f *kingtide.Family, prefix []byte) error { return f.DeletePrefix(prefix) }

func (w *world) write(a words) (answer words, err error, known bool) {
	if a[0] == "compare_and_swap" {
		swapped, found, err := w.families[a[1]].CompareAndSwap([]byte(a[2]), fromOptional(a[3]), fromOptional(a[4]))
		if swapped {
			return words{"swapped"}, err, true
		}
		return words{"found", toOptional(found)}, err, true
	}
	if len(a) < 4 {
		return nil, nil, false
	}
	var to target = plain{}
	if batch, ok := w.batches[a[1]]; ok {
		to = batch
	} else if txn, ok := w.transactions[a[1]]; ok {
		to = txn
	}
	f, key := w.families[a[2]], []byte(a[3])
	argument := func(i int) []byte { return []byte(a[i]) }
	switch a[0] {
	case "put":
		err = to.Put(f, key, argument(4))
	case "put_repeated":
		err = to.Put(f, key, []byte(strings.Repeat(a[4], number(a[5]))))
	case "put_ttl":
		err = to.PutTTL(f, key, argument(4), time.Duration(number(a[5]))*time.Millisecond)
	case "put_until":
		err = to.PutUntil(f, key, argument(4), time.UnixMilli(int64(number(a[5]))))
	case "delete":
		err = to.Delete(f, key)
	case "single_delete":
		err = to.SingleDelete(f, key)
	case "delete_range":
		err = to.DeleteRange(f, key, argument(4))
	case "delete_prefix":
		err = to.DeletePrefix(f, key)
	default:
		return nil, nil, false
	}
	return nil, err, true
}

// view is what is read: now, a snapshot, or a transaction.
type view struct {
	get      func(key []byte) ([]byte, error)
	multiGet func(keys ...[]byte) ([][]byte, error)
	scan     func(r kingtide.Range) iter.Seq2[kingtide.Entry, error]
	iterator func(r kingtide.Range) (*kingtide.Iterator, error)
	open     func(key []byte) (*kingtide.Value, error)
}

func (w *world) view(name string, f *kingtide.Family) view {
	if s, ok := w.snapshots[name]; ok {
		return view{
			func(key []byte) ([]byte, error) { return s.Get(f, key) }, nil,
			func(r kingtide.Range) iter.Seq2[kingtide.Entry, error] { return s.Scan(f, r) },
			func(r kingtide.Range) (*kingtide.Iterator, error) { return s.Iterator(f, r) },
			func(key []byte) (*kingtide.Value, error) { return s.OpenValue(f, key) },
		}
	}
	if t, ok := w.transactions[name]; ok {
		return view{
			func(key []byte) ([]byte, error) { return t.Get(f, key) },
			func(keys ...[]byte) ([][]byte, error) { return t.MultiGet(f, keys...) },
			func(r kingtide.Range) iter.Seq2[kingtide.Entry, error] { return t.Scan(f, r) },
			func(r kingtide.Range) (*kingtide.Iterator, error) { return t.Iterator(f, r) }, nil,
		}
	}
	return view{f.Get, f.MultiGet, f.Scan, f.Iterator, f.OpenValue}
}

func entries(scan iter.Seq2[kingtide.Entry, error]) (words, error) {
	all := words{"entries"}
	for entry, err := range scan {
		if err != nil {
			return nil, err
		}
		all = append(all, string(entry.Key), string(entry.Value))
	}
	return all, nil
}

func place(it *kingtide.Iterator, err error, how string, key []byte) (words, error) {
	if err != nil {
		return nil, err
	}
	defer it.Close()
	there := false
	switch how {
	case "first":
		there = it.First()
	case "last":
		there = it.Last()
	case "seek":
		there = it.Seek(key)
	default:
		there = it.SeekForPrev(key)
	}
	if !there {
		return words{"none"}, it.Err()
	}
	value, err := it.Value()
	return words{"entry", string(it.Key()), string(value)}, err
}

func stream(v *kingtide.Value, err error, a words) (words, error) {
	if err != nil || v == nil {
		return words{"none"}, err
	}
	defer v.Close()
	if a[0] == "length" {
		return words{"count", strconv.FormatInt(v.Size(), 10)}, nil
	}
	piece := make([]byte, number(a[5]))
	n, err := v.ReadAt(piece, int64(number(a[4])))
	var failed *kingtide.Error
	if !errors.As(err, &failed) {
		err = nil // io.EOF
	}
	return words{"value", string(piece[:n])}, err
}

func (w *world) read(a words) (answer words, err error, known bool) {
	if len(a) < 3 || w.families[a[2]] == nil {
		return nil, nil, false
	}
	from := w.view(a[1], w.families[a[2]])
	var key []byte
	if len(a) > 3 {
		key = []byte(a[3])
	}
	switch a[0] {
	case "get":
		answer, err = value(from.get(key))
	case "contains":
		found, failed := from.get(key)
		answer, err = words{strconv.FormatBool(found != nil)}, failed
	case "multi_get":
		var keys [][]byte
		for _, word := range a[3:] {
			keys = append(keys, []byte(word))
		}
		found, failed := from.multiGet(keys...)
		answer, err = words{"values"}, failed
		for _, value := range found {
			answer = append(answer, toOptional(value))
		}
	case "range":
		answer, err = entries(from.scan(kingtide.Range{Lower: bound(a[4]), Upper: bound(a[5]), Reverse: a[3] == "backward"}))
	case "prefix":
		answer, err = entries(from.scan(kingtide.Range{Prefix: []byte(a[4]), Reverse: a[3] == "backward"}))
	case "first", "last", "seek", "seek_for_prev":
		it, failed := from.iterator(kingtide.Range{})
		answer, err = place(it, failed, a[0], key)
	case "length", "read_at":
		v, failed := from.open(key)
		answer, err = stream(v, failed, a)
	default:
		return nil, nil, false
	}
	return answer, err, true
}

var levels = map[string]kingtide.Isolation{
	"read-uncommitted": kingtide.ReadUncommitted, "read-committed": kingtide.ReadCommitted,
	"repeatable-read": kingtide.RepeatableRead, "snapshot": kingtide.SnapshotIsolation, "serializable": kingtide.Serializable,
}

func (w *world) begin(a words) error {
	o := kingtide.TransactionOptions{Isolation: levels[a[2]], Locking: slices.Contains(a, "locking"), ReadOnly: slices.Contains(a, "read_only")}
	if slices.Contains(a, "no_wait") {
		o.LockTimeout = kingtide.NoWait
	}
	txn, err := w.db.Begin(o)
	if err == nil {
		if old := w.transactions[a[1]]; old != nil {
			old.Close()
		}
		w.transactions[a[1]] = txn
	}
	return err
}

func (w *world) transact(a words) (answer words, err error, known bool) {
	switch a[0] {
	case "begin":
		err = w.begin(a)
	case "free_transaction":
		err = w.transactions[a[1]].Close()
		delete(w.transactions, a[1])
	case "commit_prepared":
		err = w.db.CommitPrepared([]byte(a[1]))
	case "rollback_prepared":
		err = w.db.RollbackPrepared([]byte(a[1]))
	case "prepared":
		xids, failed := w.db.Prepared()
		answer, err = words{"names"}, failed
		for _, xid := range xids {
			answer = append(answer, string(xid))
		}
	default:
		return w.ofTransaction(a)
	}
	return answer, err, true
}

func (w *world) ofTransaction(a words) (answer words, err error, known bool) {
	txn := w.transactions[a[1]]
	switch a[0] {
	case "commit":
		err = txn.Commit()
	case "rollback":
		err = txn.Rollback()
	case "reset":
		err = txn.Reset()
	case "savepoint":
		err = txn.SetSavepoint(a[2])
	case "rollback_to":
		err = txn.RollbackToSavepoint(a[2])
	case "release":
		err = txn.ReleaseSavepoint(a[2])
	case "refresh":
		err = txn.RefreshSnapshot()
	case "prepare":
		err = txn.Prepare([]byte(a[2]))
	case "get_for_update":
		answer, err = value(txn.GetForUpdate(w.families[a[2]], []byte(a[3])))
	case "get_for_share":
		answer, err = value(txn.GetForShare(w.families[a[2]], []byte(a[3])))
	case "lock":
		mode := kingtide.LockExclusive
		if a[4] == "shared" {
			mode = kingtide.LockShared
		}
		err = txn.Lock(w.families[a[2]], []byte(a[3]), mode)
	default:
		return nil, nil, false
	}
	return answer, err, true
}

func show(all words) string {
	var shown []string
	for _, word := range all {
		shown = append(shown, fmt.Sprintf("%+q", word))
	}
	return strings.Join(shown, " ")
}

func TestConformance(t *testing.T) {
	cases, steps := readTable(t), 0
	for _, c := range cases {
		steps += len(c.steps)
	}
	for _, how := range []string{"plain", "flushed"} {
		failures := 0
		for _, c := range cases {
			t.Run(how+"/"+c.file+"/"+c.name, func(t *testing.T) {
				w := newWorld(filepath.Join(t.TempDir(), "db"))
				defer w.free()
				for _, s := range c.steps {
					if how == "flushed" && w.db != nil {
						_ = w.db.Flush() // it may be closed
					}
					answer, err := w.perform(s.operation)
					if err != nil {
						answer = words{"error", errors.Unwrap(err).Error()}
					}
					if !slices.Equal(answer, s.answer) {
						failures++
						t.Fatalf("%s:%d: %s => %s, but it is %s (%v)", c.file, s.line, show(s.operation), show(s.answer), show(answer), err)
					}
				}
			})
		}
		t.Logf("%s: %d cases, %d steps, %d failures", how, len(cases), steps, failures)
		fmt.Printf("conformance, %s: %d cases, %d steps, %d failures\n", how, len(cases), steps, failures)
	}
}
