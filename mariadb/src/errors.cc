/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "errors.h"

#include "guard.h"

#include "variables.h"

namespace kingtide {
namespace {

/**
  The statement must be rolled back or, with `all`, the transaction. In a function or trigger, a handler of errors must not catch this:
  a row may have been written without all of its index entries.
*/
void must_roll_back(THD *thd, bool all) {
  if (thd) thd->mark_transaction_to_rollback(all || thd->transaction_rollback_request);
}

}  // namespace

int server_error(THD *thd, Outcome outcome) {
  const bool whole = outcome == Outcome::Conflict || outcome == Outcome::Deadlock || outcome == Outcome::Ended;
  const bool timeout = outcome == Outcome::LockTimeout || outcome == Outcome::LockHeld;
  if (outcome != Outcome::Ok && outcome != Outcome::NotFound) must_roll_back(thd, whole || (timeout && rollback_on_timeout()));
  switch (outcome) {
    case Outcome::Ok:
      return 0;
    case Outcome::NotFound:
      return HA_ERR_KEY_NOT_FOUND;
    case Outcome::Conflict:
    case Outcome::Deadlock:
      return HA_ERR_LOCK_DEADLOCK;
    case Outcome::LockTimeout:
    case Outcome::LockHeld:
      return HA_ERR_LOCK_WAIT_TIMEOUT;
    case Outcome::Interrupted:
      return HA_ERR_ABORTED_BY_USER;
    case Outcome::Ended:
      return thd && thd_kill_level(thd) != THD_IS_NOT_KILLED ? HA_ERR_ABORTED_BY_USER : HA_ERR_LOCK_DEADLOCK;
    case Outcome::Busy:
      return HA_ERR_LOCK_TABLE_FULL;
    case Outcome::NoSpace:
      sql_print_error("KINGTIDE: %s", last_message());
      return HA_ERR_RECORD_FILE_FULL;
    case Outcome::Corruption:
      sql_print_error("KINGTIDE: %s", last_message());
      return HA_ERR_CRASHED;
    case Outcome::ReadOnly:
      sql_print_error("KINGTIDE: %s", last_message());
      return HA_ERR_TABLE_READONLY;
    case Outcome::Other:
      break;
  }
  sql_print_error("KINGTIDE: %s", last_message());
  return HA_ERR_INTERNAL_ERROR;
}

void report_exception(const char *what) { sql_print_error("KINGTIDE: %s", what); }

}  // namespace kingtide
