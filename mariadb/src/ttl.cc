/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/*
  Rows that expire. The lifetime of a row is decided when it is written, by an INSERT or by an UPDATE that changes it: by the
  session (kingtide_ttl), or else by the column that the table option TTL_COLUMN names, or else by the option TTL. Its index entries
  get the same expiry time as the row, so that they disappear together.

  The lifetime of rows from another server's binary log begins when the statement began there: a row expires on a replica when it
  does on the primary, or a little earlier, since the log has whole seconds. It never expires later, when the primary may have
  another row in its place. Therefore a replica may have lost a row before an event that changes it arrives: see or_renewed.
*/
#include "ha_kingtide.h"
#include "variables.h"

#include "rpl_rli.h"

namespace kingtide {
namespace {

/** The number of seconds in a field of a record. */
uint64_t seconds_of(Field *field, const TABLE *table, const uchar *record) {
  const my_ptrdiff_t offset = record - table->record[0];
  field->move_field_offset(offset);
  const longlong seconds = field->is_null() ? 0 : field->val_int();
  const bool unsigned_value = field->is_unsigned();
  field->move_field_offset(-offset);
  if (seconds < 0 && !unsigned_value) return 0;
  return std::min(static_cast<uint64_t>(seconds), LONGEST_LIFE);
}

/** What the connection applies from another server's binary log, as a replica or by BINLOG statements; nullptr if nothing. */
rpl_group_info *applies(THD *thd) { return thd->rgi_slave ? thd->rgi_slave : thd->rgi_fake; }

/** When the lifetime of a row that is written now begins, in milliseconds since 1970. */
uint64_t written_at(THD *thd) {
  return applies(thd) ? static_cast<uint64_t>(thd->start_time) * 1000 : my_hrtime().val / 1000;
}

}  // namespace

bool applies_rows_to(THD *thd, const TABLE *table) {
  const rpl_group_info *group = applies(thd);
  if (!group) return false;
  // The server appends the tables that only triggers use, and puts the tables of a MERGE table behind it or appends them, too.
  uint left = group->tables_to_lock_count;
  for (const TABLE_LIST *listed = group->tables_to_lock; listed && left != 0; listed = listed->next_global) {
    if (listed->parent_l) continue;
    if (listed->table == table) return true;
    left--;
  }
  return false;
}

bool applies_speculatively(THD *thd) {
  const rpl_group_info *group = thd->rgi_slave;
  return group && group->is_parallel_exec && group->speculation == rpl_group_info::SPECULATE_OPTIMISTIC;
}

/** Whether the statement copies the table; the rows of the copy keep their expiry. */
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

/** Decides when a record that is about to be written expires. */
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
    if (seconds != 0) expires_ = written_at(ha_thd()) + seconds * 1000;
  }
  return expires_ ? fail(share_->rows_expire()) : 0;
}

/**
  Replaces the result of a search that found no row. If a row event is to change a row that does not exist, and rows of the table expire,
  then the row has expired here, although it had not on the primary when it was changed. The event contains the old row, which is used
  as if it had been found: a DELETE has nothing left to do, and an UPDATE renews the row.
*/
int Handler::or_renewed(uchar *record, int error) {
  // The server has the event's row in the first record, and, where it compares it with what it finds, in the second one, too.
  if (!share_->may_expire() || record != table->record[0] || !applies_rows_) return error;
  // An earlier transaction may have inserted it: see event_may_lock_rows. The first row that expires came after the event began.
  if (event_locks_rows_ && applies_speculatively(ha_thd())) return error;
  if (format().hidden_primary) {
    if (table->part_info) return error;  // another partition may have it
    uint64_t hidden;
    if (const int failed = fail(share_->next_hidden_key(&hidden))) return failed;
    memcpy(record, table->record[1], table->s->reclength);
    row_key_.clear();
    append_be(row_key_, hidden, 8);
  } else {
    unknown_row_ = !bitmap_is_set_all(table->write_set);
  }
  iter_.close();
  return 0;
}

/**
  When a replica runs a statement, other rows have expired than on the primary: if the server may choose, it logs rows.
*/
bool Handler::logs_rows_only() const {
  THD *thd = current_thd;
  if (!thd || !share_ || thd->variables.binlog_format != BINLOG_FORMAT_MIXED) return false;
  if (table->part_info) return true;  // the server wants all partitions to agree, and only some may have such rows
  const TableOptions &options = share_->options();
  return share_->may_expire() || options.ttl != 0 || options.ttl_field >= 0 || session_ttl(thd) != 0;
}

}  // namespace kingtide
