/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/*
  CHECK TABLE and REPAIR TABLE.

  CHECK reads every row and every index entry, as of the transaction's snapshot: each row must be decodable, be stored under the
  key that its columns give, and have an entry in every index, with the right columns; and no index may have other entries.

  REPAIR makes the entries match the rows: it writes those that are missing or wrong, and removes those that refer to no row or to
  the wrong row. It neither changes nor removes rows: faults of rows themselves are reported and make the repair fail. It has
  exclusive access to the table and runs in one transaction.

  If rows expire, a row may be gone by the time its entry is looked up, or the reverse. Something missing is therefore a fault only
  if its counterpart still exists afterwards.
*/
#include "ha_kingtide.h"

namespace kingtide {
namespace {

/** Number of entries after which to check whether the statement was killed. */
constexpr uint64_t LOOK_UP = 1024;
/** Number of faults that are described one by one. */
constexpr uint64_t DESCRIBED = 10;

}  // namespace

class Inspection {
 public:
  Inspection(Handler *handler, THD *thd, bool repairs)
      : h_(handler), thd_(thd), table_(handler->table), share_(handler->share_), repairs_(repairs) {}

  int run() {
    MY_BITMAP *all = tmp_use_all_columns(table_, &table_->read_set);
    look_at_rows();
    for (uint k = 0; k < table_->s->keys && !killed_; k++)
      if (!format().indexes[k].primary) look_at_index(k);
    tmp_restore_column_map(&table_->read_set, all);
    if (killed_) return HA_ADMIN_FAILED;
    if (repairs_ && written_ + dropped_ > 0)
      tell("REPAIR TABLE wrote " + std::to_string(written_) + " index entries and dropped " + std::to_string(dropped_),
           Sql_condition::WARN_LEVEL_NOTE);
    if (repairs_ ? lasting_ : faults_) return repairs_ ? HA_ADMIN_FAILED : HA_ADMIN_CORRUPT;
    share_->set_rows(rows_);
    return HA_ADMIN_OK;
  }

 private:
  const TableFormat &format() const { return share_->format(); }
  std::string name_of(uint k) const { return table_->key_info[k].name.str; }

  void tell(const std::string &what, Sql_condition::enum_warning_level level) {
    push_warning_printf(thd_, level, ER_NOT_KEYFILE, "KINGTIDE: %s", what.c_str());
    const TABLE_SHARE *s = table_->s;
    auto *print = level == Sql_condition::WARN_LEVEL_NOTE ? sql_print_information : sql_print_error;
    print("KINGTIDE: %s TABLE %s.%s: %s", repairs_ ? "REPAIR" : "CHECK", s->db.str, s->table_name.str, what.c_str());
  }

  /** Reports a fault that REPAIR can fix. */
  void fault(const std::string &what) {
    if (++faults_ <= DESCRIBED) tell(what, Sql_condition::WARN_LEVEL_WARN);
  }
  /** Reports a fault that REPAIR cannot fix. */
  void lasting_fault(const std::string &what) {
    lasting_++;
    fault(what);
  }

  bool look_up(uint64_t passed) {
    if (passed % LOOK_UP == 0 && thd_kill_level(thd_) != THD_IS_NOT_KILLED) killed_ = true;
    return !killed_;
  }

  /** Whether something that expires still existed after its counterpart was found missing. */
  bool is_still_there(Slice key) {
    std::string value;
    return !share_->may_expire() || h_->txn().get(key, &value) == Outcome::Ok;
  }

  /** Decodes a row into the record. Returns false if it cannot be decoded. */
  bool decode(const std::string &row) {
    row_ = row;
    if (!format().row.decode(row_, table_->record[0], table_->s->default_values)) return false;
    if (table_->vfield) table_->update_virtual_fields(h_, VCOL_UPDATE_FOR_READ);
    return true;
  }

  void look_at_rows() {
    Iter it;
    const Index &primary = format().primary;
    std::string key;
    if (h_->txn().iterate(primary.prefix(), primary.end(), repairs_, &it) != Outcome::Ok) return lasting_fault(last_message());
    for (bool valid = it.first(); valid && look_up(rows_); valid = it.next(), rows_++) {
      Slice value;
      if (it.value(&value) != Outcome::Ok) {
        lasting_fault(std::string("a row cannot be read: ") + last_message());
        continue;
      }
      if (!decode(value.str())) {
        lasting_fault("a row is in an unknown format");
        continue;
      }
      const std::string row_key = it.key().from(4).str();
      if (!format().hidden_primary) {
        h_->row_key_of(table_->record[0], &key);
        if (key != row_key) lasting_fault("a row is stored under the wrong key");
      }
      for (uint k = 0; k < table_->s->keys; k++)
        if (!format().indexes[k].primary) look_at_entry(k, it.key(), row_key, it.expires());
    }
    if (it.status() != Outcome::Ok) lasting_fault(last_message());
  }

  /** Checks that the row in the record has its entry in an index. */
  void look_at_entry(uint k, Slice whole_key, const std::string &row_key, uint64_t expires) {
    const Index &index = format().indexes[k];
    bool checked;
    format().entry(index, table_, table_->record[0], row_key, &entry_, &value_, &checked);
    const Outcome o = h_->txn().get(entry_, &found_);
    if (o == Outcome::NotFound && is_still_there(whole_key)) {
      fault("a row has no entry in index " + name_of(k));
      write(expires);
    } else if (o == Outcome::Ok && found_ != value_) {
      if (checked && belongs_to_other(index, row_key))
        return lasting_fault("two rows have the same value in unique index " + name_of(k));
      fault("an entry of index " + name_of(k) + " keeps other columns than its row has");
      write(expires);
    } else if (o != Outcome::Ok && o != Outcome::NotFound) {
      lasting_fault("an entry of index " + name_of(k) + " cannot be read: " + last_message());
    }
  }

  /** Whether the entry found in place of a row's own entry rightfully belongs to another row. */
  bool belongs_to_other(const Index &index, const std::string &row_key) {
    Slice other;
    if (!format().row_key(index, entry_, found_, &other) || other.str() == row_key) return false;
    std::string row;
    const std::string entry = entry_, value = value_, other_key = other.str();
    const Outcome o = h_->txn().get(format().primary.prefix() + other_key, &row);
    const std::string mine = row_;
    bool checked;
    bool is_its = o != Outcome::Ok && o != Outcome::NotFound;
    if (o == Outcome::Ok && decode(row)) {
      format().entry(index, table_, table_->record[0], other_key, &entry_, &value_, &checked);
      is_its = entry_ == entry;
    }
    entry_ = entry;
    value_ = value;
    decode(mine);
    return is_its;
  }

  void look_at_index(uint k) {
    const Index &index = format().indexes[k];
    Iter it;
    uint64_t entries = 0;
    if (!repairs_ && !share_->may_expire()) {  // counting is enough, and reads no row
      if (!count(index, &entries)) return lasting_fault("index " + name_of(k) + " cannot be read: " + last_message());
      if (entries == rows_ || killed_) return;
      fault("index " + name_of(k) + " has " + std::to_string(entries) + " entries for " + std::to_string(rows_) + " rows");
    }
    entries = 0;
    if (h_->txn().iterate(index.prefix(), index.end(), repairs_, &it) != Outcome::Ok) return lasting_fault(last_message());
    for (bool valid = it.first(); valid && look_up(entries); valid = it.next(), entries++) {
      Slice value;
      if (it.value(&value) != Outcome::Ok) {
        lasting_fault("an entry of index " + name_of(k) + " cannot be read: " + last_message());
        continue;
      }
      follow(k, it.key(), value);
    }
    if (it.status() != Outcome::Ok) lasting_fault(last_message());
  }

  bool count(const Index &index, uint64_t *entries) {
    Iter it;
    if (h_->txn().iterate(index.prefix(), index.end(), false, &it) != Outcome::Ok) return false;
    it.only_keys();
    for (bool valid = it.first(); valid && look_up(*entries); valid = it.next()) ++*entries;
    return it.status() == Outcome::Ok;
  }

  /** Checks that an entry refers to a row that has this entry. */
  void follow(uint k, Slice key, Slice value) {
    const Index &index = format().indexes[k];
    const std::string kept = value.str();
    Slice row_key;
    bool checked;
    if (!format().row_key(index, key, kept, &row_key)) {
      fault("an entry of index " + name_of(k) + " is in an unknown format");
      return drop(key);
    }
    const std::string row_key_bytes = row_key.str();
    const Outcome o = h_->txn().get(format().primary.prefix() + row_key_bytes, &found_);
    if (o == Outcome::NotFound) {
      if (!is_still_there(key)) return;
      fault("an entry of index " + name_of(k) + " leads to no row");
      return drop(key);
    }
    if (o != Outcome::Ok) return lasting_fault(std::string("a row cannot be read: ") + last_message());
    if (!decode(found_)) return;  // reported when the rows were read
    format().entry(index, table_, table_->record[0], row_key_bytes, &entry_, &value_, &checked);
    if (Slice(entry_) == key) return;
    fault("an entry of index " + name_of(k) + " is not that of its row");
    drop(key);
  }

  void write(uint64_t expires) {
    if (repairs_) done(h_->txn().put(entry_, value_, expires), &written_);
  }
  void drop(Slice key) {
    if (repairs_) done(h_->txn().erase(key), &dropped_);
  }
  void done(Outcome o, uint64_t *count) {
    if (o == Outcome::Ok) return void(++*count);
    if (!killed_) lasting_fault(std::string("the repair cannot continue: ") + last_message());
    killed_ = true;
  }

  Handler *h_;
  THD *thd_;
  TABLE *table_;
  TableShare *share_;
  const bool repairs_;
  uint64_t rows_ = 0, faults_ = 0, lasting_ = 0, written_ = 0, dropped_ = 0;
  bool killed_ = false;
  /** The row in the record; the record's blobs point into it. */
  std::string row_;
  std::string entry_, value_, found_;
};

int Handler::check_for_upgrade(HA_CHECK_OPT *) { return format().outdated ? HA_ADMIN_NEEDS_ALTER : HA_ADMIN_OK; }

int Handler::check(THD *thd, HA_CHECK_OPT *) {
  return format().outdated ? HA_ADMIN_NEEDS_ALTER : Inspection(this, thd, false).run();
}

int Handler::repair(THD *thd, HA_CHECK_OPT *) {
  return format().outdated ? HA_ADMIN_NEEDS_ALTER : Inspection(this, thd, true).run();
}

}  // namespace kingtide
