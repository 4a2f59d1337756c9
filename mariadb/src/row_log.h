/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "../codec/slice.h"

/**
  While indexes are added to a table that others write to, these do not know the indexes. They say which rows they changed, by the
  primary keys (hidden ones included), and the thread that builds the indexes looks at those again: see catch_up.h.

  A transaction says it when its changes are visible and before it gives its lock on the table's definition back: so a thread that has
  that lock alone knows all rows that were changed. Prepared transactions may have no such lock any more; their keys are kept
  by their names.
*/
namespace kingtide {

/** Primary keys of rows, each once. */
using RowKeys = std::unordered_set<std::string>;

/** As if it were an error of the server's: the log of an index that is being built is too big. */
constexpr int ONLINE_LOG_TOO_BIG = -1;

/** Of one table, while indexes are added to it. */
class RowLog {
 public:
  /** Begins one for the table whose rows are in the index of this number. It holds keys of so many bytes at most. */
  static std::shared_ptr<RowLog> begin(uint32_t primary, uint64_t most_bytes);
  static void end(uint32_t primary);
  /** Whether there is any: if not, those who write are done. */
  static bool any() { return count_.load(std::memory_order_acquire) != 0; }
  /** A table's, or nullptr. */
  static std::shared_ptr<RowLog> of(uint32_t primary);
  /** A transaction that was prepared under this name has ended: in the logs of all tables. */
  static void prepared_ended(const std::string &xid, bool committed);

  explicit RowLog(uint64_t most_bytes) : most_(most_bytes) {}

  /** Takes room for a key; false, from then on and for good, if there is none. */
  bool take_room(size_t key_size);
  void give_room_back(const RowKeys &keys);
  /** More rows were changed than the log has room for: what it holds is of no use. */
  bool is_too_big() const { return too_big_.load(std::memory_order_acquire); }
  void give_up() { too_big_.store(true, std::memory_order_release); }

  void committed(RowKeys keys);
  void prepared(const std::string &xid, RowKeys keys);
  void ended(const std::string &xid, bool committed);

  /** Keys that were committed since the last call. Their room stays taken: the caller keeps them. */
  RowKeys take();
  /** The same, with those of prepared transactions, all of which are over. */
  RowKeys take_all();

 private:
  void merge(RowKeys from, RowKeys *into);

  static std::atomic<size_t> count_;

  const uint64_t most_;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<bool> too_big_{false};
  std::mutex mutex_;
  RowKeys committed_;
  std::map<std::string, RowKeys> prepared_;
};

/** What a transaction reports at its end. */
class ChangedRows {
 public:
  /** A row was changed, or will be, in the table whose rows are in the index of this number. */
  void note(uint32_t primary, Slice row_key) {
    if (RowLog::any()) note_in_log(primary, row_key);
  }
  void prepared(const std::string &xid);
  void committed();
  void rolled_back();
  /** It is in doubt: it ends elsewhere. */
  void forget() {
    tables_.clear();
    xid_.clear();
  }

 private:
  struct OfTable {
    uint32_t primary;
    std::shared_ptr<RowLog> log;
    RowKeys keys;
  };
  void note_in_log(uint32_t primary, Slice row_key);
  OfTable *table(uint32_t primary);

  std::vector<OfTable> tables_;
  std::string xid_;
};

}  // namespace kingtide
