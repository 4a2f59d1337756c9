/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "engine.h"

#include <kingtide.h>

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>

#include "call.h"
#include "families.h"

namespace kingtide {
namespace {

kingtide_db *db;
/** Held by readers outside of statements on tables (shared), and when the database is closed (exclusive). */
std::shared_mutex looking;
kingtide_family *dictionary;

int32_t of(Durability durability) {
  return durability == Durability::Power ? KINGTIDE_DURABILITY_POWER : KINGTIDE_DURABILITY_PROCESS;
}

kingtide_family *family(Space space, Slice key) { return space == Space::Dictionary ? dictionary : Families::of(key); }

kingtide_bound included(Slice key) {
  kingtide_bound b = {};
  b.kind = key.size ? KINGTIDE_INCLUDED : KINGTIDE_UNBOUNDED;
  b.key = key.data;
  b.key_len = key.size;
  return b;
}

kingtide_bound excluded(Slice key) {
  kingtide_bound b = included(key);
  if (key.size) b.kind = KINGTIDE_EXCLUDED;
  return b;
}

kingtide_read_options range(Slice from, Slice to) {
  kingtide_read_options o = {};
  o.size = sizeof o;
  o.lower = included(from);
  o.upper = excluded(to);
  return o;
}

/** Values of up to this many bytes are copied, and their memory is reused. */
constexpr size_t SHORT_VALUE = 64 * 1024;

Engine::WaitHooks wait_hooks;

/** While it lives, this thread makes a call that takes locks, and may have to wait for them. */
class TakesLocks {
 public:
  TakesLocks() { takes_ = true; }
  ~TakesLocks() {
    takes_ = false;
    if (std::exchange(waited_, false)) Waits::end();
  }
  TakesLocks(const TakesLocks &) = delete;

  static void note_wait(void *context, uint64_t waiter, const uint64_t *holders, size_t count) {
    if (takes_ && !std::exchange(waited_, true)) Waits::begin(WaitFor::Lock);
    wait_hooks.waits(context, waiter, holders, count);
  }

 private:
  static inline thread_local bool takes_ = false, waited_ = false;
};

/** While it lives, this thread waits for the disk, if what the call writes must survive a power cut. */
class AwaitsDisk {
 public:
  explicit AwaitsDisk(Durability durability = Durability::Power) {
    if (durability == Durability::Power) waits_.emplace(WaitFor::Disk);
  }

 private:
  std::optional<Waits> waits_;
};

}  // namespace

thread_local unsigned Waits::depth_ = 0;

void Waits::begin(WaitFor what) {
  if (depth_++ == 0 && wait_hooks.wait_begins) wait_hooks.wait_begins(what);
}

void Waits::end() {
  if (--depth_ == 0 && wait_hooks.wait_ended) wait_hooks.wait_ended();
}

std::unique_lock<std::mutex> Waits::lock(std::mutex &mutex) {
  std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  if (lock) return lock;
  const Waits waits(WaitFor::Lock);
  lock.lock();
  return lock;
}

thread_local std::string Call::message_;

const char *last_message() { return Call::message_.c_str(); }

Outcome failed(Outcome outcome, const std::string &what) {
  Call::message_ = what;
  return outcome;
}

Batch::Batch() : batch_(kingtide_batch_new()) {}
Batch::~Batch() { kingtide_batch_free(batch_); }

void Batch::put(Space space, Slice key, Slice value) {
  Call call;
  const Outcome o = call.done(kingtide_batch_put(batch_, family(space, key), key.data, key.size, value.data, value.size, &call));
  if (first_error_ == Outcome::Ok) first_error_ = o;
}

void Batch::erase(Space space, Slice key) {
  Call call;
  const Outcome o = call.done(kingtide_batch_delete(batch_, family(space, key), key.data, key.size, &call));
  if (first_error_ == Outcome::Ok) first_error_ = o;
}

void Batch::erase_range(Space space, Slice from, Slice to) {
  Call call;
  const Outcome o =
      call.done(kingtide_batch_delete_range(batch_, family(space, from), from.data, from.size, to.data, to.size, &call));
  if (first_error_ == Outcome::Ok) first_error_ = o;
}

SortedFile::~SortedFile() {
  if (!writer_) return;
  kingtide_sorted_writer_free(writer_);
  unlink(path_.c_str());
}

Outcome SortedFile::put(Slice key, Slice value) {
  Call call;
  if (!writer_) {
    family_ = Families::of(key);
    const Outcome o = call.done(kingtide_sorted_writer_create(path_.c_str(), family_, &writer_, &call));
    if (o != Outcome::Ok) return o;
  }
  return call.done(kingtide_sorted_writer_put(writer_, key.data, key.size, value.data, value.size, &call));
}

Outcome SortedFile::ingest() {
  if (!writer_) return Outcome::Ok;
  const AwaitsDisk awaits;
  Call call;
  const Outcome o = call.done(kingtide_sorted_writer_finish(writer_, nullptr, &call));
  if (o != Outcome::Ok) return o;
  const kingtide_ingest_file file = {family_, path_.c_str()};
  kingtide_ingest_options options = {};
  options.size = sizeof options;
  Call second;
  return second.done(kingtide_db_ingest(db, &file, 1, &options, nullptr, &second));
}

void Iter::free() {
  kingtide_iter_free(iter_);
  iter_ = nullptr;
  only_keys_ = false;
  placed(false);
}

bool Iter::placed(bool valid) {
  taken_ = 0;
  take_ = FIRST_TAKEN;
  return valid_ = valid;
}

bool Iter::seek(Slice key) { return placed(kingtide_iter_seek(iter_, key.data, key.size)); }
bool Iter::seek_for_prev(Slice key) { return placed(kingtide_iter_seek_for_prev(iter_, key.data, key.size)); }
bool Iter::first() { return placed(kingtide_iter_seek_to_first(iter_)); }
bool Iter::last() { return placed(kingtide_iter_seek_to_last(iter_)); }

bool Iter::take_more(bool forward) {
  static_assert(sizeof(Entry) == sizeof(kingtide_entry) && sizeof(size_t) == 8);
  static_assert(offsetof(Entry, key) == offsetof(kingtide_entry, key) && offsetof(Slice, size) == 8);
  static_assert(offsetof(Entry, value) == offsetof(kingtide_entry, value));
  static_assert(offsetof(Entry, expires) == offsetof(kingtide_entry, expires_at_ms));
  constexpr size_t MOST_BYTES = 32 * 1024;
  if (!valid_) return false;
  if (only_keys_) return valid_ = forward ? kingtide_iter_next(iter_) : kingtide_iter_prev(iter_);
  if (taken_ && forward != forward_) {  // the engine's iterator is ahead of this one: move it back
    const std::string here = key().str();
    // If the entry has expired meanwhile, it may have been the first or the last one.
    if (!(forward ? seek_for_prev(here) : seek(here))) return forward ? first() : last();
  }
  if (!entries_) entries_.reset(new Entry[MOST_TAKEN]);
  forward_ = forward;
  at_ = 0;
  taken_ = static_cast<unsigned>(
      kingtide_iter_walk(iter_, forward, reinterpret_cast<kingtide_entry *>(entries_.get()), take_, MOST_BYTES));
  take_ = std::min(4 * take_, MOST_TAKEN);
  return valid_ = taken_ != 0;
}

Slice Iter::engine_key() const {
  size_t size = 0;
  const uint8_t *data = kingtide_iter_key(iter_, &size);
  return Slice(data, size);
}

Outcome Iter::engine_value(Slice *value) {
  Call call;
  return call.done(kingtide_iter_value(iter_, &value->data, &value->size, &call));
}

uint64_t Iter::expires() const { return taken_ ? entries_[at_].expires : kingtide_iter_expires_at_ms(iter_); }

Outcome Iter::status() {
  Call call;
  return call.done(kingtide_iter_status(iter_, &call));
}

Outcome Txn::begin(Level level, int64_t lock_timeout_ms, Durability durability) {
  written_bytes_.store(0, std::memory_order_relaxed);
  writes_ = 0;
  takes_no_pieces = false;
  if (txn_ && level == level_) return begin_again(lock_timeout_ms, durability);
  Call call;
  close();
  kingtide_txn_options o = {};
  o.size = sizeof o;
  o.isolation = level == Level::ReadUncommitted ? KINGTIDE_READ_UNCOMMITTED : KINGTIDE_REPEATABLE_READ;
  o.locking = 1;
  o.lock_timeout_ms = lock_timeout_ms;
  o.durability = of(durability);
  level_ = level;
  lock_timeout_ = lock_timeout_ms;
  durability_ = durability;
  return call.done(kingtide_txn_begin(db, &o, &txn_, &call));
}

/** Begins a transaction in the object of the last one, which costs a fraction of what a new object does. */
Outcome Txn::begin_again(int64_t lock_timeout_ms, Durability durability) {
  Call call;
  free_ticket();
  refuse_interrupts();
  const Outcome o = call.done(kingtide_txn_reset(txn_, &call));
  if (o != Outcome::Ok) {
    close();
    return o;
  }
  set_lock_timeout(lock_timeout_ms);
  set_durability(durability);
  return Outcome::Ok;
}

void Txn::free_ticket() {
  if (ticket_) kingtide_ticket_free(ticket_);
  ticket_ = nullptr;
}

void Txn::close() {
  free_ticket();
  refuse_interrupts();
  if (txn_) kingtide_txn_free(txn_);
  txn_ = nullptr;
}

Txn::~Txn() { close(); }

uint64_t Txn::id() const { return kingtide_txn_id(txn_); }

void Value::clear() {
  if (value_) kingtide_value_free(value_);
  value_ = nullptr;
}

Slice Value::bytes() const { return Slice(kingtide_value_data(value_), kingtide_value_len(value_)); }

void ValueReader::close() {
  kingtide_reader_free(reader_);
  reader_ = nullptr;
}

uint64_t ValueReader::size() const { return kingtide_reader_len(reader_); }

Outcome ValueReader::read(uint64_t offset, size_t size, std::string *bytes) {
  Call call;
  size_t got = 0;
  bytes->resize(size);
  const Outcome o = call.done(kingtide_reader_read(reader_, offset, &(*bytes)[0], size, &got, &call));
  bytes->resize(o == Outcome::Ok ? got : 0);
  return o;
}

Outcome ValueWriter::begin(Slice key) {
  Call call;
  close();
  return call.done(kingtide_family_value_writer(Families::of(key), &writer_, &call));
}

Outcome ValueWriter::write(Slice piece) {
  Call call;
  return call.done(kingtide_value_writer_write(writer_, piece.data, piece.size, &call));
}

void ValueWriter::close() {
  kingtide_value_writer_free(writer_);
  writer_ = nullptr;
}

Outcome Txn::get(Slice key, Value *value) {
  Call call;
  if (!value->value_) value->value_ = kingtide_value_new();
  const Outcome o = call.done(kingtide_txn_get(txn_, Families::of(key), key.data, key.size, value->value_, &call));
  return o == Outcome::Ok && !kingtide_value_is_present(value->value_) ? Outcome::NotFound : o;
}

Outcome Txn::get_locked(Slice key, LockMode mode, Value *value) {
  Call call;
  if (!value->value_) value->value_ = kingtide_value_new();
  lock_calls_++;
  const TakesLocks takes;
  auto *read = mode == LockMode::Exclusive ? kingtide_txn_get_for_update : kingtide_txn_get_for_share;
  const Outcome o = call.done(read(txn_, Families::of(key), key.data, key.size, value->value_, &call));
  return o == Outcome::Ok && !kingtide_value_is_present(value->value_) ? Outcome::NotFound : o;
}

Outcome Txn::contains(Slice key) {
  Call call;
  bool found = false;
  const Outcome o = call.done(kingtide_txn_contains(txn_, Families::of(key), key.data, key.size, &found, &call));
  return o == Outcome::Ok && !found ? Outcome::NotFound : o;
}

Outcome Txn::contains_locked(Slice key, LockMode mode) {
  Call call;
  bool found = false;
  lock_calls_++;
  const TakesLocks takes;
  auto *look = mode == LockMode::Exclusive ? kingtide_txn_contains_for_update : kingtide_txn_contains_for_share;
  const Outcome o = call.done(look(txn_, Families::of(key), key.data, key.size, &found, &call));
  return o == Outcome::Ok && !found ? Outcome::NotFound : o;
}

Outcome Txn::open_value(Slice key, ValueReader *reader) {
  Call call;
  reader->close();
  const Outcome o = call.done(kingtide_txn_get_reader(txn_, Families::of(key), key.data, key.size, &reader->reader_, &call));
  return o == Outcome::Ok && !reader->reader_ ? Outcome::NotFound : o;
}

Outcome Txn::open_value_locked(Slice key, LockMode mode, ValueReader *reader) {
  Call call;
  reader->close();
  lock_calls_++;
  const TakesLocks takes;
  auto *open = mode == LockMode::Exclusive ? kingtide_txn_get_reader_for_update : kingtide_txn_get_reader_for_share;
  const Outcome o = call.done(open(txn_, Families::of(key), key.data, key.size, &reader->reader_, &call));
  return o == Outcome::Ok && !reader->reader_ ? Outcome::NotFound : o;
}

Outcome Txn::get(Slice key, std::string *value) {
  const Outcome o = get(key, &value_);
  if (o == Outcome::Ok) assign(*value, value_.bytes());
  if (value_.bytes().size > SHORT_VALUE) value_.clear();
  return o;
}

Outcome Txn::get_locked(Slice key, LockMode mode, std::string *value) {
  const Outcome o = get_locked(key, mode, &value_);
  if (o == Outcome::Ok) assign(*value, value_.bytes());
  if (value_.bytes().size > SHORT_VALUE) value_.clear();
  return o;
}

Outcome Txn::put(Slice key, Slice value, uint64_t expires) {
  Call call;
  count_written(key.size + value.size);
  lock_calls_++;
  const TakesLocks takes;
  if (expires)
    return call.done(
        kingtide_txn_put_until(txn_, Families::of(key), key.data, key.size, value.data, value.size, expires, &call));
  return call.done(kingtide_txn_put(txn_, Families::of(key), key.data, key.size, value.data, value.size, &call));
}

Outcome Txn::put(Slice key, ValueWriter *written) {
  Call call;
  count_written(key.size + kingtide_value_writer_len(written->writer_));
  lock_calls_++;
  const TakesLocks takes;
  kingtide_staged_value *value = nullptr;
  Outcome o = call.done(kingtide_value_writer_finish(written->writer_, &value, &call));
  if (o == Outcome::Ok) {
    Call second;
    o = second.done(kingtide_txn_put_staged(txn_, Families::of(key), key.data, key.size, value, 0, &second));
  }
  kingtide_staged_value_free(value);
  return o;
}

Outcome Txn::erase(Slice key) {
  Call call;
  count_written(key.size);
  lock_calls_++;
  const TakesLocks takes;
  return call.done(kingtide_txn_delete(txn_, Families::of(key), key.data, key.size, &call));
}

Outcome Txn::lock_range(Slice from, Slice to, LockMode mode) {
  Call call;
  lock_calls_++;
  const TakesLocks takes;
  const kingtide_bound lower = included(from), upper = excluded(to);
  return call.done(kingtide_txn_lock_range(txn_, Families::of(from), &lower, &upper,
                                           mode == LockMode::Exclusive ? KINGTIDE_LOCK_EXCLUSIVE : KINGTIDE_LOCK_SHARED,
                                           &call));
}

Outcome Txn::iterate(Slice from, Slice to, bool newest, Iter *iter) {
  Call call;
  iter->close();
  kingtide_read_options o = range(from, to);
  o.newest = newest;
  return call.done(kingtide_txn_iter(txn_, Families::of(from), &o, &iter->iter_, &call));
}

Outcome Txn::get_newest(Slice key, std::string *value) {
  Iter it;
  Slice found;
  Outcome o = iterate(key, key.str() + std::string(1, '\0'), true, &it);
  if (o != Outcome::Ok) return o;
  if (!it.first()) return (o = it.status()) == Outcome::Ok ? Outcome::NotFound : o;
  if ((o = it.value(&found)) == Outcome::Ok) assign(*value, found);
  return o;
}

void Txn::unlock_last() {
  Call call;
  call.done(kingtide_txn_unlock_last(txn_, nullptr, &call));
}

Outcome Txn::refresh_snapshot() {
  Call call;
  return call.done(kingtide_txn_refresh_snapshot(txn_, &call));
}

uint64_t Txn::snapshot_sequence() const { return kingtide_txn_snapshot_sequence(txn_); }

Outcome Txn::changed_since_snapshot(Slice key, bool *changed) {
  Call call;
  return call.done(kingtide_txn_changed_since_snapshot(txn_, Families::of(key), key.data, key.size, changed, &call));
}

void Txn::set_lock_timeout(int64_t ms) {
  if (ms == lock_timeout_) return;
  Call call;
  lock_timeout_ = ms;
  call.done(kingtide_txn_set_lock_timeout(txn_, ms, &call));
}

void Txn::set_durability(Durability durability) {
  if (durability == durability_) return;
  Call call;
  durability_ = durability;
  call.done(kingtide_txn_set_durability(txn_, of(durability), &call));
}

Outcome Txn::set_savepoint(const char *name) {
  Call call;
  return call.done(kingtide_txn_set_savepoint(txn_, name, &call));
}

Outcome Txn::rollback_to_savepoint(const char *name) {
  Call call;
  return call.done(kingtide_txn_rollback_to_savepoint(txn_, name, &call));
}

Outcome Txn::release_savepoint(const char *name) {
  Call call;
  return call.done(kingtide_txn_release_savepoint(txn_, name, &call));
}

Outcome Txn::prepare(Slice xid) {
  Call call;
  const AwaitsDisk awaits(durability_);
  return call.done(kingtide_txn_prepare(txn_, xid.data, xid.size, &call));
}

Outcome Txn::commit_ordered() {
  Call call;
  return call.done(kingtide_txn_commit_ordered(txn_, &ticket_, &call));
}

Outcome Txn::wait_durable() {
  Call call;
  if (!ticket_) return Outcome::Ok;
  const AwaitsDisk awaits(durability_);
  return call.done(kingtide_ticket_wait(ticket_, &call));
}

Outcome Txn::commit() {
  Call call;
  const AwaitsDisk awaits(written_bytes() ? durability_ : Durability::Process);
  return call.done(kingtide_txn_commit(txn_, nullptr, &call));
}

Outcome Txn::rollback() {
  Call call;
  return call.done(kingtide_txn_rollback(txn_, &call));
}

Outcome Txn::allow_interrupts() {
  if (handle_) return Outcome::Ok;
  Call call;
  return call.done(kingtide_txn_get_handle(txn_, &handle_, &call));
}

void Txn::refuse_interrupts() {
  if (!handle_) return;
  kingtide_txn_handle_free(handle_);
  handle_ = nullptr;
}

void Txn::interrupt() {
  Call call;
  if (handle_) call.done(kingtide_txn_handle_interrupt(handle_, &call));
}

void Txn::clear_interrupt() { kingtide_txn_clear_interrupt(txn_); }

Outcome Engine::open(const std::string &path, const std::vector<Option> &options) {
  Call call;
  kingtide_options *o = kingtide_options_new();
  Outcome outcome = Outcome::Ok;
  for (const Option &option : options)
    if (outcome == Outcome::Ok) outcome = call.done(kingtide_options_set(o, option.name, option.value.c_str(), &call));
  if (outcome == Outcome::Ok) outcome = call.done(kingtide_db_open(path.c_str(), o, &db, &call));
  if (outcome == Outcome::Ok) outcome = call.done(kingtide_db_default_family(db, &dictionary, &call));
  if (outcome == Outcome::Ok) outcome = Families::open(db, o);
  kingtide_options_free(o);
  return outcome;
}

bool Engine::is_open() { return db != nullptr; }

void Engine::close() {
  Call call;
  std::unique_lock<std::shared_mutex> guard(looking);
  if (!db) return;
  Families::close();
  kingtide_family_free(dictionary);
  dictionary = nullptr;
  call.done(kingtide_db_close(db, &call));
  kingtide_db_free(db);
  db = nullptr;
}

void Engine::with_handle(const std::function<void(kingtide_db *)> &use) {
  std::shared_lock<std::shared_mutex> guard(looking);
  if (db) use(db);
}

Outcome Engine::get(Slice key, std::string *value) {
  Call call;
  kingtide_value *v = kingtide_value_new();
  Outcome o = call.done(kingtide_family_get(dictionary, key.data, key.size, v, &call));
  if (o == Outcome::Ok && !kingtide_value_is_present(v)) o = Outcome::NotFound;
  if (o == Outcome::Ok) assign(*value, Slice(kingtide_value_data(v), kingtide_value_len(v)));
  kingtide_value_free(v);
  return o;
}

Outcome Engine::write(Batch &batch, Durability durability) {
  Call call;
  if (batch.first_error_ != Outcome::Ok) return batch.first_error_;
  kingtide_write_options o = {};
  o.size = sizeof o;
  o.durability = of(durability);
  const TakesLocks takes;
  const AwaitsDisk awaits(durability);
  return call.done(kingtide_db_write(db, batch.batch_, &o, nullptr, &call));
}

Outcome Engine::iterate(Space space, Slice from, Slice to, Iter *iter) {
  Call call;
  iter->close();
  const kingtide_read_options o = range(from, to);
  return call.done(kingtide_family_iter(family(space, from), &o, &iter->iter_, &call));
}

Outcome Engine::iterate(Slice from, Slice to, const kingtide_snapshot *snapshot, Iter *iter) {
  Call call;
  iter->close();
  kingtide_read_options o = range(from, to);
  o.snapshot = snapshot;
  return call.done(kingtide_family_iter(Families::of(from), &o, &iter->iter_, &call));
}

Outcome Engine::sync() {
  Call call;
  const AwaitsDisk awaits;
  return call.done(kingtide_db_sync(db, &call));
}

uint64_t Engine::count(Slice from, Slice to, uint64_t most) {
  Call call;
  const kingtide_bound lower = included(from), upper = excluded(to);
  uint64_t rows = 0;
  bool exact;
  return call.done(kingtide_family_count_up_to(Families::of(from), &lower, &upper, most, &rows, &exact, &call)) ==
                 Outcome::Ok
             ? rows
             : 1;
}

uint64_t Engine::estimate_bytes(Slice from, Slice to) {
  Call call;
  const kingtide_bound lower = included(from), upper = excluded(to);
  kingtide_range_stats stats = {};
  stats.size = sizeof stats;
  call.done(kingtide_family_range_stats(Families::of(from), &lower, &upper, &stats, &call));
  return stats.disk_bytes + stats.value_log_bytes + stats.memtable_bytes;
}

uint64_t Engine::estimate_rows(Slice from, Slice to) {
  Call call;
  const kingtide_bound lower = included(from), upper = excluded(to);
  kingtide_range_stats stats = {};
  stats.size = sizeof stats;
  call.done(kingtide_family_range_stats(Families::of(from), &lower, &upper, &stats, &call));
  return stats.rows;
}

namespace {
struct Differ {
  Engine::FirstDifference differ;
  void *context;
};

size_t call_differ(void *context, const uint8_t *a, size_t a_len, const uint8_t *b, size_t b_len) {
  auto *d = static_cast<Differ *>(context);
  return d->differ(d->context, Slice(a, a_len), Slice(b, b_len));
}
}  // namespace

Outcome Engine::cardinality(Slice from, Slice to, size_t places, FirstDifference differ, void *context,
                            std::vector<uint64_t> *distinct, uint64_t *rows) {
  Call call;
  const kingtide_bound lower = included(from), upper = excluded(to);
  Differ d = {differ, context};
  bool exact;
  return call.done(kingtide_family_cardinality(Families::of(from), &lower, &upper, distinct->size(), places, call_differ, &d,
                                               distinct->data(), rows, &exact, &call));
}

uint64_t Engine::statistic(const char *name) {
  Call call;
  kingtide_stats *stats = nullptr;
  uint64_t value = 0;
  if (!db || call.done(kingtide_db_stats(db, &stats, &call)) != Outcome::Ok) return 0;
  kingtide_stats_value(stats, name, &value);
  kingtide_stats_free(stats);
  return value;
}

std::vector<Engine::Statistic> Engine::statistics() {
  Call call;
  std::vector<Statistic> all;
  kingtide_stats *stats = nullptr;
  if (!db || call.done(kingtide_db_stats(db, &stats, &call)) != Outcome::Ok) return all;
  kingtide_stat stat = {};
  stat.size = sizeof stat;
  for (size_t i = 0; kingtide_stats_get(stats, i, &stat); i++) all.push_back({stat.name, stat.value});
  kingtide_stats_free(stats);
  return all;
}

std::string Engine::report() {
  Call call;
  kingtide_stats *stats = nullptr;
  kingtide_text *text = nullptr;
  std::string report;
  if (!db || call.done(kingtide_db_stats(db, &stats, &call)) != Outcome::Ok) return report;
  if (call.done(kingtide_stats_text(stats, &text, &call)) == Outcome::Ok)
    report.assign(kingtide_text_data(text), kingtide_text_len(text));
  kingtide_text_free(text);
  kingtide_stats_free(stats);
  return report;
}

void Engine::watch_waits(const WaitHooks &watching) {
  wait_hooks = watching;
  kingtide_lock_hooks hooks = {};
  hooks.size = sizeof hooks;
  hooks.waits = &TakesLocks::note_wait;
  hooks.deadlock = watching.deadlock;
  Call call;
  call.done(kingtide_db_set_lock_hooks(db, &hooks, &call));
}

Outcome Engine::checkpoint(const std::string &directory) {
  Call call;
  if (!db) return Outcome::Other;
  const AwaitsDisk awaits;
  return call.done(kingtide_db_checkpoint(db, directory.c_str(), nullptr, &call));
}

Outcome Engine::flush() {
  Call call;
  const AwaitsDisk awaits;
  return call.done(kingtide_db_flush(db, &call));
}

Outcome Engine::compact(Slice from, Slice to) {
  Call call;
  const AwaitsDisk awaits;
  const kingtide_bound lower = included(from), upper = excluded(to);
  return call.done(kingtide_family_compact_range(Families::of(from), &lower, &upper, &call));
}

Outcome Engine::reclaim(Slice from, Slice to) {
  Call call;
  return call.done(kingtide_family_reclaim_range(Families::of(from), from.data, from.size, to.data, to.size, &call));
}

Outcome Engine::set_option(const char *name, const char *value) {
  Call call;
  return call.done(kingtide_db_set_option(db, name, value, &call));
}

std::vector<std::string> Engine::prepared() {
  Call call;
  std::vector<std::string> names;
  kingtide_prepared_list *list = nullptr;
  if (call.done(kingtide_db_prepared(db, &list, &call)) != Outcome::Ok) return names;
  for (size_t i = 0; i < kingtide_prepared_list_count(list); i++) {
    kingtide_prepared_info info = {};
    info.size = sizeof info;
    if (kingtide_prepared_list_get(list, i, &info))
      names.emplace_back(reinterpret_cast<const char *>(info.xid), info.xid_len);
  }
  kingtide_prepared_list_free(list);
  return names;
}

Outcome Engine::commit_prepared(Slice xid) {
  Call call;
  const AwaitsDisk awaits;
  return call.done(kingtide_db_commit_prepared(db, xid.data, xid.size, nullptr, &call));
}

Outcome Engine::rollback_prepared(Slice xid) {
  Call call;
  const AwaitsDisk awaits;
  return call.done(kingtide_db_rollback_prepared(db, xid.data, xid.size, &call));
}

}  // namespace kingtide
