/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/* ANALYZE, OPTIMIZE and CHECK TABLE. */
#include "ha_kingtide.h"

namespace kingtide {
namespace {

/** Entries between two looks at whether the statement was killed. */
constexpr uint64_t LOOK_UP = 1024;
/** Places of each index at which ANALYZE looks at keys. */
constexpr size_t PLACES = 256;
/** Faults that CHECK TABLE describes one by one. */
constexpr uint64_t DESCRIBED = 10;

}  // namespace

int Handler::analyze(THD *thd, HA_CHECK_OPT *) {
  Iter it;
  uint64_t rows = 0;
  const Index &primary = format().primary;
  if (Engine::iterate(Space::Rows, primary.prefix(), primary.end(), &it) != Outcome::Ok) return HA_ADMIN_FAILED;
  for (bool valid = it.first(); valid; valid = it.next(), rows++)
    if (rows % LOOK_UP == 0 && thd_kill_level(thd) != THD_IS_NOT_KILLED) return HA_ADMIN_FAILED;
  if (it.status() != Outcome::Ok) return HA_ADMIN_CORRUPT;
  if (share_->analyze(rows, PLACES) != Outcome::Ok) return HA_ADMIN_FAILED;
  info(HA_STATUS_CONST | HA_STATUS_VARIABLE);
  return HA_ADMIN_OK;
}

int Handler::optimize(THD *thd, HA_CHECK_OPT *options) {
  const TableRecord &r = share_->record();
  std::vector<uint32_t> ids = r.keys;
  if (format().hidden_primary) ids.push_back(r.primary);
  for (uint32_t id : ids) {
    Index index;
    index.id = id;
    if (Engine::compact(index.prefix(), index.end()) != Outcome::Ok) {
      sql_print_error("KINGTIDE: OPTIMIZE TABLE: %s", last_message());
      return HA_ADMIN_FAILED;
    }
  }
  return analyze(thd, options);
}

/** Says what is wrong, to the client and in the log. */
void Handler::report_fault(THD *thd, uint64_t fault, const std::string &what) {
  if (fault > DESCRIBED) return;
  push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_NOT_KEYFILE, "KINGTIDE: %s", what.c_str());
  sql_print_error("KINGTIDE: CHECK TABLE %s.%s: %s", table_share->db.str, table_share->table_name.str, what.c_str());
}

/**
  Reads every row and every index entry, as of the transaction's snapshot: each row must be decodable, stand under the key that
  its columns make, and have its entry in every index, with the columns that it keeps; and no index may have more entries.
*/
int Handler::check(THD *thd, HA_CHECK_OPT *) {
  uint64_t rows = 0, faults = 0;
  Iter it;
  const Index &primary = format().primary;
  std::string key, entry, value, found;
  uchar *record = table->record[0];
  MY_BITMAP *all = tmp_use_all_columns(table, &table->read_set);
  if (txn().iterate(primary.prefix(), primary.end(), false, &it) != Outcome::Ok) report_fault(thd, ++faults, last_message());
  for (bool valid = !faults && it.first(); valid; valid = it.next(), rows++) {
    if (rows % LOOK_UP == 0 && thd_kill_level(thd) != THD_IS_NOT_KILLED) break;
    Slice row;
      if (it.value(&row) != Outcome::Ok) {
      report_fault(thd, ++faults, std::string("a row cannot be read: ") + last_message());
      continue;
    }
    row_ = row.str();
    const std::string row_key = it.key().from(4).str();
    if (!format().row.decode(row_, record, table_share->default_values)) {
      report_fault(thd, ++faults, "a row has a form that none was written in");
      continue;
    }
    if (table->vfield) table->update_virtual_fields(this, VCOL_UPDATE_FOR_READ);
    if (!format().hidden_primary) {
      row_key_of(record, &key);
      if (key != row_key) report_fault(thd, ++faults, "a row stands under a key that is not its own");
    }
    for (uint k = 0; k < table->s->keys; k++) {
      const Index &index = format().indexes[k];
      if (index.primary) continue;
      bool checked;
      format().entry(index, table, record, row_key, &entry, &value, &checked);
      const Outcome o = txn().get(entry, &found);
      const std::string name = table->key_info[k].name.str;
      if (o == Outcome::NotFound)
        report_fault(thd, ++faults, "a row has no entry in index " + name);
      else if (o != Outcome::Ok)
        report_fault(thd, ++faults, "an entry of index " + name + " cannot be read: " + last_message());
      else if (found != value)
        report_fault(thd, ++faults, "an entry of index " + name + " keeps other columns than its row has");
    }
  }
  if (it.open() && it.status() != Outcome::Ok) report_fault(thd, ++faults, last_message());
  for (uint k = 0; k < table->s->keys; k++) {
    const Index &index = format().indexes[k];
    if (index.primary) continue;
    uint64_t entries = 0;
    if (txn().iterate(index.prefix(), index.end(), false, &it) != Outcome::Ok) {
      report_fault(thd, ++faults,
                   "index " + std::string(table->key_info[k].name.str) + " cannot be read: " + last_message());
      continue;
    }
    for (bool valid = it.first(); valid && (entries % LOOK_UP || !thd_kill_level(thd)); valid = it.next()) entries++;
    if (it.status() != Outcome::Ok) report_fault(thd, ++faults, last_message());
    if (entries != rows)
      report_fault(thd, ++faults, "index " + std::string(table->key_info[k].name.str) + " has " + std::to_string(entries) +
                                      " entries for " + std::to_string(rows) + " rows");
  }
  tmp_restore_column_map(&table->read_set, all);
  it.close();
  if (thd_kill_level(thd) != THD_IS_NOT_KILLED) return HA_ADMIN_FAILED;
  if (faults) return HA_ADMIN_CORRUPT;
  share_->set_rows(rows);
  return HA_ADMIN_OK;
}

}  // namespace kingtide
