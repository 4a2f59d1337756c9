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
  While indexes are added to a table, other sessions may write to it without knowing the new indexes. They log the primary keys
  (hidden ones included) of the rows that they change, and the thread that builds the indexes processes these rows again: see
  catch_up.h.

  A transaction logs its keys after its changes have become visible, and before it releases its metadata lock on the table. A
  thread that holds this lock exclusively therefore sees the keys of all changed rows. Prepared transactions may no longer hold the
  lock, so their keys are kept under the transactions' names.
*/
namespace kingtide {

/** A set of primary keys. */
using RowKeys = std::unordered_set<std::string>;

/** Used like an error number of the server: the log of an index build exceeded its limit. */
constexpr int ONLINE_LOG_TOO_BIG = -1;

/** The log of one table while indexes are added to it. */
class RowLog {
 public:
  /** Begins a log for the table whose rows are in the index `primary`. It holds keys of at most `most_bytes` bytes in total. */
  static std::shared_ptr<RowLog> begin(uint32_t primary, uint64_t most_bytes);
  static void end(uint32_t primary);
  /** Whether any table has a log. If not, writers have nothing to do. */
  static bool any() { return count_.load(std::memory_order_acquire) != 0; }
  /** Returns the log of a table, or nullptr if it has none. */
  static std::shared_ptr<RowLog> of(uint32_t primary);
  /** Tells all logs that the transaction that was prepared under this name has ended. */
  static void prepared_ended(const std::string &xid, bool committed);

  explicit RowLog(uint64_t most_bytes) : most_(most_bytes) {}

  /** Reserves memory for a key. Returns false if the limit is reached; all later calls then return false, too. */
  bool take_room(size_t key_size);
  void give_room_back(const RowKeys &keys);
  /** Whether the limit was exceeded. The log is then incomplete and useless. */
  bool is_too_big() const { return too_big_.load(std::memory_order_acquire); }
  void give_up() { too_big_.store(true, std::memory_order_release); }

  void committed(RowKeys keys);
  void prepared(const std::string &xid, RowKeys keys);
  void ended(const std::string &xid, bool committed);

  /** Returns the keys that were committed since the last call. Their memory stays reserved, because the caller keeps them. */
  RowKeys take();
  /** Like `take`, but includes the keys of prepared transactions, which must all have ended. */
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

/** The keys that a transaction logs when it ends. */
class ChangedRows {
 public:
  /** Notes that a row of the table whose rows are in the index `primary` was changed, or will be. */
  void note(uint32_t primary, Slice row_key) {
    if (RowLog::any()) note_in_log(primary, row_key);
  }
  void prepared(const std::string &xid);
  void committed();
  void rolled_back();
  /** Drops the keys of a transaction that is in doubt, because it ends elsewhere. */
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
