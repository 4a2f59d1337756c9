/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/* Creating, dropping, renaming and emptying tables. */
#include "ha_kingtide.h"

#include "families.h"
#include "options.h"
#include "variables.h"

namespace kingtide {
namespace {

/**
  Whether the statement asks for a foreign key, which is refused rather than accepted and not enforced. Other statements create tables, too
  (REPAIR, or an UPDATE that needs a partition for its history), and have the list of keys of an earlier one, in memory that was freed.
*/
bool asks_for_foreign_key(THD *thd) {
  const int command = thd_sql_command(thd);
  if (command != SQLCOM_CREATE_TABLE && command != SQLCOM_ALTER_TABLE) return false;
  List_iterator_fast<Key> keys(thd->lex->alter_info.key_list);
  while (const Key *key = keys++)
    if (key->type == Key::FOREIGN_KEY) return true;
  return false;
}

}  // namespace

/**
  Returns the name that a partition will have when ALTER TABLE is done. Until then, the server may add something to its name, or it may be a
  partition of a copy of the table.
*/
std::string Handler::last_name(const std::string &name) const {
  const std::string table = Dictionary::table_of(name);
  if (name == table || thd_sql_command(ha_thd()) != SQLCOM_ALTER_TABLE) return name;
  const std::string part = Dictionary::without_addition(name.substr(table.size()));
  if (!Dictionary::is_servers(table)) return table + part;
  const TABLE_LIST *altered = ha_thd()->lex->first_select_lex()->table_list.first;
  return altered && altered->table ? Dictionary::name_of(altered->table->s->normalized_path.str) + part : name;
}

/**
  Refuses a new partition whose name belongs to a partition that exists but that the table lacks, because its definition is from before that
  partition was added. If all such partitions are empty, the name is allowed: an earlier ALTER TABLE that a crash ended may have left them.
*/
int Handler::refuse_lost_partition(const std::string &name) const {
  bool exists, has_rows;
  const std::string table = Dictionary::table_of(name);
  // If the statement fails for whatever reason, the server removes, by name, all partitions that it would have added: so the lost ones are
  // noted when the statement creates its first partition.
  const bool first = session()->uses_name_first(table);
  if (const int error = fail(Dictionary::find_orphan(name, &exists, &has_rows))) return error;
  const bool refused = exists && !TableShare::is_open(name);
  if (!refused && !first) return 0;
  std::vector<std::string> partitions, lost;
  if (const int error = fail(Dictionary::partitions(table, &partitions))) return error;
  bool any_rows = false;
  for (const std::string &partition : partitions) {
    if (Dictionary::is_servers(partition) || TableShare::is_open(partition)) continue;
    if (const int error = fail(Dictionary::find_orphan(partition, &exists, &has_rows))) return error;
    lost.push_back(partition);
    any_rows |= has_rows;
  }
  if (!any_rows) return 0;
  for (const std::string &partition : lost) session()->keep(partition);
  if (!refused) return 0;
  my_printf_error(ER_TABLE_EXISTS_ERROR,
                  "KINGTIDE: '%s' exists, but the table's definition (.frm and .par) has no such partition; put back a definition that has it, or use "
                  "another name",
                  MYF(0), name.c_str());
  return HA_ERR_TABLE_EXIST;
}

/**
  Refuses to create a table, or a partition of it, if there are rows under its name: the server would not use the name of a table that it
  knows. As in InnoDB, rows whose definition is lost stay until the table is dropped, so that they can be read again with a definition from
  elsewhere.
*/
int Handler::refuse_lost(const std::string &name) const {
  bool exists, has_rows = false;
  const std::string last = last_name(name);
  if (Dictionary::is_servers(last)) return 0;
  const std::string table = Dictionary::table_of(name);
  const int command = thd_sql_command(ha_thd());
  // Not only ALTER TABLE adds partitions: with PARTITION BY SYSTEM_TIME ... AUTO, statements that change rows do so too.
  if (name != table && command != SQLCOM_CREATE_TABLE) return refuse_lost_partition(last);
  const bool checked = name == table || (command == SQLCOM_CREATE_TABLE && session()->uses_name_first(table));
  if (checked)
    if (const int error = fail(Dictionary::find_orphans(table, &exists, &has_rows))) return error;
  if (!has_rows) return 0;
  my_printf_error(ER_TABLE_EXISTS_ERROR,
                  "KINGTIDE: table '%s' exists, but its definition (.frm) is missing; put that back, or remove the table with DROP TABLE",
                  MYF(0), table.c_str());
  return HA_ERR_TABLE_EXIST;
}

int Handler::create(const char *name, TABLE *form, HA_CREATE_INFO *info) {
  // Before anything else can fail, because the server also cleans up after other errors.
  if (const int error = refuse_lost(Dictionary::name_of(name))) return error;
  if (info->data_file_name || info->index_file_name)
    push_warning_printf(ha_thd(), Sql_condition::WARN_LEVEL_WARN, WARN_OPTION_IGNORED,
                        ER_THD(ha_thd(), WARN_OPTION_IGNORED), info->data_file_name ? "DATA DIRECTORY" : "INDEX DIRECTORY");
  if (!ignore_foreign_keys() && asks_for_foreign_key(ha_thd())) {
    my_error(ER_ILLEGAL_HA_CREATE_OPTION, MYF(0), "KINGTIDE", "FOREIGN KEY");
    return HA_WRONG_CREATE_OPTION;
  }
  if (const Field *field = GeneratedBlobs::under_hash(form)) {
    my_printf_error(ER_ILLEGAL_HA_CREATE_OPTION,
                    "KINGTIDE: in a table WITH SYSTEM VERSIONING, a unique key by hash cannot have the generated TEXT or BLOB column '%s', whose "
                    "old values the server overwrites before it compares them; use a generated VARCHAR column",
                    MYF(0), field->field_name.str);
    return HA_WRONG_CREATE_OPTION;
  }
  std::string problem;
  const TABLE_SHARE *s = form->s;
  const TableOptions options = read_options_of(form, Dictionary::name_of(name), true, &problem);
  if (refuse_options(ha_thd(), problem)) return HA_WRONG_CREATE_OPTION;
  uint8_t slot;
  const Outcome o = Families::slot_of(options.storage, &slot);
  if (o == Outcome::Other) my_printf_error(ER_BAD_OPTION_VALUE, "KINGTIDE: %s", MYF(0), last_message());
  if (o != Outcome::Ok) return fail(o);
  TableRecord record;
  set_first_layout(row_columns(form), &record);
  set_key_form(form, &record);
  const Outcome created =
      Dictionary::create(Dictionary::name_of(name), s->keys, s->primary_key, info->auto_increment_value, slot, &record);
  if (created == Outcome::Ok) {
    TableShare::created(form, record.primary, info->auto_increment_value);
    return 0;
  }
  const int error = fail(created);
  Families::release(slot);
  return error;
}

int Handler::delete_table(const char *name) {
  const Outcome o = Session::drop(ha_thd(), Dictionary::name_of(name));
  return o == Outcome::NotFound ? HA_ERR_NO_SUCH_TABLE : fail(o);
}

/** Sets whether a table, or a partition, gets a name under which there is another one, whose definition is lost. */
Outcome Handler::find_lost(const std::string &from, const std::string &to, bool *exists) const {
  bool has_rows;
  *exists = false;
  if (Dictionary::is_servers(to)) return Outcome::Ok;
  const std::string old_table = Dictionary::table_of(from), table = Dictionary::table_of(to);
  const int command = thd_sql_command(ha_thd());
  const bool by_user = (command == SQLCOM_RENAME_TABLE || command == SQLCOM_ALTER_TABLE) && !Dictionary::is_servers(from);
  const bool partition = to != table;
  // A copy of a partitioned table takes the table's place: all partitions of the table have already been renamed.
  if (partition && command == SQLCOM_ALTER_TABLE && !by_user && old_table != table) {
    const Outcome o = Dictionary::find_orphan(to, exists, &has_rows);
    *exists = has_rows;
    return o;
  }
  // While the server recovers, or replaces partitions of a table by copies of them, it uses the names of partitions again.
  if (partition && (!by_user || old_table == table)) return Outcome::Ok;
  // Partitions of the new table that it has already are of this statement, or it would not become a partition of the table.
  const bool whole = by_user && (partition == (from != old_table)) && session()->uses_name_first(table);
  return whole ? Dictionary::find_orphans(table, exists, &has_rows) : Dictionary::find_orphan(to, exists, &has_rows);
}

int Handler::rename_table(const char *from, const char *to) {
  // Also if it has no rows: when this fails, the server renames in the other direction, although it has renamed nothing.
  bool exists;
  if (const int error = fail(find_lost(Dictionary::name_of(from), Dictionary::name_of(to), &exists))) return error;
  if (exists) return HA_ERR_TABLE_EXIST;
  const Outcome o = Dictionary::rename(Dictionary::name_of(from), Dictionary::name_of(to));
  return o == Outcome::NotFound ? HA_ERR_NO_SUCH_TABLE : fail(o);
}

int Handler::truncate() {
  iter_.close();
  const Outcome o = Dictionary::truncate(share_->name(), share_->record());
  if (o == Outcome::Ok) share_->reset_counters();
  auto_offset_ = auto_reserved_end_ = 0;
  auto_increment_ = 1;
  return fail(o);
}

int Handler::reset_auto_increment(ulonglong value) { return fail(share_->set_auto_increment(value)); }

void Handler::update_create_info(HA_CREATE_INFO *info) {
  if (info->used_fields & HA_CREATE_USED_AUTO) return;
  if (table->found_next_number_field) info->auto_increment_value = share_->next_auto_increment();
}

namespace {

/** Whether the keys of two tables have the same names in the same order. */
bool same_order_of_keys(const TABLE_SHARE *a, const TABLE_SHARE *b) {
  if (a->keys != b->keys) return false;
  for (uint k = 0; k < a->keys; ++k)
    if (!same_name(text_of(a->key_info[k].name), text_of(b->key_info[k].name))) return false;
  return true;
}

}  // namespace

/** EXCHANGE PARTITION and CONVERT TABLE TO PARTITION: the server has compared the definitions of this table and the partitions, but finds keys
 * by name, and the dictionary knows them by their order. */
bool Handler::check_if_incompatible_data(HA_CREATE_INFO *, uint changes) {
  if (changes != IS_EQUAL_YES) return COMPATIBLE_DATA_NO;
  THD *thd = ha_thd();
  const TABLE_LIST *first = thd->lex->first_select_lex()->table_list.first;
  if (!first || !first->table || same_order_of_keys(first->table->s, table->s)) return COMPATIBLE_DATA_YES;
  push_warning(thd, Sql_condition::WARN_LEVEL_WARN, ER_TABLES_DIFFERENT_METADATA,
               "KINGTIDE: the keys of the tables are in different orders; give them the order of the partitioned table");
  return COMPATIBLE_DATA_NO;
}

}  // namespace kingtide
