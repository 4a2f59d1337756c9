/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/*
  Reading rows: by position, by unique key, and by walking an index.

  A consistent read sees the transaction's snapshot and takes no lock. A locking read sees the newest rows, and

  * at REPEATABLE READ and above, locks the range before reading it: entries and the gaps between them. If the server gave no end of
    the range, or a LIMIT, it is not known how far the walk will go. Then the range is locked in steps, each from the end of the
    previous step up to the next entry, then the next two, four and so on, which are read again under the lock.
  * at READ COMMITTED, in temporary tables, and for row events of a binary log, locks each row that it meets, reads it again under the lock,
    and skips it if its entry is out of date. If the statement has waited for a lock, the walk looks at its range again, for rows that were moved
    to where it had been: InnoDB's walk meets entries that are not committed, and waits for them. Rows that the server rejects are unlocked;
    an UPDATE first looks at the last committed values of a row that another transaction has locked, and waits for the row only if
    they match.
*/
#include "ha_kingtide.h"

#include <algorithm>
#include <functional>
#include <new>
#include <string_view>
#include <utility>

#include "lock_waits.h"
#include "variables.h"

namespace kingtide {
namespace {

/** Number of skipped entries after which a walk checks whether it was killed. */
constexpr uint LOOK_UP = 256;
/** A walk that locks in steps locks the whole rest instead of a step with more entries than this. */
constexpr uint LONGEST_STEP = 1024;
/** A walk that locks rows notes as many of those that it has delivered. */
constexpr size_t MOST_DELIVERED = 1 << 16;
/** A walk that waits again and again passes about as many entries again, in all, before it only looks ahead: that takes a fraction of a second. */
constexpr size_t MOST_PASSED_AGAIN = 1 << 18;
/** From this average size on, rows are in a value log, and are not read if their keys have all wanted columns. */
constexpr ulong LOGGED_ROW = 512;
/** From this average size on, rows are looked up one by one, and read in pieces if no blob is wanted. */
constexpr ulong LONG_ROW = 64 * 1024;

/** Whether a column of the key is computed and not stored. */
bool is_computed(const KEY &key) {
  bool computed = false;
  for (uint i = 0; i < key.user_defined_key_parts; i++) computed |= !key.key_part[i].field->stored_in_db();
  return computed;
}

}  // namespace

int Handler::index_init(uint index, bool) {
  active_index = index;
  for_copy_ = false;
  index_ = &format().indexes[index];
  checks_unique_ = access_ == Access::Update && is_checked_by_server(table->key_info[index]);
  iter_.close();
  position_.clear();
  at_end_ = false;
  first_record_ = nullptr;
  return can_see_index(index) ? 0 : HA_ERR_TABLE_DEF_CHANGED;
}

int Handler::index_end() {
  active_index = MAX_KEY;
  iter_.close();
  mrr_.dsmrr_close();  // the next multi-range read may use another index
  return 0;
}

/** Begins a walk over [from, to) of an index, at the first or the last entry. */
int Handler::start(Slice from, Slice to, Way way) {
  const std::string lower = from.str(), upper = to.str();
  iter_.close();
  in_range_check_pushed_down = false;
  from_ = lower;
  to_ = upper;
  way_ = way;
  passed_key_.clear();
  if (Slice(from_).compare(to_) >= 0) return HA_ERR_END_OF_FILE;
  again_ = false;
  missed_ = Missed::Nothing;
  waits_ = LockWaits::of_this_thread();
  delivered_.clear();
  sorted_delivered_ = visited_ = visited_at_delivered_ = passed_again_ = 0;
  last_delivered_.clear();
  only_keys_ = index_->primary && reads_keys_only();
  by_steps_ = locks_by_steps();
  if (by_steps_) {
    rest_from_ = from_;
    rest_to_ = to_;
    step_ = 1;
    return lock_ahead();
  }
  if (locks_gaps())
    if (const int error = fail(txn().lock_range(from_, to_, lock_mode()))) return error;
  if (const int error = fail(txn().iterate(from_, to_, locking() || reads_newest(), iter_.seen()))) return error;
  if (sees_covered()) {
    const Snapshot *snapshot;
    if (const int error = fail(session()->without_own_writes(&snapshot))) return error;
    if (const int error = fail(iter_.with(*snapshot, from_, to_, format(), *index_))) return error;
  }
  if (only_keys_) iter_.only_keys();
  if (way == Way::Forward)
    iter_.first();
  else
    iter_.last();
  return 0;
}

/** Whether it is unknown how far the walk will go. A table scan without a LIMIT reads the whole table. */
bool Handler::locks_by_steps() const {
  if (!locks_gaps()) return false;
  const TABLE_LIST *list = table->pos_in_table_list;
  if (list && list->select_lex && list->select_lex->limit_params.select_limit) return true;
  const bool has_end = way_ == Way::Forward ? to_ != index_->end() : from_ != index_->prefix();
  return !has_end && active_index != MAX_KEY;
}

/** Locks the next entries and the gaps before them, and moves the walk to the first of them. */
int Handler::lock_ahead() {
  do {
    Iter ahead;
    std::string from = rest_from_, to = rest_to_;
    bool all = step_ > LONGEST_STEP;
    if (!all) {
      if (const int error = fail(txn().iterate(from, to, true, &ahead))) return error;
      ahead.only_keys();  // the walk reads what is wanted of them
      bool valid = way_ == Way::Forward ? ahead.first() : ahead.last();
      for (uint n = 1; valid && n < step_; n++) valid = way_ == Way::Forward ? ahead.next() : ahead.prev();
      if (const int error = fail(ahead.status())) return error;
      all = !valid;
    }
    if (!all && way_ == Way::Forward) to = ahead.key().str() + std::string(1, '\0');
    if (!all && way_ == Way::Backward) from = ahead.key().str();
    ahead.close();
    if (const int error = fail(txn().lock_range(from, to, lock_mode()))) return error;
    if (const int error = fail(txn().iterate(from, to, true, iter_.seen()))) return error;
    if (only_keys_) iter_.only_keys();
    if (way_ == Way::Forward)
      iter_.first();
    else
      iter_.last();
    by_steps_ = !all;
    step_ *= 2;
    (way_ == Way::Forward ? rest_from_ : rest_to_) = way_ == Way::Forward ? to : from;
    if (iter_.valid() || iter_.status() != Outcome::Ok) break;
  } while (by_steps_);  // the entries were deleted before they were locked
  return 0;
}

/** The end of the range that the server announced, or of the index. */
std::string Handler::upper_of_range() const {
  if (!end_range) return index_->end();
  std::string upper = index_->prefix();
  bool null = false;
  uint parts;
  format().append_tuple(*index_, table, end_range->key, end_range->keypart_map, &upper, &null, &parts);
  return end_range->flag == HA_READ_AFTER_KEY ? after_prefix(upper) : upper;
}

/**
  Begins a forward walk up to the end of the range that the server announced. Keys of integers sort exactly like their columns, so the server
  need not compare each row with that end.
*/
int Handler::start_range(Slice from) {
  const int error = start(from, upper_of_range(), Way::Forward);
  in_range_check_pushed_down = end_range && format().sorts_by_integers(*index_, end_range->keypart_map);
  return error;
}

int Handler::index_read_map(uchar *record, const uchar *key, key_part_map map, ha_rkey_function flag) {
  bool null = false;
  uint parts;
  std::string at = index_->prefix();
  format().append_tuple(*index_, table, key, map, &at, &null, &parts);
  same_ = at;
  only_same_ = false;
  first_record_ = record;
  int error;
  switch (flag) {
    case HA_READ_KEY_EXACT:
    case HA_READ_PREFIX:
      if (index_->unique && !null && parts == index_->parts.size())
        return or_expired(record, sees_covered() ? read_first_of_key(record) : read_unique(record));
      only_same_ = true;
      error = start(at, after_prefix(at), Way::Forward);
      break;
    case HA_READ_KEY_OR_NEXT:
      error = start_range(at);
      break;
    case HA_READ_AFTER_KEY:
      error = start_range(after_prefix(at));
      break;
    case HA_READ_PREFIX_LAST:
      only_same_ = true;
      error = start(at, after_prefix(at), Way::Backward);
      break;
    case HA_READ_KEY_OR_PREV:
    case HA_READ_PREFIX_LAST_OR_PREV:
      error = start(index_->prefix(), after_prefix(at), Way::Backward);
      break;
    case HA_READ_BEFORE_KEY:
      error = start(index_->prefix(), at, Way::Backward);
      break;
    default:
      return HA_ERR_UNSUPPORTED;
  }
  if (!error) error = deliver(record);
  if (error == HA_ERR_END_OF_FILE) {
    at_end_ = !only_same_;
    position_ = only_same_ ? at : way_ == Way::Forward ? to_ : from_;
    return or_expired(record, HA_ERR_KEY_NOT_FOUND);
  }
  return error;
}

int Handler::index_first(uchar *record) {
  only_same_ = false;
  first_record_ = record;
  const int error = start_range(index_->prefix());
  return error ? error : deliver(record);
}

int Handler::index_last(uchar *record) {
  only_same_ = false;
  first_record_ = record;
  const int error = start(index_->prefix(), index_->end(), Way::Backward);
  return error ? error : deliver(record);
}

/** Continues from the entry that was delivered last. */
int Handler::step(uchar *record, Way way) {
  // After HANDLER has read from one partition only, the server may continue in another one, where it has read by another index.
  if (!iter_.open() && position_.empty()) return HA_ERR_END_OF_FILE;
  const bool past_same = only_same_ && iter_.open() && !iter_.valid();
  if (!iter_.open() || way != way_ || past_same) {
    // A new walk from here: no walk is open, the direction changes, or it continues beyond the requested keys.
    only_same_ = false;
    // Another entry may have the same key; between two statements of HANDLER another row may have got it.
    const bool shared = !at_end_ && (sees_covered() || (serves_handler_read() && index_->unique && !index_->primary));
    const std::string here = position_, row = position_row_, after = at_end_ ? here : here + std::string(1, '\0');
    const Slice from = past_same && way == way_ ? Slice(to_) : shared ? Slice(here) : Slice(after);
    const int error = way == Way::Forward ? start(from, index_->end(), way) : start(index_->prefix(), shared ? after : here, way);
    if (shared) {
      passed_key_ = here;
      passed_row_ = row;
    }
    return error ? error : deliver(record);
  }
  if (const int error = advance()) return error;
  if (only_same_ && !iter_.valid() && iter_.status() == Outcome::Ok) return step(record, way);
  return deliver(record);
}

int Handler::advance() {
  if (!iter_.valid() || again_) return 0;
  if (event_locks_rows_) unlock_row();  // the server calls unlock_row() for statements only
  if (locking() && !skip_locked_ && LockWaits::of_this_thread() != waits_ && locks_single_rows()) missed_ = Missed::Behind;
  if (missed_ != Missed::Nothing) return see_changes();
  if (way_ == Way::Forward)
    iter_.next();
  else
    iter_.prev();
  return by_steps_ && !iter_.valid() && iter_.status() == Outcome::Ok ? lock_ahead() : 0;
}

int Handler::index_next(uchar *record) { return or_expired(record, step(record, Way::Forward)); }

int Handler::index_prev(uchar *record) {
#ifdef WITH_PARTITION_STORAGE_ENGINE
  // The server walks backwards with a buffer for each partition, and hands it over from the first read on. After HANDLER has read from
  // one partition only, straight into the table's record, it has set no buffers up: this is memory that it has freed, or anything.
  if (table->part_info && serves_handler_read() && record != first_record_) return HA_ERR_WRONG_COMMAND;
#endif
  return step(record, Way::Backward);
}

int Handler::index_next_same(uchar *record, const uchar *, uint) {
  if (!iter_.open() || way_ != Way::Forward) {  // a unique key has no further row
    position_ = after_prefix(same_);
    at_end_ = true;
    return HA_ERR_END_OF_FILE;
  }
  if (const int error = advance()) return error;
  if (!iter_.valid() || !iter_.key().starts_with(same_)) return iter_error();
  const int error = deliver(record);
  return !error && !Slice(position_).starts_with(same_) ? HA_ERR_END_OF_FILE : error;
}

/** The reason why the walk is at no entry. */
int Handler::iter_error() {
  const Outcome o = iter_.status();
  if (o != Outcome::Ok) return fail(o);
  // HANDLER ... READ may turn around here; it then gets the entry at which the walk ended.
  position_ = way_ == Way::Forward ? to_ : from_;
  at_end_ = true;
  return HA_ERR_END_OF_FILE;
}

/** Fills the record from the current entry, or from the next one that belongs to the result. */
int Handler::deliver(uchar *record) {
  for (uint passed = 1;; passed++) {
    if (!iter_.valid()) return iter_error();
    assign(position_, iter_.key());
    at_end_ = false;
    visited_++;
    bool pass = false;
    const int error = index_->primary ? deliver_row(record, &pass) : deliver_entry(record, &pass);
    if (!error && !pass) note_delivered();
    if (error || !pass) return error;
    if (passed % LOOK_UP == 0 && thd_kill_level(ha_thd()) != THD_IS_NOT_KILLED) return HA_ERR_ABORTED_BY_USER;
    if (const int failed = advance()) return failed;
  }
}

/** Notes that the row of an entry has changed since the walk began, so that it may have another entry further on. */
void Handler::note_changed_row() {
  if (locks_single_rows()) missed_ = Missed::Ahead;
}

/** Notes a row that the server gets, so that it does not get it again: see see_changes. */
void Handler::note_delivered() {
  if (!locks_single_rows() || delivered_.size() >= MOST_DELIVERED) return;
  delivered_.push_back(std::hash<std::string>()(row_key_));
  last_delivered_ = position_;
  visited_at_delivered_ = visited_;
}

/** Whether the walk delivered the row before it began to look at its range again. */
bool Handler::was_delivered(Slice row_key) const {
  if (sorted_delivered_ == 0) return false;
  const size_t hash = std::hash<std::string_view>()({reinterpret_cast<const char *>(row_key.data), row_key.size});
  return std::binary_search(delivered_.begin(), delivered_.begin() + static_cast<ptrdiff_t>(sorted_delivered_), hash);
}

/**
  Whether the server may rely on the order of the index. To the rows that a statement changes it does not matter, but a union of several indexes,
  each of which is read by a clone, would have a row twice, and a subquery may group what it reads.
*/
bool Handler::needs_order() const {
  if (cloned_) return true;
  if (applies_rows_) return false;
  const int command = thd_sql_command(ha_thd());
  const bool changes = command == SQLCOM_UPDATE || command == SQLCOM_UPDATE_MULTI || command == SQLCOM_DELETE || command == SQLCOM_DELETE_MULTI;
  const TABLE_LIST *list = table->pos_in_table_list;
  if (!list || !list->select_lex) return !changes;
  if (!changes && list->embedding) return true;
  for (const TABLE_LIST *nest = list->embedding; nest; nest = nest->embedding)
    if (nest->sj_on_expr) return true;  // a semi-join may look only at the first of equal keys
  // Those around it, too, in case that they have been merged.
  for (SELECT_LEX *select = list->select_lex; select; select = select->outer_select()) {
    if (changes && !select->outer_select()) return false;
    if (select->order_list.elements || select->group_list.elements || select->options & SELECT_DISTINCT) return true;
    if (key_read_ && select->agg_func_used()) return true;  // COUNT(DISTINCT k) may count where the key changes
  }
  return false;
}

/**
  Moves a walk that locks rows but not its range to the next entry of the index as it is now. After a wait it goes back to its
  beginning or, where order matters, to what it delivered last, and passes the rows that it has delivered. If those are too many, or it did so too
  often, it goes on from its position. With SKIP LOCKED it does not go back to what it skipped.
*/
int Handler::see_changes() {
  waits_ = LockWaits::of_this_thread();
  const bool may_go_back = delivered_.size() < MOST_DELIVERED && passed_again_ < MOST_PASSED_AGAIN;
  const bool goes_back = std::exchange(missed_, Missed::Nothing) == Missed::Behind && may_go_back;
  // An entry with the same key may now be of another row.
  const bool shared = index_->unique && !index_->primary, forward = way_ == Way::Forward;
  const bool in_order = needs_order() && !last_delivered_.empty();
  const std::string here = goes_back ? last_delivered_ : position_, after = here + std::string(1, '\0');
  const bool bounded = !goes_back || in_order;
  const Slice next = (goes_back || shared) == forward ? here : after;
  const Slice from = forward && bounded ? next : Slice(from_), to = forward || !bounded ? Slice(to_) : next;
  if (goes_back) {
    const auto middle = delivered_.begin() + static_cast<ptrdiff_t>(sorted_delivered_);
    std::sort(middle, delivered_.end());
    std::inplace_merge(delivered_.begin(), middle, delivered_.end());
    sorted_delivered_ = delivered_.size();
    passed_again_ += visited_ - (in_order ? visited_at_delivered_ : 0);
    visited_ = visited_at_delivered_ = 0;
  }
  if (const int error = fail(txn().iterate(from, to, true, iter_.seen()))) return error;
  if (only_keys_) iter_.only_keys();
  if (forward)
    iter_.first();
  else
    iter_.last();
  if (goes_back || !shared || !iter_.valid() || !(iter_.key() == here)) return 0;
  Slice value, owner;
  if (const int error = fail(iter_.value(&value))) return error;
  if (!format().row_key(*index_, here, value, &owner)) return damaged();
  return owner == row_key_ ? advance() : 0;
}

/** Whether the walk that begins should not read values with the keys, because they are long and not needed. */
bool Handler::reads_keys_only() const {
  if (for_copy_ || stats.mean_rec_length < LOGGED_ROW) return false;
  if (locking() && !locks_gaps()) return true;  // each row is read again under its lock
  return (!locking() && has_long_rows()) || gives_all(table->record[0]);
}

/** Whether the keys of the rows have all columns that are wanted. */
bool Handler::gives_all(const uchar *record) const {
  const Wanted columns = wanted(record);
  return !columns.all() && format().primary_gives(columns);
}

/** Whether rows are so long that saving a copy of each is worth a lookup. */
bool Handler::has_long_rows() const { return stats.mean_rec_length >= LONG_ROW && table_share->blob_fields != 0; }

/** Whether to read a row in pieces: most of it is probably blobs that are not wanted. */
bool Handler::reads_pieces(const uchar *record) const {
  if (!has_long_rows() || reads_newest() || wanted(record).all()) return false;
  for (uint i = 0; i < table_share->blob_fields; i++)
    if (bitmap_is_set(table->read_set, table_share->blob_field[i])) return false;
  return true;
}

int Handler::deliver_row(uchar *record, bool *pass) {
  if (locking() && !locks_gaps()) {
    const Slice key = Slice(position_).from(4);
    *pass = !again_ && was_delivered(key);
    return *pass ? 0 : read_row(key, record, pass);
  }
  if (only_keys_ && gives_all(record)) {
    const Slice key = Slice(position_).from(4);
    if (locking() || format().hidden_primary) assign(row_key_, key);
    last_row_lock_ = 0;
    return format().restore_primary(key, record) ? 0 : unknown_row();
  }
  if (only_keys_ && has_long_rows()) return read_row(Slice(position_).from(4), record, pass);
  Slice value;
  if (const int error = fail(iter_.value(&value))) return error;
  const bool keeps = stored_columns_ && access_ == Access::Update;
  if (keeps || table_share->blob_fields != 0) {  // the record may be used after the walk is closed
    assign(row_, value);
    value = row_;
  }
  last_row_ = value;
  last_row_lock_ = keeps ? txn().lock_calls() : 0;  // the range is locked
  if (locking() || format().hidden_primary) assign(row_key_, Slice(position_).from(4));
  if (for_copy_) session()->copy_row(iter_.expires());
  return decode_row(value, record);
}

/** The columns to be read. Statements that change rows, or may have to recognize them, need all: see needs_all. */
Wanted Handler::wanted(const uchar *record) const {
  return needs_all() || for_copy_ || whole_row_ || record != table->record[0] ? Wanted() : Wanted(table->read_set->bitmap);
}

/** Whether a statement that locks rows needs columns of them that the server has not asked for: see pass_outdated. */
bool Handler::needs_all() const {
  if (access_ == Access::Update && !only_selects() && !only_deletes()) return true;
  return locking() && rechecks_entries() && !index_->primary && !is_computed(table->key_info[active_index]) && lacks_key_columns();
}

/**
  Whether a column of the scanned index is not read. The server asks for the columns of all keys only when it begins to delete: not while it
  sorts rows or merges indexes before that, and not in a table that it only joins.
*/
bool Handler::lacks_key_columns() const {
  for (const IndexPart &part : index_->parts)
    if (!bitmap_is_set(table->read_set, part.field)) return true;
  return false;
}

/** Whether the statement only locks the rows: SELECT ... FOR UPDATE. */
bool Handler::only_selects() const {
  return thd_sql_command(ha_thd()) == SQLCOM_SELECT && table->s->tmp_table == NO_TMP_TABLE;
}

/**
  Whether the statement only deletes rows: when it does, the server has asked for the columns of all keys, which are enough to find the
  entries.
*/
bool Handler::only_deletes() const {
  const int command = thd_sql_command(ha_thd());
  if (command != SQLCOM_DELETE && command != SQLCOM_DELETE_MULTI) return false;
  return !generated_blobs_ && !stored_columns_ && !table->versioned() && table->s->tmp_table == NO_TMP_TABLE;
}

int Handler::deliver_entry(uchar *record, bool *pass) {
  Slice value;
  if (const int error = fail(iter_.value(&value))) return error;
  if (index_->unique && (sees_covered() || serves_handler_read())) {
    Slice row_key;
    if (!format().row_key(*index_, position_, value, &row_key)) return damaged();
    assign(position_row_, row_key);
    if (passed_key_ == position_) {
      const int order = row_key.compare(passed_row_);
      *pass = way_ == Way::Forward ? order <= 0 : order >= 0;
    }
    if (!*pass && iter_.at_covered())
      if (const int error = pass_covered(row_key, pass)) return error;
    if (*pass) return 0;
  }
  if (sorted_delivered_ != 0) {
    Slice row_key;
    if (!format().row_key(*index_, position_, value, &row_key)) return damaged();
    if ((*pass = was_delivered(row_key))) return 0;
  }
  return from_entry(Slice(position_), value, record, pass);
}

/**
  Sets `pass` if the row, which was read under its lock or at READ UNCOMMITTED, has changed since the entry was read and now has
  another entry.
*/
int Handler::pass_outdated(const uchar *record, bool *pass) {
  if (!rechecks_entries()) return 0;
  if (!is_computed(table->key_info[active_index])) {
    bool checked;
    format().entry(*index_, table, record, row_key_, &key_buffer_, &entry_buffer_, &checked);
    *pass = key_buffer_ != position_;
  } else {
    // The server computes such columns later. While the row is locked its entries do not change: check that it still has this one.
    Iter entry;
    Slice value, owner;
    if (const int error = fail(txn().iterate(position_, position_ + std::string(1, '\0'), true, &entry))) return error;
    *pass = !entry.first();
    if (const int error = fail(*pass ? entry.status() : entry.value(&value))) return error;
    if (!*pass) {
      if (!format().row_key(*index_, position_, value, &owner)) return damaged();
      *pass = !(owner == row_key_);
    }
  }
  if (!*pass) return 0;
  unlock_row();
  note_changed_row();
  return 0;
}

/**
  Sets `pass` if an entry is of a version of the row that the transaction no longer sees, because it has changed a newer one.

  If the row that it sees is also the newest, it is the transaction's own, or no other transaction has changed it: then the newest
  entries are its entries. Otherwise the transaction has taken its change back, and sees row and entries of the snapshot.
*/
int Handler::pass_overwritten(Slice key, Slice row_key, bool *pass) {
  const std::string row = format().primary.prefix() + row_key.str();
  if (!session()->may_be_overwritten(row)) return 0;
  std::string seen, newest, entry;
  const Outcome o = txn().get(row, &seen);
  *pass = o == Outcome::NotFound;
  if (o != Outcome::Ok) return *pass ? 0 : fail(o);
  const Outcome found = txn().get_newest(key, &entry);
  if (found != Outcome::Ok && found != Outcome::NotFound) return fail(found);
  const Outcome exists = txn().get_newest(row, &newest);
  if (exists != Outcome::Ok) return exists == Outcome::NotFound ? 0 : fail(exists);
  if (newest != seen) return 0;
  Slice owner;
  *pass = found == Outcome::NotFound || !format().row_key(*index_, key, entry, &owner) || !(owner == row_key);
  return 0;
}

/**
  Sets `pass` unless the transaction sees a row as its snapshot has it: otherwise an entry that only the snapshot has is of an older
  version.
*/
int Handler::pass_covered(Slice row_key, bool *pass) {
  const Snapshot *snapshot;
  const std::string row = format().primary.prefix() + row_key.str();
  std::string seen, old;
  Outcome o = txn().get(row, &seen);
  *pass = o == Outcome::NotFound;
  if (o != Outcome::Ok) return *pass ? 0 : fail(o);
  if (const int error = fail(session()->without_own_writes(&snapshot))) return error;
  o = snapshot->get(row, &old);
  if (o != Outcome::Ok && o != Outcome::NotFound) return fail(o);
  *pass = o == Outcome::NotFound || seen != old;
  return 0;
}

/** Fills the record from an index entry if that has all wanted columns, or else from the row that it refers to. */
int Handler::from_entry(Slice key, Slice value, uchar *record, bool *pass) {
  if (pushed_idx_cond && pushed_idx_cond_keyno == active_index) {
    if (!format().restore(*index_, key, value, table->record[0])) return damaged();
    // The server's own check is not used, because it also compares with the end of the range, for which it needs complete columns
    // where the index has only beginnings. The walk itself stops at the end of the range.
    if (thd_kill_level(ha_thd()) != THD_IS_NOT_KILLED) return HA_ERR_ABORTED_BY_USER;
    if (!pushed_idx_cond->val_bool()) {
      *pass = true;
      return 0;
    }
  }
  Slice row_key;
  if (!locking() && !reads_newest() && session()->has_overwritten()) {
    if (!format().row_key(*index_, key, value, &row_key)) return damaged();
    if (const int error = pass_overwritten(key, row_key, pass)) return error;
    if (*pass) return 0;
  }
  // A multi-range read asks for index-only reads in a way that lets the server compute such columns nonetheless, and compare them with
  // the end of the range: then the row is needed.
  const bool only_index = key_read_ && (keyread_enabled() || !is_computed(table->key_info[active_index]));
  const bool covers = only_index && !locking() && format().covers(*index_, wanted(record));
  if (covers && !format().restore(*index_, key, value, record, wanted(record))) return damaged();
  if (covers && !format().hidden_primary) return 0;  // the record has the primary key for position()
  if (!format().row_key(*index_, key, value, &row_key)) return damaged();
  if (covers) {
    assign(row_key_, row_key);
    return 0;
  }
  // The primary key too, for position().
  whole_row_ = (key_read_ && (!only_index || index_->has_virtual_beginnings)) || reads_uncommitted();
  const int error = read_row(row_key, record, pass);
  whole_row_ = false;
  if (error) return error;
  // Before the entry's columns overwrite the row's.
  if (!*pass && (locking() || reads_uncommitted()))
    if (const int failed = pass_outdated(record, pass)) return failed;
  if (!only_index || *pass) return 0;
  // With an index-only read, the server expects generated columns from the index and does not compute them.
  if (!format().restore(*index_, key, value, record)) return damaged();
  if (index_->has_virtual_beginnings) compute_beginnings(record);
  return 0;
}

/** Computes the virtual columns of which the index has only the beginning. The record has all stored columns. */
void Handler::compute_beginnings(uchar *record) {
  Generating generating(table, record);
  for (const IndexPart &p : index_->beginnings)
    if (!table->field[p.field]->stored_in_db()) generating.compute(table->field[p.field]);
}

int Handler::damaged() {
  sql_print_error("KINGTIDE: an index entry of table %s.%s is in an unknown format", table_share->db.str,
                  table_share->table_name.str);
  return HA_ERR_CRASHED;
}

/** Calls a function that reads and locks a key. Unless it may wait for the lock: LockHeld if another transaction has locked the key. */
template <class Read>
Outcome Handler::read_locked(bool waits, const Read &read) {
  if (waits) return read();
  const int64_t before = session()->lock_timeout();
  session()->set_lock_timeout(NO_WAIT);
  const Outcome o = read();
  session()->set_lock_timeout(before);  // writes of the statement wait
  return o;
}

/**
  Returns the row that was read: a long one where it is, in `value_`, otherwise a copy. The server may read the byte after a blob, so that
  byte must not be in the next page, which may be unmapped.
*/
Slice Handler::read_value(Value *read) {
  constexpr size_t SHORT_VALUE = 64 * 1024, PAGE = 4096;
  const Slice bytes = read->bytes();
  if (bytes.size > SHORT_VALUE) {
    value_.swap(*read);
    read->clear();
    if (reinterpret_cast<uintptr_t>(bytes.data + bytes.size) % PAGE != 0) return bytes;
  }
  assign(row_, bytes);
  return row_;
}

/** Whether an UPDATE that must wait for the row of `whole_key_` first reads it without the lock. */
bool Handler::may_look_first() const {
  return semi_consistent_ && !again_ && iter_.open() && index_->primary && session()->reads_committed();
}

/** Reads and locks the row of `whole_key_`; an UPDATE that must wait first reads it without the lock. */
Outcome Handler::get_row_locked(Slice *row) {
  const bool look_first = may_look_first();
  again_ = false;
  const bool waits = !skip_locked_ && !look_first;
  Value *const read = &txn().scratch();
  const Outcome o = read_locked(waits, [&] { return txn().get_locked(whole_key_, lock_mode(), read); });
  if (o == Outcome::Ok) *row = read_value(read);
  if (waits || skip_locked_ || o != Outcome::LockHeld) return o;
  did_semi_consistent_ = true;
  const Outcome newest = txn().get_newest(whole_key_, &row_);
  *row = row_;
  return newest;
}

/** Reads the row of `whole_key_` without a lock. */
Outcome Handler::get_row(Slice *row) {
  if (reads_newest()) {
    const Outcome newest = txn().get_newest(whole_key_, &row_);
    *row = row_;
    return newest;
  }
  Txn &own = txn();
  const Outcome o = own.get(whole_key_, &own.scratch());
  if (o == Outcome::Ok) *row = read_value(&own.scratch());
  return o;
}

/** Reads a row by the bytes of its primary key. Sets `pass` if there is none, or if it is locked and locked rows are skipped. */
int Handler::read_row(Slice key, uchar *record, bool *pass) {
  assign(row_key_, key);
  whole_key_.clear();
  append_be(whole_key_, format().primary.id, 4);
  whole_key_ += row_key_;
  return read_whole_key(record, pass);
}

/** Does the same for the key in `whole_key_`; `row_key_` is that key without the number of the index. */
int Handler::read_whole_key(uchar *record, bool *pass) {
  did_semi_consistent_ = false;
  if (!may_look_first()) {
    if ((locking() || stats.mean_rec_length >= LOGGED_ROW) && !reads_newest() && gives_all(record)) return read_key_alone(record, pass);
    if (reads_pieces(record)) return read_row_in_pieces(record, pass);
  }
  Slice row;
  const Outcome o = locking() ? get_row_locked(&row) : get_row(&row);
  if (passes(o, pass)) return 0;
  last_row_ = row;
  if (access_ == Access::Update && o == Outcome::Ok && !did_semi_consistent_) last_row_lock_ = txn().lock_calls();
  return o == Outcome::Ok ? decode_row(row, record) : fail(o);
}

/** To be called with the answer to a read of a single row: notes its lock, and returns whether to pass the row. */
bool Handler::passes(Outcome o, bool *pass) {
  *pass = o == Outcome::NotFound || (o == Outcome::LockHeld && skip_locked_);
  if (o == Outcome::NotFound) note_changed_row();
  row_lock_ = locking() && o != Outcome::LockHeld && locks_only_rows() ? txn().lock_calls() : 0;
  last_row_ = Slice();
  last_row_lock_ = 0;
  if (*pass) unlock_row();
  return *pass;
}

/** Looks whether there is a row of `whole_key_`, which has all columns that are wanted. */
int Handler::read_key_alone(uchar *record, bool *pass) {
  const auto look = [this] { return txn().contains_locked(whole_key_, lock_mode()); };
  const Outcome o = locking() ? read_locked(!skip_locked_, look) : txn().contains(whole_key_);
  again_ = false;
  if (passes(o, pass)) return 0;
  if (o != Outcome::Ok) return fail(o);
  return format().restore_primary(row_key_, record) ? 0 : unknown_row();
}

/** Reads only the parts of the row of `whole_key_` that have wanted columns, none of which is a blob. */
int Handler::read_row_in_pieces(uchar *record, bool *pass) {
  struct Pieces final : RowPieces {
    ValueReader reader;
    std::string buffer;
    Outcome outcome = Outcome::Ok;
    uint64_t size() const override { return reader.size(); }
    bool read(uint64_t offset, size_t size, Slice *piece) override {
      outcome = reader.read(offset, size, &buffer);
      *piece = buffer;
      return outcome == Outcome::Ok;
    }
  } pieces;
  const auto open = [&] { return txn().open_value_locked(whole_key_, lock_mode(), &pieces.reader); };
  const Outcome o = locking() ? read_locked(!skip_locked_, open) : txn().open_value(whole_key_, &pieces.reader);
  again_ = false;
  if (passes(o, pass)) return 0;
  if (o != Outcome::Ok) return fail(o);
  if (format().row.decode(pieces, record, table_share->default_values, wanted(record))) return 0;
  return pieces.outcome == Outcome::Ok ? unknown_row() : fail(pieces.outcome);
}

/**
  Whether `last_row_` is the row with this key as it is now: it was read last, with an exclusive lock, and the transaction has written
  nothing since.
*/
bool Handler::has_last_row(Slice key) const {
  return last_row_lock_ != 0 && last_row_lock_ == txn().lock_calls() && Slice(row_key_) == key;
}

/** The server rejects the row that was read last. At READ COMMITTED it is unlocked. */
void Handler::unlock_row() {
  if (row_lock_ != 0 && !did_semi_consistent_ && row_lock_ == txn().lock_calls()) txn().unlock_last();
  row_lock_ = 0;
  last_row_lock_ = 0;
  did_semi_consistent_ = false;
}

/** The server calls this if the row that was read last matches. If it was not locked, the server reads it again. */
bool Handler::was_semi_consistent_read() {
  again_ = did_semi_consistent_;
  did_semi_consistent_ = false;
  return again_;
}

/** Reads and locks the row with the unique secondary key `same_`. The key is not locked: another row may get it. */
int Handler::read_unique_row(uchar *record, bool *pass) {
  std::string before, now;
  Outcome o = txn().get_newest(same_, &before);
  while (o == Outcome::Ok) {
    *pass = false;
    if (const int error = from_entry(same_, before, record, pass)) return error;
    // The row keeps its entries while it is locked, but may have lost this one before, and another row may have it now.
    o = txn().get_newest(same_, &now);
    if (o == Outcome::Ok && now == before) return 0;
    if (!*pass) unlock_row();
    if (thd_kill_level(ha_thd()) != THD_IS_NOT_KILLED) return HA_ERR_ABORTED_BY_USER;
    before.swap(now);
  }
  return o == Outcome::NotFound ? HA_ERR_KEY_NOT_FOUND : fail(o);
}

int Handler::read_unique(uchar *record) {
  bool pass = false;
  int error;
  iter_.close();
  way_ = Way::Forward;
  position_ = same_;
  at_end_ = false;
  if (index_->primary) {
    whole_key_ = same_;
    assign(row_key_, Slice(same_).from(4));
    error = read_whole_key(record, &pass);
  } else if (locking() && !locks_gaps()) {
    error = read_unique_row(record, &pass);
  } else {
    std::string value;
    const Outcome o = locking()        ? txn().get_locked(same_, lock_mode(), &value)
                      : reads_newest() ? txn().get_newest(same_, &value)
                                       : txn().get(same_, &value);
    if (o == Outcome::NotFound) return HA_ERR_KEY_NOT_FOUND;
    if (o != Outcome::Ok) return fail(o);
    if (serves_handler_read()) {
      Slice row_key;
      if (!format().row_key(*index_, same_, value, &row_key)) return damaged();
      assign(position_row_, row_key);
    }
    error = from_entry(same_, value, record, &pass);
  }
  if (error == HA_ERR_END_OF_FILE || (!error && pass)) return HA_ERR_KEY_NOT_FOUND;
  return error;
}

/** Reads the first row with the unique secondary key `same_` of the rows that have it: see Walk. Only HANDLER reads the next one. */
int Handler::read_first_of_key(uchar *record) {
  only_same_ = true;
  int error = start(same_, same_ + std::string(1, '\0'), Way::Forward);
  if (!error) error = deliver(record);
  if (!serves_handler_read()) iter_.close();
  return error == HA_ERR_END_OF_FILE ? HA_ERR_KEY_NOT_FOUND : error;
}

int Handler::decode_row(Slice row, uchar *record) {
  return format().row.decode(row, record, table_share->default_values, wanted(record)) ? 0 : unknown_row();
}

int Handler::unknown_row() const {
  sql_print_error("KINGTIDE: a row of table %s.%s is in an unknown format", table_share->db.str,
                  table_share->table_name.str);
  return HA_ERR_CRASHED;
}

int Handler::rnd_init(bool) {
  for_copy_ = copies_table(ha_thd());
  checks_unique_ = false;
  active_index = MAX_KEY;
  index_ = &format().primary;
  iter_.close();
  position_.clear();
  at_end_ = false;
  return 0;
}

int Handler::rnd_end() {
  iter_.close();
  if (for_copy_) session()->end_copy();
  mrr_.dsmrr_close();  // multi-range reads leave a handler that reads by position
  return 0;
}

int Handler::rnd_next(uchar *record) {
  if (iter_.open()) {
    if (const int error = advance()) return error;
    return or_expired(record, deliver(record));
  }
  only_same_ = false;
  // HANDLER ... READ NEXT is a separate statement that continues where the previous one stopped.
  const std::string from = position_.empty() ? index_->prefix() : at_end_ ? position_ : position_ + std::string(1, '\0');
  const int error = start(from, index_->end(), Way::Forward);
  return error ? error : or_expired(record, deliver(record));
}

int Handler::rnd_pos(uchar *record, uchar *position) {
  bool pass = false, null;
  uint parts;
  second_key_.clear();
  if (format().hidden_primary)
    second_key_.assign(reinterpret_cast<const char *>(position), HIDDEN_KEY);
  else
    format().append_tuple(format().primary, table, position, HA_WHOLE_KEY, &second_key_, &null, &parts);
  const int error = read_row(second_key_, record, &pass);
  return or_expired(record, !error && pass ? HA_ERR_KEY_NOT_FOUND : error);
}

/** The server requests the primary key's columns of rows whose positions it asks for, so the record has them. */
void Handler::position(const uchar *record) {
  if (format().hidden_primary)
    memcpy(ref, row_key_.data(), HIDDEN_KEY);
  else
    format().position(record, ref);
}

int Handler::cmp_ref(const uchar *a, const uchar *b) { return format().compare_positions(table, a, b); }

Item *Handler::idx_cond_push(uint index, Item *condition) {
  if (index == table_share->primary_key) return condition;
  pushed_idx_cond = condition;
  pushed_idx_cond_keyno = index;
  return nullptr;  // the whole condition is checked here
}

int Handler::multi_range_read_init(RANGE_SEQ_IF *seq, void *param, uint ranges, uint mode, HANDLER_BUFFER *buffer) {
#ifdef WITH_PARTITION_STORAGE_ENGINE
  // The server gives all partitions the same buffer if the last index whose costs it asked for needed none. Partitions would
  // overwrite each other's positions, and find wrong rows.
  if (table->part_info && buffer && !(mode & HA_MRR_USE_DEFAULT_IMPL)) {
    const size_t size = static_cast<size_t>(buffer->buffer_end - buffer->buffer);
    mrr_memory_.reset(new (std::nothrow) uchar[size]);
    if (!mrr_memory_) return HA_ERR_OUT_OF_MEM;
    mrr_buffer_.buffer = mrr_buffer_.end_of_used_area = mrr_memory_.get();
    mrr_buffer_.buffer_end = mrr_memory_.get() + size;
    buffer = &mrr_buffer_;
  }
#endif
  return mrr_.dsmrr_init(this, seq, param, ranges, mode, buffer);
}

int Handler::multi_range_read_next(range_id_t *range) { return mrr_.dsmrr_next(range); }

ha_rows Handler::multi_range_read_info(uint index, uint ranges, uint keys, uint parts, uint *buffer, uint *flags,
                                       Cost_estimate *cost) {
  mrr_.init(this, table);
  return mrr_.dsmrr_info(index, ranges, keys, parts, buffer, flags, cost);
}

int Handler::multi_range_read_explain_info(uint mode, char *text, size_t size) {
  return mrr_.dsmrr_explain_info(mode, text, size);
}

}  // namespace kingtide
