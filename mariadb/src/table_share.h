/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "server.h"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>

#include "dictionary.h"
#include "fields.h"
#include "options.h"

namespace kingtide {

/**
  Auto-increment values: `offset`, `offset + increment`, ... up to `most`, the largest value of the column. An offset above the increment
  counts as 0.
*/
struct Series {
  uint64_t offset, increment, most;

  /** The value of the series that is `count` places behind the last one up to `value`; UINT64_MAX if there is none. */
  uint64_t after(uint64_t value, uint64_t count) const;
  /** The least value of the series that is not below `value`, or `value` itself if that would leave the column's range. */
  uint64_t not_below(uint64_t value) const;
};

/** A table, shared by its open handlers. Reference-counted, because transactions that changed rows may outlive the last handler. */
class TableShare {
 public:
  /** Returns the share of an open table; the first call creates it. */
  static TableShare *of(TABLE *table, handler *handler, const char *path, int *error);

  /** Notes that a table was created whose next auto-increment value is to be this. */
  static void created(const TABLE *table, uint32_t primary, uint64_t auto_increment);

  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release();
  /** Called when the server has closed the table's last handler. */
  void closed();

  const TableFormat &format() const { return *format_; }
  const TableRecord &record() const { return record_; }
  const std::string &name() const { return name_; }
  /** When the table got its rows: see Dictionary::born. */
  uint64_t born() const { return born_.load(std::memory_order_acquire); }
  /** When an index got its entries, if that was after the rows. */
  uint64_t born(uint index) const { return index_births_[index]; }
  /** Notes that rows were copied into a temporary table, outside of its session's transaction. */
  void rows_copied();
  /** When that was done last, as Dictionary::now; 0 for never. */
  uint64_t copied_at() const { return copied_at_; }
  const TableOptions &options() const { return options_; }

  /** Estimates the number of rows. */
  ha_rows rows() const;
  /** Adds `added` to the number of rows, and `changed` to the number of changed rows. */
  void count_changes(int64_t added, uint64_t changed) {
    rows_.fetch_add(added, std::memory_order_relaxed);
    changes_.fetch_add(changed, std::memory_order_relaxed);
  }
  void set_rows(uint64_t rows) { rows_.store(static_cast<int64_t>(rows), std::memory_order_relaxed); }

  /** Estimates the size of the rows in bytes. Unless `now` is set, the estimate may be up to a second old. */
  uint64_t bytes(bool now);

  /** Whether rows may expire, that is, whether a row with an expiry was ever written. */
  bool may_expire() const { return expires_.load(std::memory_order_acquire); }
  /** Must be called before a row with an expiry is written. */
  Outcome rows_expire();

  /** Returns a hidden key that was never used before. */
  Outcome next_hidden_key(uint64_t *key);

  /** Returns the next auto-increment value without reserving it. */
  uint64_t next_auto_increment() const { return auto_increment_.load(std::memory_order_relaxed); }
  /** Returns what the next value would be after a restart of the server. */
  uint64_t unused_auto_increment() const { return auto_increment_unused_.load(std::memory_order_relaxed); }
  /**
    Reserves `count` values from a series, the first of which is at least `*first`. Sets the first value and the one after the last
    (`end`). If the first is greater than the series' largest value, nothing is reserved, and `end` is 0. A statement that `continues`
    goes on at `*first`, unless another handler changed the counter meanwhile. A restart of the server forgets reservations.
  */
  void take_auto_increment(const Series &series, uint64_t count, const handler *taker, bool continues, uint64_t *first, uint64_t *end);
  /** To be called before a row is written with a reserved value: it is not generated again, not even after a crash. */
  Outcome use_auto_increment(uint64_t value);
  /** Notes that a row has this value: values that are generated from now on are greater, and in the series. */
  Outcome saw_auto_increment(const Series &series, uint64_t value, const handler *taker);
  Outcome set_auto_increment(uint64_t next);
  /** Reads the greatest value in the auto-increment column, an integer, from its index: 0 if there is none above it. */
  Outcome greatest_auto_increment(uint64_t *value) const;

  /** The names of the table's indexes, in the order of its keys. */
  const std::vector<std::string> &index_names() const { return index_names_; }
  /** Calls `visit` with the open table that has the index with this number, if any. `visit` must not open or close tables. */
  static void find(uint32_t index, const std::function<void(const TableShare &)> &visit);

  /** Whether a table, or partition, with this name is open. */
  static bool is_open(const std::string &name);

  /** Called after the table was emptied. */
  void reset_counters();

  /** Computes statistics from samples at `places` places of each index, given the number of rows, and stores them. */
  Outcome analyze(uint64_t rows, size_t places);
  /** Computes new statistics from fewer places if more than a tenth of the rows have changed. They are not stored. */
  void sample_if_changed();
  TableStatistics statistics() const;
  /** A number that changes whenever `statistics` does. */
  uint64_t statistics_version() const { return statistics_version_.load(std::memory_order_acquire); }

 private:
  TableShare(const TABLE *table, const std::string &name, const TableRecord &record);
  ~TableShare();
  std::vector<uint32_t> index_numbers() const;
  Outcome load();
  Outcome load_auto_increment();
  Outcome sample(size_t places);
  void raise_auto_increment(uint64_t next, const handler *taker);
  Outcome keep_auto_increment(uint64_t value);
  Outcome reserve(Dictionary::Counter which, uint64_t next, uint64_t *reserved, uint64_t block);

  std::atomic<uint64_t> references_{1};
  bool closed_ = false;
  /** The table's name in the dictionary: "database/table". */
  const std::string name_;
  TableRecord record_;
  std::atomic<uint64_t> born_;
  /** By the numbers of keys. */
  std::vector<uint64_t> index_births_;
  uint64_t copied_at_ = 0;
  TableOptions options_;
  std::unique_ptr<TableFormat> format_;
  std::vector<std::string> index_names_;
  std::atomic<int64_t> rows_{0};
  /** Number of rows that were changed since `statistics_` was computed; the version of `statistics_`. */
  std::atomic<uint64_t> changes_{0}, statistics_version_{1};
  std::atomic<bool> sampling_{false};
  mutable std::mutex statistics_mutex_;
  TableStatistics statistics_;
  std::atomic<uint64_t> bytes_{0};
  /** Time until which `bytes_` may be used, in microseconds. */
  std::atomic<uint64_t> bytes_until_{0};
  std::atomic<bool> expires_{false};
  /** The index that begins with the auto-increment column, and the largest value that the column can be given. */
  uint auto_increment_index_ = 0;
  uint64_t auto_increment_most_ = UINT64_MAX;
  std::atomic<uint64_t> auto_increment_{0};
  /** What the next value is after a restart: the one behind the greatest that a row was written with. */
  std::atomic<uint64_t> auto_increment_unused_{0};
  /** What raised it last; only compared. */
  const handler *auto_increment_taker_ = nullptr;
  std::mutex counters_;
  /** Rows may have values below these limits, which are stored in the dictionary. */
  uint64_t auto_increment_reserved_ = 0, hidden_reserved_ = 0;
  uint64_t hidden_ = 0;
};

}  // namespace kingtide
