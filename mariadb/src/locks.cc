/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/* Which locks a statement takes, and how it begins. Rows are locked when they are read: scan.cc. */
#include "ha_kingtide.h"
#include "variables.h"

#include "rpl_rli.h"
#include "slave.h"

namespace kingtide {
namespace {

/** How often to check whether the statement was killed while it waits for locks in a separate transaction. */
constexpr int64_t BETWEEN_LOOKS_MS = 100;

/**
  Whether what a data-changing statement reads must stay unchanged until its transaction ends: INSERT ... SELECT followed by DELETE moves
  rows, and none may appear in between. This also allows a replica to run the same statement.
*/
bool changes_by_what_it_reads(THD *thd) {
  if (thd_tx_isolation(thd) <= ISO_READ_COMMITTED) return false;
  switch (thd_sql_command(thd)) {
    case SQLCOM_INSERT:
    case SQLCOM_INSERT_SELECT:
    case SQLCOM_REPLACE:
    case SQLCOM_REPLACE_SELECT:
    case SQLCOM_UPDATE:
    case SQLCOM_UPDATE_MULTI:
    case SQLCOM_DELETE:
    case SQLCOM_DELETE_MULTI:
    case SQLCOM_LOAD:
    case SQLCOM_CREATE_TABLE:
      return true;
    default:
      return false;
  }
}

/**
  Whether the statement takes over what it reads, in a variable or as a decision of a procedure, to be used by later statements. InnoDB
  reads with shared locks there, at every level. So must this engine: otherwise, `SET @n = (SELECT ...)` and an UPDATE by @n lose a change
  that another transaction makes in between.
*/
bool keeps_what_it_reads(THD *thd) {
  switch (thd_sql_command(thd)) {
    case SQLCOM_SET_OPTION:
    case SQLCOM_DO:
    case SQLCOM_CALL:
      return true;
    case SQLCOM_END:  // an expression of a procedure, as in IF and WHILE
      return thd->spcont != nullptr;
    default:
      return false;
  }
}

/**
  Whether a replica that runs the same statement must read the same, for statements other than those above: the server requests
  this for CALL, and for what a data-changing function reads, even if a SELECT calls it. It also does so for CHECK TABLE, which has
  nothing to do with replicas and must not block writers.
*/
bool reads_for_the_log(THD *thd, thr_lock_type type) {
  if (thd_sql_command(thd) == SQLCOM_CHECK) return false;
  return type == TL_READ_NO_INSERT && thd_tx_isolation(thd) > ISO_READ_COMMITTED;
}

/**
  Whether a row event may lock single rows. If it is applied in parallel with earlier transactions, its row may be one that these have not
  committed yet: it is not found, and only a lock of the range waits for it. Where transactions may depend on each other (optimistic
  and aggressive modes), the server repeats an event that found nothing, but not if it ignores that, or if the row is taken for an expired
  one: see or_renewed.
*/
bool event_may_lock_rows(THD *thd, bool rows_expire) {
  const rpl_group_info *group = thd->rgi_slave;
  const bool comes_alone = !group || !group->is_parallel_exec || group->speculation == rpl_group_info::SPECULATE_WAIT;
  if (comes_alone) return true;
  const bool ignores_missing = slave_exec_mode_options == SLAVE_EXEC_MODE_IDEMPOTENT || use_slave_mask;
  return applies_speculatively(thd) && !rows_expire && !ignores_missing;
}

/** Whether a statement may copy rows of the tables that it reads into a table that replaces them. */
bool may_replace(THD *thd) {
  const int command = thd_sql_command(thd);
  return command == SQLCOM_ALTER_TABLE || command == SQLCOM_CREATE_INDEX || command == SQLCOM_DROP_INDEX;
}

}  // namespace

/** A table with keys of an outdated form can still be read in the order of its rows, which is what a copy needs. */
int Handler::refuse_outdated(THD *thd) const {
  if (!format().outdated) return 0;
  const int command = thd_sql_command(thd);
  if (may_replace(thd) || command == SQLCOM_REPAIR || command == SQLCOM_CHECK) return 0;
  my_printf_error(ER_TABLE_NEEDS_REBUILD,
                  "KINGTIDE: table %s.%s was made by an earlier version, with incomplete keys of collation %s; "
                  "rebuild it with ALTER TABLE ... FORCE",
                  MYF(0), table_share->db.str, table_share->table_name.str, collation_of_key_form(table)->coll_name.str);
  return HA_ERR_TABLE_NEEDS_UPGRADE;
}

THR_LOCK_DATA **Handler::store_lock(THD *thd, THR_LOCK_DATA **to, thr_lock_type type) {
  if (type == TL_IGNORE) return to;
  skip_locked_ = type == TL_READ_SKIP_LOCKED || type == TL_WRITE_SKIP_LOCKED;
  const bool plain_read = type == TL_READ || type == TL_READ_HIGH_PRIORITY || type == TL_READ_NO_INSERT;
  if (type >= TL_FIRST_WRITE)
    access_ = Access::Update;
  else if (type == TL_READ_WITH_SHARED_LOCKS || type == TL_READ_SKIP_LOCKED || reads_for_the_log(thd, type) ||
           (plain_read && (changes_by_what_it_reads(thd) || keeps_what_it_reads(thd))))
    access_ = Access::Share;
  else if (plain_read && thd_tx_isolation(thd) == ISO_SERIALIZABLE &&
           thd_test_options(thd, OPTION_NOT_AUTOCOMMIT | OPTION_BEGIN))
    access_ = Access::Share;
  else
    access_ = Access::Consistent;
  locked_for_ = access_;
  return to;
}

/** A snapshot from before a copy replaced the table would show no rows. Temporary tables belong to one session. */
bool Handler::can_see(THD *thd) const {
  if (locking() || table->s->tmp_table != NO_TMP_TABLE) return true;
  const Session *s = Session::existing(thd);
  return !s || s->sees(*share_);
}

/** The same of an index that was added to the table: an older snapshot has none of its entries. It has the rows. */
bool Handler::can_see_index(uint index) const {
  if (locking() || table->s->tmp_table != NO_TMP_TABLE) return true;
  const Session *s = Session::existing(ha_thd());
  return !s || s->sees(share_->born(index));
}

int Handler::external_lock(THD *thd, int type) {
  iter_.close();
  if (type == F_UNLCK) {
    if (Session *s = Session::existing(thd)) s->done_with_table();
    return 0;
  }
  if (type == F_WRLCK) access_ = locked_for_ = Access::Update;
  applies_rows_ = type == F_WRLCK && applies_rows_to(thd, table);
  event_locks_rows_ = applies_rows_ && event_may_lock_rows(thd, share_->may_expire());
  if (const int error = refuse_outdated(thd)) return error;
  if (!can_see(thd)) return HA_ERR_TABLE_DEF_CHANGED;
  if (const int error = use(thd, type == F_WRLCK)) return error;
  return type == F_RDLCK && may_replace(thd) && table->s->tmp_table == NO_TMP_TABLE ? wait_for_prepared() : 0;
}

/**
  Waits for prepared transactions that have no session: they hold row locks, but no metadata lock that would keep the table from
  being replaced, and what they commit later would be lost with the old table. When this is called, the server lets no statement
  begin to write. Later it may, while an index is built, so the lock that this waits for is released at once.
*/
int Handler::wait_for_prepared() { return kingtide::wait_for_prepared(ha_thd(), share_->format().primary); }

int wait_for_prepared(THD *thd, const Index &primary) {
  const int64_t most = lock_wait_timeout_ms(thd);
  const uint64_t began = microsecond_interval_timer();
  for (int64_t timeout = NO_WAIT;; timeout = BETWEEN_LOOKS_MS) {
    Txn own;
    Outcome o = own.begin(Level::ReadUncommitted, timeout, Durability::Process);
    if (o == Outcome::Ok) o = own.lock_range(primary.prefix(), primary.end(), LockMode::Shared);
    if (o != Outcome::LockTimeout && o != Outcome::LockHeld) return server_error(thd, o);
    if (thd_kill_level(thd) != THD_IS_NOT_KILLED) return HA_ERR_ABORTED_BY_USER;
    const uint64_t waited = (microsecond_interval_timer() - began) / 1000;
    if (most == NO_WAIT || waited >= static_cast<uint64_t>(most)) return server_error(thd, o);
  }
}

/**
  How a statement reads a table that was locked before it began: for the whole of LOCK TABLES, or for all statements of a function or
  trigger and the one that calls it. `locked_for_` is then what the strongest of them needs. As in InnoDB, a plain SELECT reads the
  snapshot nonetheless, but at SERIALIZABLE; what else only reads (INSERT ... SELECT, an expression of the routine) does so as the table
  was locked.
*/
Access Handler::access_of_statement(THD *thd, thr_lock_type type) const {
  if (type >= TL_FIRST_WRITE) return Access::Update;
  if (type == TL_READ_WITH_SHARED_LOCKS || type == TL_READ_SKIP_LOCKED) return Access::Share;
  const bool plain = thd_sql_command(thd) == SQLCOM_SELECT && (type == TL_READ || type == TL_READ_HIGH_PRIORITY);
  return plain && thd_tx_isolation(thd) != ISO_SERIALIZABLE ? Access::Consistent : locked_for_;
}

int Handler::start_stmt(THD *thd, thr_lock_type type) {
  iter_.close();
  session()->forget_auto_increment_rows();
  access_ = access_of_statement(thd, type);
  skip_locked_ = type == TL_READ_SKIP_LOCKED || type == TL_WRITE_SKIP_LOCKED;
  if (const int error = refuse_outdated(thd)) return error;
  if (!can_see(thd)) return HA_ERR_TABLE_DEF_CHANGED;
  return use(thd, type >= TL_FIRST_WRITE);
}

int Handler::use(THD *thd, bool writes) {
  if (const int error = session()->use(thd, writes)) return error;
  // A copy of the table begins with what prepared transactions commit, for which this statement may still wait.
  if (!locking() && !may_replace(thd))
    if (const int error = session()->take_snapshot()) return error;
  if (writes || locking())
    if (const int error = session()->takes_locks(thd)) return error;
  if (writes) session()->needs(share_->options().has_durability ? share_->options().durability : commit_durability());
  return 0;
}

}  // namespace kingtide
