/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "server.h"

#include <atomic>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine.h"
#include "overwritten.h"
#include "row_log.h"
#include "snapshot.h"

namespace kingtide {

extern handlerton *hton;

class TableShare;

/** The engine's state for a connection: its transaction, if one is running. Used only by its own thread, except for `interrupt`. */
class Session {
 public:
  explicit Session(THD *thd);
  ~Session();

  /** The connection's session, created if it has none. */
  static Session *of(THD *thd);
  static Session *existing(THD *thd);
  static void forget(THD *thd);

  /** Called when a statement begins to use a table. Begins the transaction if needed, and registers it with the server. */
  int use(THD *thd, bool writes);
  /** Called before a statement takes locks: from then on, other transactions may wait for this one, and KILL may end its own waits. */
  int takes_locks(THD *thd);
  /** Called before a statement writes to a table. Makes the commit at least as durable as `durability`. */
  void needs(Durability durability);
  /** Called when a statement has finished with a table. */
  void done_with_table() { if (tables_ > 0) tables_--; }
  /**
    Called when a statement begins to read a table without locks. At REPEATABLE READ and above, the first one takes the
    transaction's snapshot; locking reads and changes before it do not, as with InnoDB.
  */
  int take_snapshot();
  /** Executes START TRANSACTION WITH CONSISTENT SNAPSHOT. */
  int begin_at_once(THD *thd);

  Txn &txn() { return txn_; }
  bool running() const { return running_; }

  /** Notes when the row expires that was read last for a copy of its table (0 for never): its copy expires at the same time. */
  void copy_row(uint64_t expires) {
    copies_rows_ = true;
    expiry_of_copy_ = expires;
  }
  /** The scan for a copy has ended: rows written from now on are renewed, as are those that an ORDER BY has sorted. */
  void end_copy() { copies_rows_ = false; }
  bool copies_rows() const { return copies_rows_; }
  uint64_t expiry_of_copy() const { return expiry_of_copy_; }
  bool prepared() const { return running_ && prepared_; }
  bool reads_committed() const { return isolation_ <= ISO_READ_COMMITTED; }
  /** Whether the transaction's snapshot, if any, was taken after the table got its rows. */
  bool sees(const TableShare &table) const;
  /** The same of what was born at this time: see Dictionary::born. */
  bool sees(uint64_t born) const;
  /** Whether the transaction's snapshot may be older than what was copied into a temporary table. */
  bool precedes_copy(const TableShare &table) const;
  bool serializable() const { return isolation_ == ISO_SERIALIZABLE; }
  bool reads_uncommitted() const { return isolation_ == ISO_READ_UNCOMMITTED; }

  /** Whether rows that are changed now may be newer than those that reads without locks see. */
  bool may_overwrite_newer() const { return snapshot_; }
  /**
    Notes a row that the transaction changes although its snapshot has another version of it: the snapshot may have index entries
    of that version, which do not match the row that the transaction sees now. `row` is the complete key of the row.
  */
  void note_overwritten(const std::string &row) { overwritten_.note(row); }
  bool has_overwritten() const { return !overwritten_.empty(); }
  bool may_be_overwritten(const std::string &row) const { return overwritten_.may_have(row); }
  /**
    Notes that the transaction writes to a key of a unique index that others have written to since its snapshot. The snapshot
    may have an entry of another row there, which the transaction's iterators no longer show: see Walk.
  */
  void note_covered(uint32_t index) { covered_.insert(index); }
  bool has_covered(uint32_t index) const { return !covered_.empty() && covered_.count(index) != 0; }
  /** What the transaction would see if it had written nothing. Valid until the next statement. */
  Outcome without_own_writes(const Snapshot **snapshot);

  /** State of a session that other threads may read at any time. */
  struct Shown {
    uint64_t transaction, rows_changed, written_bytes;
    ulong thread;
    time_t started;
    int isolation;
    std::string query;
  };
  /** Lists the sessions that have a running transaction. */
  static std::vector<Shown> all_running();

  /** Notes that a statement changed a row, and the table's number of rows by `change`. Counted when the transaction commits. */
  void count_row(TableShare *table, int64_t change);

  /** By how many the transaction's own changes raise the number of rows of a table, which others do not see yet. */
  int64_t uncommitted_rows(const TableShare *table) const;

  /**
    Whether the statement uses the name of a table for the first time, which its partitions share. What it has made under the name since is
    its own.
  */
  bool uses_name_first(const std::string &name);

  /**
    Notes a partition that the table's definition lacks and whose name the statement may use. If the statement fails, the server removes, by
    name, what the statement would have made: `drop` leaves this partition alone.
  */
  void keep(const std::string &name);

  /** Notes the primary key of a row before it is changed. `primary` is the number of the index that has the table's rows. */
  void note_row(uint32_t primary, Slice row_key) { changed_rows_.note(primary, row_key); }

  /**
    How many auto-increment values the statement reserves now: when it asks first, as many as it wants, later one for each row that
    it has not written since. 0 stands for an unknown number.
  */
  uint64_t auto_increment_rows(uint64_t wanted) {
    if (auto_increment_rows_ == 0) auto_increment_rows_ = wanted ? wanted : 1;
    return auto_increment_rows_;
  }
  /** Whether the statement has rows to write of those that it counted. */
  bool reserves_auto_increment() const { return auto_increment_rows_ != 0; }
  void auto_increment_row_written() {
    if (auto_increment_rows_ > 0) auto_increment_rows_--;
  }
  void forget_auto_increment_rows() { auto_increment_rows_ = 0; }

  /** Has the statement's commit fail with this error, unless take_copy_error is called before: see Handler::end_copy. */
  void copy_failed(int error) { copy_error_ = error; }
  int take_copy_error() { return std::exchange(copy_error_, 0); }

  int commit_statement(THD *thd);
  int rollback_statement(THD *thd);
  int commit(THD *thd);
  int rollback(THD *thd);
  int prepare(THD *thd, Slice xid);
  void commit_ordered();

  /** Retries prepared transactions whose commit failed. While it returns false, the server must keep them in its log. */
  static bool commit_left_in_doubt();

  /**
    Drops a table. If the connection's transaction is running, it may hold locks on the rows (of a temporary table, or of a failed
    CREATE ... SELECT), so the rows are erased when it ends.
  */
  static Outcome drop(THD *thd, const std::string &table);
  /** Called after a prepared transaction without a session was committed or rolled back. */
  static void prepared_ended(const std::string &xid);

  int set_savepoint(THD *thd, uint64_t *place);
  int rollback_to(THD *thd, uint64_t place);
  int release(THD *thd, uint64_t place);

  /** Interrupts a lock wait of the transaction, if it may wait. Callable from any thread. */
  void interrupt();
  /** Sets the lock timeout, for example for a statement that does not wait for locks. */
  void set_lock_timeout(int64_t ms);
  int64_t lock_timeout() const { return lock_timeout_; }

 private:
  int begin(THD *thd);
  void end();
  void expect_interrupts(THD *thd);
  void keep_statement_counts();
  void note_counts_at(uint64_t savepoint);
  void return_to_counts_at(uint64_t savepoint);
  void forget_counts_from(uint64_t savepoint);
  void publish_counts();
  void leave_in_doubt();
  void forget_overwritten();

  /** Held while interrupts are being allowed or refused, so that `interrupt` never uses a handle that was freed. */
  std::mutex exchange_;
  Txn txn_;
  bool running_ = false;
  bool statement_savepoint_ = false;
  bool prepared_ = false;
  /** The name under which the transaction was prepared. */
  std::string xid_;
  bool ordered_ = false;
  Outcome ordered_outcome_ = Outcome::Ok;
  uint tables_ = 0;
  std::atomic<int> isolation_{ISO_REPEATABLE_READ};
  /** Whether reads without locks see a snapshot: of the transaction or, at READ COMMITTED, of the statement. */
  bool snapshot_ = false;
  /** Time of the snapshot: see Dictionary::now. */
  uint64_t time_ = 0;
  /** See note_overwritten. Rows stay here when their changes are rolled back to a savepoint. */
  OverwrittenRows overwritten_;
  /** See note_covered. Numbers of indexes; they stay here, too. */
  std::unordered_set<uint32_t> covered_;
  /** See without_own_writes. Taken when it is needed first. */
  Snapshot without_own_writes_;
  int64_t lock_timeout_ = 0;
  /** Durability of the commit: the session's default, or the strongest that a written table requires. */
  Durability durability_ = Durability::Process;
  bool wrote_ = false;
  uint64_t savepoints_ = 0;
  /** The savepoint that was set last; 0 if unknown. */
  uint64_t newest_savepoint_ = 0;
  /** Id of the transaction if it was reported to LockWaits; otherwise 0. */
  uint64_t reported_ = 0;
  bool copies_rows_ = false;
  uint64_t expiry_of_copy_ = 0;
  /** See copy_failed. */
  int copy_error_ = 0;
  query_id_t statement_ = 0;
  /** See uses_name_first. */
  std::string used_name_;
  query_id_t used_name_in_ = 0;
  /** See `keep`. */
  std::vector<std::string> kept_;
  query_id_t kept_in_ = 0;
  struct Count {
    TableShare *table;
    int64_t change;
    uint64_t changed;
  };
  std::vector<Count> statement_counts_, counts_;
  /** By how many the transaction had raised the numbers of rows when a savepoint was set. Tables are only compared. */
  struct CountsAt {
    uint64_t savepoint;
    std::vector<std::pair<const TableShare *, int64_t>> rows;
  };
  /** In the order of the savepoints. */
  std::vector<CountsAt> counts_at_;
  ChangedRows changed_rows_;
  /** See auto_increment_rows. Also counts rows of other tables that the statement's triggers write, as InnoDB does. */
  uint64_t auto_increment_rows_ = 0;
  THD *const thd_;
  /** For all_running; written only by the session's thread. 0 if no transaction is running. */
  std::atomic<uint64_t> shown_transaction_{0}, rows_changed_{0};
  std::atomic<time_t> started_{0};
  /** Tables to be erased when the transaction ends. */
  std::vector<std::string> dropped_;
};

}  // namespace kingtide
