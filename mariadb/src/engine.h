/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "../codec/slice.h"

struct kingtide_db;
struct kingtide_family;
struct kingtide_txn;
struct kingtide_txn_handle;
struct kingtide_iter;
struct kingtide_batch;
struct kingtide_value;
struct kingtide_reader;
struct kingtide_ticket;
struct kingtide_sorted_writer;
struct kingtide_value_writer;
struct kingtide_snapshot;
struct kingtide_deadlock;

/** The engine's C API as this plugin uses it: handles that free themselves, and one type for all outcomes. */
namespace kingtide {

enum class Outcome : int {
  Ok = 0,
  NotFound,
  Conflict,
  /** Another transaction has a lock, and the transaction does not wait. */
  LockHeld,
  Deadlock,
  LockTimeout,
  /** The wait for a lock was interrupted. */
  Interrupted,
  /** Ended from outside: aborted, expired. */
  Ended,
  /** Transactions hold too much memory. */
  Busy,
  NoSpace,
  Corruption,
  /** Writes are refused. */
  ReadOnly,
  Other
};

/** The message of this thread's last failed call. Valid until the next failed call. */
const char *last_message();
/** Returns `outcome` and sets the message for last_message: for failures outside the engine. */
Outcome failed(Outcome outcome, const std::string &what);

enum class Level { ReadUncommitted, RepeatableRead };
/** What a commit survives: the death of the process, or a power cut. */
enum class Durability { Process, Power };
/** A lock timeout: do not wait. */
constexpr int64_t NO_WAIT = -1;
enum class LockMode { Shared, Exclusive };
/** Dictionary: the tables. Rows: the entries of all indexes; the index number determines the family. */
enum class Space { Dictionary, Rows };

/** What a thread waits for: a lock, of a row or within this plugin, or the disk. */
enum class WaitFor { Lock, Disk };

/**
  While it lives, this thread waits, or may have to, as Engine::watch_waits announces. The calls below that can take long announce this themselves.
  A nested wait counts as part of the outer one.
*/
class Waits {
 public:
  explicit Waits(WaitFor what) { begin(what); }
  ~Waits() { end(); }
  Waits(const Waits &) = delete;
  /** The same for a wait that ends elsewhere, on the same thread. */
  static void begin(WaitFor what);
  static void end();
  /** Locks a mutex whose holder may wait for the disk. */
  static std::unique_lock<std::mutex> lock(std::mutex &mutex);

 private:
  static thread_local unsigned depth_;
};

/** Writes that take effect together. */
class Batch {
 public:
  Batch();
  ~Batch();
  Batch(const Batch &) = delete;
  void put(Space space, Slice key, Slice value);
  void erase(Space space, Slice key);
  void erase_range(Space space, Slice from, Slice to);

 private:
  friend class Engine;
  kingtide_batch *batch_;
  Outcome first_error_ = Outcome::Ok;
};

/** A file of sorted entries that becomes part of the rows' family at once. It is removed with the object. */
class SortedFile {
 public:
  explicit SortedFile(const std::string &path) : path_(path) {}
  ~SortedFile();
  SortedFile(const SortedFile &) = delete;
  Outcome put(Slice key, Slice value);
  /** The result survives a power cut. A no-op if nothing was put. */
  Outcome ingest();

 private:
  const std::string path_;
  kingtide_sorted_writer *writer_ = nullptr;
  kingtide_family *family_ = nullptr;
};

/**
  An iterator over entries. While it continues in one direction, it fetches several entries from the engine at once, and more each
  time. This is not visible to the caller, because the iterator shows the state at the time when it was opened.
*/
class Iter {
 public:
  Iter() = default;
  ~Iter() { close(); }
  Iter(const Iter &) = delete;
  void close() {
    if (iter_) free();
  }
  bool open() const { return iter_ != nullptr; }
  /** From now on, reads a value only when `value` is called: for long values, few of which are needed. */
  void only_keys() { only_keys_ = true; }
  bool seek(Slice key);
  bool seek_for_prev(Slice key);
  bool first();
  bool last();
  bool next() { return go(true); }
  bool prev() { return go(false); }
  bool valid() const { return valid_; }
  /** Key and value are valid until the iterator moves. */
  Slice key() const { return taken_ ? entries_[at_].key : engine_key(); }
  Outcome value(Slice *value) {
    if (!taken_) return engine_value(value);
    *value = entries_[at_].value;
    return Outcome::Ok;
  }
  /** When the entry expires, in milliseconds since 1970; 0 for never. */
  uint64_t expires() const;
  /** Why the iterator is not valid: Ok if it is at the end. */
  Outcome status();

 private:
  friend class Engine;
  friend class Txn;
  /** Has the layout of the engine's kingtide_entry. */
  struct Entry {
    Slice key, value;
    uint64_t expires;
  };
  static constexpr unsigned FIRST_TAKEN = 2, MOST_TAKEN = 64;

  bool go(bool forward) {
    if (taken_ && forward == forward_ && at_ + 1 < taken_) {
      at_++;
      return true;
    }
    return take_more(forward);
  }
  void free();
  bool placed(bool valid);
  bool take_more(bool forward);
  Slice engine_key() const;
  Outcome engine_value(Slice *value);

  kingtide_iter *iter_ = nullptr;
  bool valid_ = false, forward_ = true, only_keys_ = false;
  /** Entries that were fetched. The position is `at_`; if `taken_` is 0, it is that of the engine's iterator. */
  std::unique_ptr<Entry[]> entries_;
  unsigned at_ = 0, taken_ = 0, take_ = FIRST_TAKEN;
};

/** A value that was read and is still in the engine's memory, not copied. */
class Value {
 public:
  Value() = default;
  ~Value() { clear(); }
  Value(const Value &) = delete;
  /** Gives the memory back. */
  void clear();
  void swap(Value &other) { std::swap(value_, other.value_); }
  /** Valid until the object is used for another read or cleared. */
  Slice bytes() const;

 private:
  friend class Txn;
  kingtide_value *value_ = nullptr;
};

/** A value that is read in pieces. */
class ValueReader {
 public:
  ValueReader() = default;
  ~ValueReader() { close(); }
  ValueReader(const ValueReader &) = delete;
  void close();
  uint64_t size() const;
  /** Replaces `bytes` by `size` bytes of the value from `offset` on, or by fewer at its end. */
  Outcome read(uint64_t offset, size_t size, std::string *bytes);

 private:
  friend class Txn;
  kingtide_reader *reader_ = nullptr;
};

/** A value that is written in pieces: it goes to a file from a megabyte on, so that no more of it is in memory. */
class ValueWriter {
 public:
  ValueWriter() = default;
  ~ValueWriter() { close(); }
  ValueWriter(const ValueWriter &) = delete;
  /** Begins a value for a key. */
  Outcome begin(Slice key);
  Outcome write(Slice piece);
  void close();

 private:
  friend class Txn;
  kingtide_value_writer *writer_ = nullptr;
};

/** A transaction; it locks each key when it writes it. */
class Txn {
 public:
  Txn() = default;
  ~Txn();
  Txn(const Txn &) = delete;

  /** Rolls back what was not committed, and begins a new transaction. No other thread can interrupt it yet. */
  Outcome begin(Level level, int64_t lock_timeout_ms, Durability durability);
  bool open() const { return txn_ != nullptr; }
  uint64_t id() const;
  void close();

  Outcome get(Slice key, std::string *value);
  Outcome get_locked(Slice key, LockMode mode, std::string *value);
  Outcome get(Slice key, Value *value);
  Outcome get_locked(Slice key, LockMode mode, Value *value);
  /** For values that are copied at once: one object for all reads costs less than one for each statement. Long values are moved out of it. */
  Value &scratch() { return value_; }
  /** NotFound if the key has no value. Like `get` and get_locked otherwise, but no value log is read. */
  Outcome contains(Slice key);
  Outcome contains_locked(Slice key, LockMode mode);
  /** Opens the value that `get` or get_locked reads. */
  Outcome open_value(Slice key, ValueReader *reader);
  Outcome open_value_locked(Slice key, LockMode mode, ValueReader *reader);
  /** Sets a key that expires at the given time in milliseconds since 1970; 0 for never. */
  Outcome put(Slice key, Slice value, uint64_t expires = 0);
  /** Sets the key to what was written. */
  Outcome put(Slice key, ValueWriter *written);
  /**
    Whether a value in pieces of this transaction got Busy. Further ones would too, after a flush of all families each:
    the transaction itself keeps the files open.
  */
  bool takes_no_pieces = false;
  Outcome erase(Slice key);
  /** An empty `to` means no end. */
  Outcome lock_range(Slice from, Slice to, LockMode mode);
  /** Iterates over [from, to), as of the snapshot or over the newest values. An empty `to` means no end. */
  Outcome iterate(Slice from, Slice to, bool newest, Iter *iter);
  /** The newest value that is committed or its own, without a lock. */
  Outcome get_newest(Slice key, std::string *value);
  /** Number of calls that took locks, to determine whether a given one was the last. */
  uint64_t lock_calls() const { return lock_calls_; }
  /** Releases the lock that the last call with `_locked` in its name took, unless the transaction had it before. */
  void unlock_last();
  Outcome refresh_snapshot();
  /** The state that reads without locks see, once there is one. */
  uint64_t snapshot_sequence() const;
  /** Whether another transaction has committed a change of the key since the snapshot, or may have. The key must be locked. */
  Outcome changed_since_snapshot(Slice key, bool *changed);
  void set_lock_timeout(int64_t ms);
  /** What the next prepare and commit survive. */
  void set_durability(Durability durability);

  Outcome set_savepoint(const char *name);
  Outcome rollback_to_savepoint(const char *name);
  Outcome release_savepoint(const char *name);

  Outcome prepare(Slice xid);
  /** Makes the writes visible, in the order of calls, without waiting for the disk. */
  Outcome commit_ordered();
  /** Waits until what commit_ordered made visible is durable. */
  Outcome wait_durable();
  Outcome commit();
  Outcome rollback();
  /** From then on other threads may call `interrupt`, except during this call and `refuse_interrupts`. */
  Outcome allow_interrupts();
  void refuse_interrupts();
  bool allows_interrupts() const { return handle_ != nullptr; }
  /** If interrupts are allowed, ends the wait for a lock, or the next one. Callable from any thread while the object lives. */
  void interrupt();
  void clear_interrupt();
  /** Bytes of keys and values written since it began, including what was rolled back. Callable from any thread. */
  uint64_t written_bytes() const { return written_bytes_.load(std::memory_order_relaxed); }
  /**
    A measure of its writes: the bytes of keys and values, and a share for each write. The writes take at most twice this much memory, because the
    engine has an entry of its own for each write, and its arrays are up to half empty.
  */
  uint64_t size_of_writes() const {
    constexpr uint64_t SHARE = 56;
    return written_bytes() + writes_ * SHARE;
  }

 private:
  Outcome begin_again(int64_t lock_timeout_ms, Durability durability);
  void free_ticket();
  /** Its own thread counts alone. */
  void count_written(size_t bytes) {
    writes_++;
    written_bytes_.store(written_bytes() + bytes, std::memory_order_relaxed);
  }

  std::atomic<uint64_t> written_bytes_{0};
  uint64_t writes_ = 0;
  uint64_t lock_calls_ = 0;
  kingtide_txn *txn_ = nullptr;
  /** The options of `txn_`. */
  Level level_ = Level::RepeatableRead;
  int64_t lock_timeout_ = 0;
  Durability durability_ = Durability::Process;
  kingtide_txn_handle *handle_ = nullptr;
  kingtide_ticket *ticket_ = nullptr;
  /** For reads of short values, which are copied. */
  Value value_;
};

/** The one database of this server. */
class Engine {
 public:
  struct Option {
    const char *name;
    std::string value;
    bool operator==(const Option &other) const { return std::string(name) == other.name && value == other.value; }
  };
  static Outcome open(const std::string &path, const std::vector<Option> &options);
  static bool is_open();
  static void close();
  /** Calls `use` with the database if it is open, and keeps it open meanwhile: for callers outside of statements. */
  static void with_handle(const std::function<void(kingtide_db *)> &use);

  static Outcome get(Slice key, std::string *value);  // of the dictionary
  static Outcome write(Batch &batch, Durability durability);
  /** Iterates over committed entries, outside of transactions. */
  static Outcome iterate(Space space, Slice from, Slice to, Iter *iter);
  /** The same over entries of indexes, as of a snapshot. */
  static Outcome iterate(Slice from, Slice to, const kingtide_snapshot *snapshot, Iter *iter);
  /** Everything committed so far survives a power cut. */
  static Outcome sync();
  /** Number of entries in [from, to): exact if it is small (up to `most`), otherwise an estimate. */
  static uint64_t count(Slice from, Slice to, uint64_t most);
  /** Estimates without reading data. */
  static uint64_t estimate_rows(Slice from, Slice to);
  static uint64_t estimate_bytes(Slice from, Slice to);

  /** Returns the first key part in which two neighbouring keys differ. */
  using FirstDifference = size_t (*)(void *context, Slice a, Slice b);
  /** Estimates the number of distinct values of each number of leading parts, from a sample of a range. */
  static Outcome cardinality(Slice from, Slice to, size_t places, FirstDifference differ, void *context,
                             std::vector<uint64_t> *distinct, uint64_t *rows);

  struct Statistic {
    const char *name;
    uint64_t value;
  };
  static std::vector<Statistic> statistics();
  static uint64_t statistic(const char *name);
  /** Levels, memtables and counters, for people. */
  static std::string report();
  struct WaitHooks {
    /** Called on a thread before it waits for a lock of the engine, and from time to time while it waits. */
    void (*waits)(void *, uint64_t waiter, const uint64_t *holders, size_t count) = nullptr;
    /** Called on the thread of a deadlock victim, before it releases its locks. */
    void (*deadlock)(void *, const kingtide_deadlock *deadlock) = nullptr;
    /** Called alternately on a thread: before a wait of any kind (see Waits), and when the call that has waited ends. */
    void (*wait_begins)(WaitFor what) = nullptr;
    void (*wait_ended)() = nullptr;
  };
  static void watch_waits(const WaitHooks &hooks);
  static Outcome flush();
  /** Copies the database into an empty or absent directory. */
  static Outcome checkpoint(const std::string &directory);
  static Outcome compact(Slice from, Slice to);
  /** Schedules reclaiming the space of an erased range, without waiting for it. */
  static Outcome reclaim(Slice from, Slice to);
  static Outcome set_option(const char *name, const char *value);

  static std::vector<std::string> prepared();
  static Outcome commit_prepared(Slice xid);
  static Outcome rollback_prepared(Slice xid);
};

}  // namespace kingtide
