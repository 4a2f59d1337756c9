/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "server.h"

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "engine.h"
#include "row_log.h"

namespace kingtide {

extern handlerton *hton;

class TableShare;

/** The engine's state of a connection: its transaction, if one runs. Used by its own thread only, except for `interrupt`. */
class Session {
 public:
  explicit Session(THD *thd);
  ~Session();

  /** The connection's session, created if it has none. */
  static Session *of(THD *thd);
  static Session *existing(THD *thd);
  static void forget(THD *thd);

  /** A statement begins to use a table: begins the transaction if need be, and tells the server of it. */
  int use(THD *thd, bool writes);
  /** The statement is going to take locks, so that others may wait for this transaction. */
  void takes_locks(THD *thd);
  /** It writes to a table, and what its commit survives is at least this. */
  void needs(Durability durability);
  /** A statement is done with a table. */
  void done_with_table() { if (tables_ > 0) tables_--; }
  /** START TRANSACTION WITH CONSISTENT SNAPSHOT. */
  int begin_at_once(THD *thd);

  Txn &txn() { return txn_; }
  bool running() const { return running_; }

  /** A statement that copies a table read a row that is gone at a moment, 0 for never: so is its copy. */
  void copy_row(uint64_t expires) {
    copies_rows_ = true;
    expiry_of_copy_ = expires;
  }
  bool copies_rows() const { return copies_rows_; }
  uint64_t expiry_of_copy() const { return expiry_of_copy_; }
  bool prepared() const { return running_ && prepared_; }
  bool reads_committed() const { return isolation_ <= ISO_READ_COMMITTED; }
  /** Whether the transaction's snapshot, if it has one, is of a time when the table had its rows. */
  bool sees(const TableShare &table) const;
  bool serializable() const { return isolation_ == ISO_SERIALIZABLE; }

  /** What other threads may read about a session at any time. */
  struct Shown {
    uint64_t transaction, rows_changed, written_bytes;
    ulong thread;
    time_t started;
    int isolation;
    std::string query;
  };
  /** Those in which a transaction runs. */
  static std::vector<Shown> all_running();

  /** A statement changed a row, and with it the number of rows by `change`. They count once it is committed. */
  void count_row(TableShare *table, int64_t change);

  /** The same of the row's primary key, before it is changed, in a table whose rows are in the index of this number. */
  void note_row(uint32_t primary, Slice row_key) { changed_rows_.note(primary, row_key); }

  int commit_statement(THD *thd);
  int rollback_statement(THD *thd);
  int commit(THD *thd);
  int rollback(THD *thd);
  int prepare(THD *thd, Slice xid);
  void commit_ordered();

  /** Tries again to commit those that were prepared and failed to. While it returns false, the server's log must keep them. */
  static bool commit_left_in_doubt();

  /**
    Drops a table. If a transaction of the connection runs, it may have locks on the rows, as on those of a temporary table
    or of a CREATE ... SELECT that failed: then they are erased when it ends.
  */
  static Outcome drop(THD *thd, const std::string &table);
  /** A prepared transaction that had no session any more was committed or rolled back. */
  static void prepared_ended(const std::string &xid);

  int set_savepoint(THD *thd, uint64_t *place);
  int rollback_to(THD *thd, uint64_t place);
  int release(THD *thd, uint64_t place);

  /** From any thread. */
  void interrupt();
  /** While a statement runs that does not wait for locks. */
  void set_lock_timeout(int64_t ms);
  int64_t lock_timeout() const { return lock_timeout_; }

 private:
  int begin(THD *thd);
  void end();
  void publish_counts();
  void leave_in_doubt();

  /** Held while the transaction object is exchanged, so that `interrupt` finds one that lives. */
  std::mutex exchange_;
  Txn txn_;
  bool running_ = false;
  bool statement_savepoint_ = false;
  bool prepared_ = false;
  /** The name under which it is prepared. */
  std::string xid_;
  bool ordered_ = false;
  Outcome ordered_outcome_ = Outcome::Ok;
  uint tables_ = 0;
  std::atomic<int> isolation_{ISO_REPEATABLE_READ};
  /** Of the snapshot: see Dictionary::now. */
  uint64_t time_ = 0;
  int64_t lock_timeout_ = 0;
  /** What the commit survives; once a table was written, the strongest of what those that were ask for. */
  Durability durability_ = Durability::Process;
  bool wrote_ = false;
  uint64_t savepoints_ = 0;
  /** None was set after it. 0: not known. */
  uint64_t newest_savepoint_ = 0;
  /** The transaction that others may wait for, if it is not 0. */
  uint64_t reported_ = 0;
  bool copies_rows_ = false;
  uint64_t expiry_of_copy_ = 0;
  query_id_t statement_ = 0;
  struct Count {
    TableShare *table;
    int64_t change;
    uint64_t changed;
  };
  std::vector<Count> statement_counts_, counts_;
  ChangedRows changed_rows_;
  THD *const thd_;
  /** For all_running: written by its own thread only. No transaction: 0. */
  std::atomic<uint64_t> shown_transaction_{0}, rows_changed_{0};
  std::atomic<time_t> started_{0};
  /** Tables to be erased when the transaction ends. */
  std::vector<std::string> dropped_;
};

}  // namespace kingtide
