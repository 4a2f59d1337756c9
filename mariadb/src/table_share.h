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

/** A table, shared by all its open handlers. Counted: transactions that changed rows may outlive the last handler. */
class TableShare {
 public:
  /** The one of an opened table, made by the first who asks. */
  static TableShare *of(TABLE *table, handler *handler, const char *path, int *error);

  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release();
  /** The server closed its last opening. */
  void closed();

  const TableFormat &format() const { return *format_; }
  const TableRecord &record() const { return record_; }
  const std::string &name() const { return name_; }
  /** When it got its rows: see Dictionary. */
  uint64_t born() const { return born_.load(std::memory_order_acquire); }
  const TableOptions &options() const { return options_; }

  /** An estimate of how many rows there are. */
  ha_rows rows() const;
  /** Adds to the number of rows, when so many were changed. */
  void count_changes(int64_t added, uint64_t changed) {
    rows_.fetch_add(added, std::memory_order_relaxed);
    changes_.fetch_add(changed, std::memory_order_relaxed);
  }
  void set_rows(uint64_t rows) { rows_.store(static_cast<int64_t>(rows), std::memory_order_relaxed); }

  /** An estimate of the bytes of its rows; unless `now`, one that may be a second old. */
  uint64_t bytes(bool now);

  /** Whether rows may expire: whether one was ever written that does. */
  bool may_expire() const { return expires_.load(std::memory_order_acquire); }
  /** A row is about to be written that does. */
  Outcome rows_expire();

  /** A hidden key that was never used before; the error is an Outcome. */
  Outcome next_hidden_key(uint64_t *key);

  /** The next auto-increment value, without taking it. */
  uint64_t next_auto_increment() const { return auto_increment_.load(std::memory_order_relaxed); }
  /** Takes `count` values from the series of `offset` and `increment`. */
  Outcome take_auto_increment(uint64_t offset, uint64_t increment, uint64_t count, uint64_t most, uint64_t *first);
  /** A row has this value: later ones are greater. */
  Outcome saw_auto_increment(uint64_t value);
  Outcome set_auto_increment(uint64_t next);

  /** In the dictionary: "database/table". */
  /** The names of its indexes, in their order. */
  const std::vector<std::string> &index_names() const { return index_names_; }
  /** Calls `visit` with the opened table that has an index of this number, if there is one. It must open and close none. */
  static void find(uint32_t index, const std::function<void(const TableShare &)> &visit);

  /** The table was emptied. */
  void reset_counters();

  /** Makes statistics from keys at `places` places of each index, for the rows that were counted, and stores them. */
  Outcome analyze(uint64_t rows, size_t places);
  /** Makes new ones, of fewer places, if more than a tenth of the rows changed since. They are not stored. */
  void sample_if_changed();
  TableStatistics statistics() const;
  /** Is another number when `statistics` gives something else. */
  uint64_t statistics_version() const { return statistics_version_.load(std::memory_order_acquire); }

 private:
  TableShare(const TABLE *table, const std::string &name, const TableRecord &record);
  ~TableShare();
  std::vector<uint32_t> index_numbers() const;
  Outcome load();
  Outcome sample(size_t places);
  Outcome reserve(Dictionary::Counter which, uint64_t next, uint64_t *reserved, uint64_t block);

  std::atomic<uint64_t> references_{1};
  bool closed_ = false;
  /** In the dictionary. */
  const std::string name_;
  TableRecord record_;
  std::atomic<uint64_t> born_;
  TableOptions options_;
  std::unique_ptr<TableFormat> format_;
  std::vector<std::string> index_names_;
  std::atomic<int64_t> rows_{0};
  /** Rows that were changed since `statistics_` were made. */
  std::atomic<uint64_t> changes_{0}, statistics_version_{1};
  std::atomic<bool> sampling_{false};
  mutable std::mutex statistics_mutex_;
  TableStatistics statistics_;
  std::atomic<uint64_t> bytes_{0};
  /** Until when the estimate is good, in microseconds. */
  std::atomic<uint64_t> bytes_until_{0};
  std::atomic<bool> expires_{false};
  std::atomic<uint64_t> auto_increment_{0};
  std::mutex counters_;
  /** Below these, the dictionary says, values may have been given out. */
  uint64_t auto_increment_reserved_ = 0, hidden_reserved_ = 0;
  uint64_t hidden_ = 0;
};

}  // namespace kingtide
