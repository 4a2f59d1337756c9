/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/*
  Rows that live for a time. How long a row lives is decided when it is written, by an INSERT or an UPDATE that changes it: by
  the session (kingtide_ttl), or else by the column that the table option TTL_COLUMN names, or else by the option TTL. Its index
  entries get the very moment that the row gets, so that they are gone together.
*/
#include "ha_kingtide.h"
#include "variables.h"

namespace kingtide {
namespace {

/** Seconds that a field of a record says. */
uint64_t seconds_of(Field *field, const TABLE *table, const uchar *record) {
  const my_ptrdiff_t offset = record - table->record[0];
  field->move_field_offset(offset);
  const longlong seconds = field->is_null() ? 0 : field->val_int();
  const bool unsigned_value = field->is_unsigned();
  field->move_field_offset(-offset);
  if (seconds < 0 && !unsigned_value) return 0;
  return std::min(static_cast<uint64_t>(seconds), LONGEST_LIFE);
}

}  // namespace

/** Whether the statement makes a new copy of the table, whose rows live as long as they would have. */
bool copies_table(THD *thd) {
  switch (thd_sql_command(thd)) {
    case SQLCOM_ALTER_TABLE:
    case SQLCOM_CREATE_INDEX:
    case SQLCOM_DROP_INDEX:
    case SQLCOM_OPTIMIZE:
    case SQLCOM_REPAIR:
      return true;
    default:
      return false;
  }
}

/** Decides when a record that is about to be written is gone. */
int Handler::decide_expiry(const uchar *record) {
  const TableOptions &options = share_->options();
  const uint64_t session_seconds = session_ttl(ha_thd());
  expires_ = 0;
  if (session_seconds == 0 && options.ttl == 0 && options.ttl_field < 0 && !share_->may_expire() &&
      !session()->copies_rows())
    return 0;
  if (session()->copies_rows()) {
    expires_ = session()->expiry_of_copy();
  } else {
    uint64_t seconds = session_seconds;
    if (seconds == 0)
      seconds = options.ttl_field >= 0 ? seconds_of(table->field[options.ttl_field], table, record) : options.ttl;
    if (seconds != 0) expires_ = my_hrtime().val / 1000 + seconds * 1000;
  }
  return expires_ ? fail(share_->rows_expire()) : 0;
}

}  // namespace kingtide
