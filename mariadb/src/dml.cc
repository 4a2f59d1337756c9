/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/*
  Changes of rows. A write locks the entries that it writes, whether or not they exist. Unique keys are read under that lock, so
  statements that insert the same value wait for each other, as in InnoDB.
*/
#include "ha_kingtide.h"

#include <utility>

namespace kingtide {

int Handler::row_key_of(const uchar *record, std::string *key) {
  key->clear();
  format().append_key(format().primary, table, record, key, nullptr);
  return 0;
}

/** Locks a unique key, and reports a duplicate if a row already has it. */
int Handler::check_unique(uint number, Slice key) {
  const Outcome o = txn().contains_locked(key, LockMode::Exclusive);
  if (o == Outcome::NotFound) return 0;
  if (o != Outcome::Ok) return fail(o);
  duplicate_ = number;
  return HA_ERR_FOUND_DUPP_KEY;
}

int Handler::insert_entries(const uchar *record, Slice row_key) {
  for (uint k = 0; k < table->s->keys; k++) {
    const Index &index = format().indexes[k];
    if (index.primary) continue;
    bool checked;
    format().entry(index, table, record, row_key, &key_buffer_, &entry_buffer_, &checked);
    if (checked)
      if (const int error = note_covered(index, key_buffer_)) return error;
    if (const int error = fail(put(key_buffer_, entry_buffer_))) return error;
  }
  return 0;
}

Outcome put_row(Txn &txn, const RowFormat &format, const std::string &key, const uchar *record, uint64_t expires, std::string *buffer) {
  // Each such value gets a file of its own, and a sync of it: with 1 MB, many rows in a statement took twice as long.
  constexpr uint64_t IN_PIECES = 4 << 20;
  buffer->clear();
  if (expires != 0 || txn.takes_no_pieces || format.blob_bytes(record) < IN_PIECES) {
    format.encode(record, buffer);
    return txn.put(key, *buffer, expires);
  }
  struct Sink final : RowSink {
    ValueWriter writer;
    Outcome outcome = Outcome::Ok;
    bool take(Slice piece) override { return (outcome = writer.write(piece)) == Outcome::Ok; }
  } sink;
  Outcome o = sink.writer.begin(key);
  if (o == Outcome::Ok) o = format.encode(record, sink) ? txn.put(key, &sink.writer) : sink.outcome;
  if (o != Outcome::Busy) return o;
  // Each such value keeps its file open until it is flushed, and a statement may write thousands.
  txn.takes_no_pieces = true;
  sink.writer.close();
  format.encode(record, buffer);
  return txn.put(key, *buffer, expires);
}

/** Writes a row. A long one stays out of `second_value_`, because nothing of it is in the transaction's memory. */
Outcome Handler::put_row(const std::string &key, const uchar *record) {
  return write([&](Txn &txn) { return kingtide::put_row(txn, format().row, key, record, expires_, &second_value_); });
}

/**
  Fails if a row to be changed is no longer as it was read: the statement has called a function that changed it. Its entries are then not
  those that the record has.
*/
int Handler::still_same(Slice row_key) {
  if (!changes_below() || has_last_row(row_key) || !(Slice(row_key_) == row_key)) return 0;
  key_buffer_ = format().primary.prefix();
  append(key_buffer_, row_key);
  const Outcome o = txn().get_newest(key_buffer_, &second_value_);
  if (o == Outcome::NotFound) return HA_ERR_RECORD_DELETED;
  if (o != Outcome::Ok) return fail(o);
  return Slice(second_value_) == last_row_ ? 0 : HA_ERR_RECORD_CHANGED;
}

/**
  Makes the records of a row to be changed point to copies. In these, STORED generated columns have the values that the row has, where the
  server has computed them again, and the virtual columns that the server does not compute for a row event are computed. The row must be
  locked. `after` is null if the row is deleted.
*/
int Handler::as_stored(Slice row_key, const uchar **before, const uchar **after) {
  if (virtual_columns_ && applies_rows_) virtual_columns_->compute(before, after);
  if (!stored_columns_) return 0;
  const int command = thd_sql_command(ha_thd());
  const bool updates = command == SQLCOM_UPDATE || command == SQLCOM_UPDATE_MULTI;
  if (updates && !table->versioned()) return 0;  // the record is as it was read
  if (has_last_row(row_key)) return stored_columns_->restore(format().row, last_row_, before, after) ? 0 : unknown_row();
  key_buffer_ = format().primary.prefix();
  append(key_buffer_, row_key);
  const Outcome o = txn().get_locked(key_buffer_, LockMode::Exclusive, &stored_columns_->row);
  if (o == Outcome::NotFound) return 0;  // it has expired
  if (o != Outcome::Ok) return fail(o);
  return stored_columns_->restore(format().row, stored_columns_->row, before, after) ? 0 : unknown_row();
}

/**
  Notes a row, existing or not, if others have changed it since the snapshot. Sets `newer` if so. The row must be locked.

  Changes apply to the newest version of a row, also at REPEATABLE READ, and only write the index entries that they change. Later
  reads without locks see this row and, of other transactions, only what the snapshot has. Therefore all entries of such a row
  must be written, and reads must skip entries that only the version in the snapshot had: see pass_overwritten.
*/
int Handler::note_overwritten(const std::string &key, bool *newer) {
  *newer = false;
  const bool has_entries = table->s->keys > (format().hidden_primary ? 0U : 1U);
  if (!has_entries || copying_.open() || reads_newest() || !session()->may_overwrite_newer()) return 0;
  if (const int error = fail(txn().changed_since_snapshot(key, newer))) return error;
  if (*newer) session()->note_overwritten(key);
  return 0;
}

/**
  Notes that a key of a unique index is about to be written if others have written to it since the snapshot, which may therefore have an
  entry of another row there. The key must be locked, or the row that has it.
*/
int Handler::note_covered(const Index &index, Slice key) {
  if (copying_.open() || reads_newest() || !session()->may_overwrite_newer() || session()->has_covered(index.id)) return 0;
  bool changed = false;
  if (const int error = fail(txn().changed_since_snapshot(key, &changed))) return error;
  if (changed) session()->note_covered(index.id);
  return 0;
}

/** Counts a changed row of the table, and the change of their number. */
void Handler::count_row(int64_t change) {
  if (copying_.open())
    share_->count_changes(change, 1);  // whether or not the transaction is rolled back
  else
    session()->count_row(share_, change);
}

int Handler::write_row(const uchar *record) {
  const bool numbered = table->next_number_field && record == table->record[0];
  if (numbered)
    if (const int error = generate_number()) return error;
  const int error = insert_row(record);
  if (numbered) return number_written(error);
  // The server moves rows between partitions without `next_number_field`.
  return error || !table->found_next_number_field || record != table->record[0] ? error : saw_number(*table->found_next_number_field);
}

/**
  Gives the row a value of the auto-increment column if it has none. The server knows one error for all that can prevent it from reserving
  values. A reserved value counts as used even if the row cannot be written, as in InnoDB.
*/
int Handler::generate_number() {
  const int error = update_auto_increment();
  const int cause = std::exchange(number_error_, 0);
  if (!error) return insert_id_for_cur_row ? fail(share_->use_auto_increment(insert_id_for_cur_row)) : 0;
  return error == HA_ERR_AUTOINC_READ_FAILED && cause ? cause : error;
}

int Handler::insert_row(const uchar *record) {
  renew_generated(record, false);
  if (virtual_columns_ && applies_rows_) virtual_columns_->compute(&record, nullptr);
  std::string key = format().primary.prefix(), row_key;
  if (format().hidden_primary) {
    uint64_t hidden;
    if (const int error = fail(share_->next_hidden_key(&hidden))) return error;
    append_be(row_key, hidden, 8);
  } else {
    row_key_of(record, &row_key);
  }
  append(key, row_key);
  if (!format().hidden_primary)
    if (const int error = check_unique(table->s->primary_key, key)) return error;
  // After a duplicate, REPLACE and IGNORE continue in the same statement, so a failed insert must not have written anything:
  // check all unique keys first.
  if (const int error = check_all_unique(record)) return error;
  if (const int error = decide_expiry(record)) return error;
  bool newer;
  if (!format().hidden_primary)
    if (const int error = note_overwritten(key, &newer)) return error;
  session()->note_row(share_->record().primary, row_key);
  if (const int error = insert_entries(record, row_key)) return error;
  if (const int error = fail(put_row(key, record))) return error;
  if (const int error = copied()) return error;
  row_key_ = row_key;
  count_row(1);
  return 0;
}

/** Checks the unique secondary keys of a record to be inserted, in their order. */
int Handler::check_all_unique(const uchar *record) {
  for (uint k = 0; k < table->s->keys; k++) {
    const Index &index = format().indexes[k];
    if (index.primary || !index.unique) continue;
    bool null = false;
    key_buffer_ = index.prefix();
    format().append_key(index, table, record, &key_buffer_, &null);
    if (null) continue;
    if (const int error = check_unique(k, key_buffer_)) return error;
  }
  return 0;
}

/** The primary key of the row to be changed: from the record, or, if it is hidden, that of the row that was read last. */
int Handler::changed_row_key(const uchar *before, std::string *key) {
  if (!format().hidden_primary) return row_key_of(before, key);
  *key = row_key_;
  return 0;
}

int Handler::update_row(const uchar *before, const uchar *after) {
  if (std::exchange(unknown_row_, false)) return HA_ERR_KEY_NOT_FOUND;
  renew_generated(before, true);
  renew_generated(after, false);
  std::string old_key, new_key;
  changed_row_key(before, &old_key);
  if (format().hidden_primary)
    new_key = old_key;
  else
    row_key_of(after, &new_key);
  if (format().row.same(before, after)) return HA_ERR_RECORD_IS_THE_SAME;  // REPLACE, for example, counts such rows separately
  if (const int error = still_same(old_key)) return error;
  const uchar *const record = after;
  const ptrdiff_t to_before = before - after;
  if (const int error = as_stored(old_key, &before, &after)) return error;
  const std::string prefix = format().primary.prefix();
  const bool moves = old_key != new_key;
  if (moves)
    if (const int error = check_unique(table->s->primary_key, prefix + new_key)) return error;
  // Check all unique keys before writing anything: see write_row.
  for (uint k = 0; k < table->s->keys; k++) {
    const Index &index = format().indexes[k];
    if (index.primary || !index.unique) continue;
    bool null = false;
    key_buffer_ = index.prefix();
    second_key_ = index.prefix();
    format().append_key(index, table, before, &key_buffer_, nullptr);
    format().append_key(index, table, after, &second_key_, &null);
    if (null || key_buffer_ == second_key_) continue;
    if (const int error = check_unique(k, second_key_)) return error;
  }
  if (const int error = decide_expiry(after)) return error;
  bool newer, replaced;
  if (const int error = note_overwritten(prefix + old_key, &newer)) return error;
  if (moves)
    if (const int error = note_overwritten(prefix + new_key, &replaced)) return error;
  session()->note_row(share_->record().primary, old_key);
  if (moves) session()->note_row(share_->record().primary, new_key);
  for (uint k = 0; k < table->s->keys; k++) {
    const Index &index = format().indexes[k];
    if (index.primary) continue;
    if (const int error = move_entry(index, before, after, old_key, new_key, newer)) return error;
  }
  if (moves)
    if (const int error = fail(txn().erase(prefix + old_key))) return error;
  if (const int error = fail(put_row(prefix + new_key, after))) return error;
  count_row(0);
  const Field *number = table->found_next_number_field;
  if (!number || record != table->record[0] || !bitmap_is_set(table->write_set, number->field_index)) return 0;
  const bool changed = number->cmp(number->ptr, number->ptr + to_before) != 0 || number->is_null() != number->is_null(to_before);
  return changed && !number->is_null() ? saw_number(*number) : 0;
}

/** Replaces the entry of a row. With `always`, it is also written if it does not change. */
int Handler::move_entry(const Index &index, const uchar *before, const uchar *after, Slice old_row, Slice new_row, bool always) {
  bool was_checked, checked;
  const bool renewed = always || share_->may_expire();  // the entry gets the row's new expiry
  if (!renewed && old_row == new_row && format().same_entry(index, before, after)) return 0;
  format().entry(index, table, before, old_row, &key_buffer_, &entry_buffer_, &was_checked);
  format().entry(index, table, after, new_row, &second_key_, &second_value_, &checked);
  const bool leaves = key_buffer_ != second_key_;
  if (was_checked && always)  // otherwise the snapshot has the entry of this row there
    if (const int error = note_covered(index, key_buffer_)) return error;
  if (checked && leaves)
    if (const int error = note_covered(index, second_key_)) return error;
  if (leaves) {
    if (const int error = fail(txn().erase(key_buffer_))) return error;
  } else if (entry_buffer_ == second_value_ && !renewed) {
    return 0;
  }
  return fail(put(second_key_, second_value_));
}

int Handler::delete_row(const uchar *record) {
  std::string row_key;
  unknown_row_ = false;
  renew_generated(record, true);
  changed_row_key(record, &row_key);
  if (const int error = still_same(row_key)) return error;
  if (const int error = as_stored(row_key, &record, nullptr)) return error;
  bool newer;
  if (const int error = note_overwritten(format().primary.prefix() + row_key, &newer)) return error;
  session()->note_row(share_->record().primary, row_key);
  for (uint k = 0; k < table->s->keys; k++) {
    const Index &index = format().indexes[k];
    if (index.primary) continue;
    bool checked;
    format().entry(index, table, record, row_key, &key_buffer_, &entry_buffer_, &checked);
    if (checked && newer)
      if (const int error = note_covered(index, key_buffer_)) return error;
    if (const int error = fail(txn().erase(key_buffer_))) return error;
  }
  if (const int error = fail(txn().erase(format().primary.prefix() + row_key))) return error;
  count_row(-1);
  return 0;
}

/** The values of the auto-increment column, in steps that its last generated value had in this handler. */
Series Handler::series(const Field &number) const { return {auto_offset_, auto_increment_, number.get_max_int_value()}; }

/**
  A row that was not inserted by this statement has a value of the auto-increment column: the table's counter must be above it. As in InnoDB, 0
  does not count then. It is also what a negative value of a FLOAT column counts as.
*/
int Handler::saw_number(const Field &number) {
  AllColumnsReadable readable(table);
  const uint64_t value = const_cast<Field &>(number).val_uint();
  return value == 0 ? 0 : fail(share_->saw_auto_increment(series(number), value, this));
}

/** Whether a statement counts the auto-increment value of a row that has a duplicate: if it replaces rows, or reads them from another table. */
static bool counts_duplicates(THD *thd) {
  const int command = thd_sql_command(thd);
  const bool replaces = command == SQLCOM_LOAD && thd->lex->duplicates == DUP_REPLACE;
  return replaces || command == SQLCOM_REPLACE || command == SQLCOM_INSERT_SELECT || command == SQLCOM_REPLACE_SELECT;
}

/**
  Called for each row with an auto-increment column that was inserted or, with `error`, could not be. Then statements that do not count its value
  do not raise the next one: the value was theirs already if it was generated. But it is not generated again after a restart,
  as in InnoDB.
*/
int Handler::number_written(int error) {
  session()->auto_increment_row_written();
  const bool counts = !error || (error == HA_ERR_FOUND_DUPP_KEY && counts_duplicates(ha_thd()));
  AllColumnsReadable readable(table);
  const uint64_t value = table->next_number_field->val_uint();
  const bool only_used = !counts || (!error && value < auto_reserved_end_);
  const Outcome o = only_used ? share_->use_auto_increment(value)
                              : share_->saw_auto_increment(series(*table->next_number_field), value, this);
  return error ? error : fail(o);  // which would mark the transaction for rollback, while the statement may continue after its own error
}

/**
  The server knows how many values a statement needs only when it asks for the first time, and later it asks for more and more. So the
  first number is counted down with the rows, as in InnoDB, and later calls reserve what is left of it.
*/
void Handler::get_auto_increment(ulonglong offset, ulonglong increment, ulonglong wanted, ulonglong *first,
                                 ulonglong *reserved) {
  number_error_ = HA_ERR_OUT_OF_MEM;  // if an exception ends this
  const Series wished = {offset, increment ? increment : 1, table->next_number_field->get_max_int_value()};
  // A value that was raised by a row with a duplicate, or left by an overflow, concerns the next statement only.
  const bool continues = auto_reserved_end_ != 0 && session()->reserves_auto_increment();
  *reserved = session()->auto_increment_rows(wanted);
  uint64_t value = *first;  // the server's cursor is ahead of the counter if it passed an explicit value
  share_->take_auto_increment(wished, *reserved, this, continues, &value, &auto_reserved_end_);
  *first = value;
  if (value > wished.most) {
    *reserved = 0;  // the server reports it
  } else {
    auto_offset_ = wished.offset;
    auto_increment_ = wished.increment;
  }
  number_error_ = 0;
}

}  // namespace kingtide
