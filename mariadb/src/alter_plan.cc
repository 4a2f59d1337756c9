/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/*
  What can be altered in place: definitions that do not affect rows; columns, since each row has those of its layout (see
  codec/row_codec.h); and secondary indexes. Changes that must look at every row, such as making a column NOT NULL, are left to
  the server, which copies the table.
*/
#include "alter_plan.h"

#include "options.h"
#include "server_version.h"

#include <algorithm>

#include <sql_type_json.h>

namespace kingtide {
namespace {

/** Operations that do not affect rows and entries. */
constexpr alter_table_operations DEFINITION_ONLY =
    ALTER_COLUMN_DEFAULT | ALTER_PARTITIONED | ALTER_COLUMN_COLUMN_FORMAT | ALTER_COLUMN_STORAGE_TYPE | ALTER_CONVERT_TO |
    ALTER_VIRTUAL_GCOL_EXPR | ALTER_DROP_CHECK_CONSTRAINT | ALTER_RENAME | ALTER_INDEX_ORDER | ALTER_COLUMN_INDEX_LENGTH |
    ALTER_CHANGE_INDEX_COMMENT | ALTER_INDEX_IGNORABILITY | ALTER_RENAME_INDEX | ALTER_COLUMN_NAME |
    ALTER_VIRTUAL_COLUMN_ORDER | ALTER_ADD_VIRTUAL_COLUMN | ALTER_DROP_VIRTUAL_COLUMN | ALTER_COLUMN_UNVERSIONED |
    ALTER_OPTIONS | ALTER_COLUMN_ORDER | ALTER_RENAME_COLUMN;

constexpr alter_table_operations COLUMNS = ALTER_ADD_STORED_BASE_COLUMN | ALTER_DROP_STORED_COLUMN | ALTER_STORED_COLUMN_ORDER |
                                           ALTER_COLUMN_NULLABLE | ALTER_COLUMN_TYPE_CHANGE_BY_ENGINE;

constexpr alter_table_operations INDEXES = ALTER_DROP_NON_UNIQUE_NON_PRIM_INDEX | ALTER_DROP_UNIQUE_INDEX |
                                           ALTER_ADD_NON_UNIQUE_NON_PRIM_INDEX | ALTER_ADD_UNIQUE_INDEX;

/** Most layouts that a table's rows may have. After that, the table is copied. */
constexpr size_t MOST_LAYOUTS = 250;
/** Most bytes of values for columns that older layouts lack. */
constexpr size_t MOST_ABSENT_BYTES = 1 << 20;

const char *const SERVERS_WORDS = "";

class Planner {
 public:
  Planner(TABLE *before, TABLE *after, const Alter_inplace_info *info, const TableRecord &now)
      : before_(before), after_(after), info_(info), now_(now) {
    plan_.after = now;
    set_key_form(after, &plan_.after);
  }

  AlterPlan plan() {
    plan_.refused = operations();
    if (!plan_.refused) plan_.refused = auto_increment();
    if (!plan_.refused) plan_.refused = columns();
    if (!plan_.refused) plan_.refused = keys();
    plan_.rewrites = !plan_.refused && (info_->handler_flags & ALTER_RECREATE_TABLE);
    if (plan_.rewrites) {
      plan_.after.layouts.erase(plan_.after.layouts.begin(), plan_.after.layouts.end() - 1);
      plan_.after.absent.clear();
      plan_.dropped.push_back(now_.primary);
    }
    return plan_;
  }

 private:
  const char *text(uint number) const { return ER_THD(before_->in_use, number); }

  const char *operations() const {
    const alter_table_operations wanted = info_->handler_flags;
    if (TableFormat(before_, now_).outdated) return "keys are in an outdated format";
    if (const char *why = why_copy(before_, after_)) return why;
    if (wanted & ALTER_STORED_COLUMN_TYPE) return text(ER_ALTER_OPERATION_NOT_SUPPORTED_REASON_COLUMN_TYPE);
    if ((wanted & (ALTER_ADD_PK_INDEX | ALTER_DROP_PK_INDEX)) == ALTER_DROP_PK_INDEX)
      return text(ER_ALTER_OPERATION_NOT_SUPPORTED_REASON_NOPK);
    if (wanted & (ALTER_ADD_PK_INDEX | ALTER_DROP_PK_INDEX)) return "rows are stored in the order of the primary key";
    if (wanted & ALTER_RECREATE_TABLE) return cannot_rewrite();
    if (wanted & ALTER_COLUMN_NOT_NULLABLE) return "rows must be checked for NULL";
    if (wanted & ALTER_ADD_CHECK_CONSTRAINT) return "rows must be checked";
    if (wanted & (ALTER_ADD_STORED_GENERATED_COLUMN | ALTER_STORED_GCOL_EXPR | ALTER_COLUMN_VCOL))
      return "generated values must be computed for existing rows";
    // The server looks at the column that changes alone. Others, which indexes and rows have, may be computed from it.
    if ((wanted & ALTER_VIRTUAL_GCOL_EXPR) && after_->s->virtual_fields > 1)
      return "values that may be generated from the column must be computed for existing rows";
    if (wanted & ~(DEFINITION_ONLY | COLUMNS | INDEXES)) return SERVERS_WORDS;
    return nullptr;
  }

  /**
    FORCE, or ENGINE=KINGTIDE, writes the rows again in place only if the statement asks for it, because a copy makes all index entries
    anew, too, and only if it changes nothing else but table options, the next auto-increment value and the table's name, which the server changes
    afterwards. The transaction may have rows of a temporary table that are not committed. If the server crashes before it has changed the name,
    it does not find the partitions when it recovers, and looks for a table that moves to another database in that one: it may rename another
    table.
  */
  const char *cannot_rewrite() const {
    const alter_table_operations others = info_->handler_flags & ~(ALTER_RECREATE_TABLE | ALTER_PARTITIONED | ALTER_OPTIONS | ALTER_RENAME);
    if (others != 0 || !is_in_place(*info_->alter_info, before_->in_use) || before_->s->tmp_table != NO_TMP_TABLE)
      return "all rows are written again";
    if (!(info_->handler_flags & ALTER_RENAME)) return nullptr;
#ifdef WITH_PARTITION_STORAGE_ENGINE
    if (before_->part_info) return "a partitioned table is renamed";
#endif
    return strcmp(before_->s->db.str, after_->s->db.str) == 0 ? nullptr : "the table moves to another database";
  }

  /** A column may cease to be the auto-increment column; to become it, its rows would need values. */
  const char *auto_increment() const {
    const Field *now = after_->found_next_number_field;
    if (!now) return nullptr;
    const Create_field *from = info_->alter_info->create_list.elem(now->field_index);
    const Field *old = before_->found_next_number_field;
    if (!from || !old || from->field != old) return text(ER_ALTER_OPERATION_NOT_SUPPORTED_REASON_AUTOINC);
    if (!(info_->create_info->used_fields & HA_CREATE_USED_AUTO)) return nullptr;
    const bool leads = before_->s->next_number_keypart == 0 && old->result_type() == INT_RESULT;
    return leads ? nullptr : "the largest value of the auto-increment column must be found";
  }

  /** Makes the layout of the altered table from existing and new columns. */
  const char *columns() {
    TableRecord &r = plan_.after;
    const std::vector<Column> old_columns = row_columns(before_), new_columns = row_columns(after_);
    if (r.layouts.empty()) set_first_layout(old_columns, &r);
    const RowLayout old = r.layouts.back();
    if (info_->alter_info->create_list.elements != after_->s->fields) return SERVERS_WORDS;
    if (const char *why = names_taken_over()) return why;
    RowLayout layout;
    List_iterator_fast<Create_field> definitions(info_->alter_info->create_list);
    for (uint i = 0; i < after_->s->fields; i++) {
      const Create_field *definition = definitions++;
      Field *f = after_->field[i];
      if (const char *why = check_constraint(f, definition)) return why;
      if (!f->stored_in_db()) continue;
      const Column &column = new_columns[layout.size()];
      if (definition->field) {
        const int place = place_of(definition->field);
        if (place < 0) return SERVERS_WORDS;
        layout.push_back(stored_form(column, old[static_cast<size_t>(place)].id));
        if (const char *why = changes_form(old[static_cast<size_t>(place)], layout.back())) return why;
      } else {
        layout.push_back(stored_form(column, r.next_column++));
        if (const char *why = add_absent(f, column, layout.back())) return why;
      }
    }
    forget_dropped(layout);
    if (same(old, layout)) {
      r.layouts = now_.layouts.empty() ? std::vector<RowLayout>{old} : now_.layouts;
      return nullptr;
    }
    r.layouts.push_back(layout);
    if (r.layouts.size() > MOST_LAYOUTS) return "the table has too many row formats";
    return nullptr;
  }

  /**
    A column that takes the name of a column that is dropped or renamed also replaces it in expressions: values in rows and index
    entries that were computed from the old column no longer match the expression.
  */
  const char *names_taken_over() const {
    const TABLE_SHARE *s = after_->s;
    if (s->virtual_fields == 0 && s->field_check_constraints == 0 && s->table_check_constraints == 0) return nullptr;
    List_iterator_fast<Create_field> definitions(info_->alter_info->create_list);
    while (const Create_field *definition = definitions++) {
      for (uint i = 0; i < before_->s->fields; i++) {
        const Field *old = before_->field[i];
        if (old == definition->field) continue;
        if (!same_name(old->field_name.str, definition->field_name.str)) continue;
        return s->virtual_fields ? "generated values must be computed for existing rows" : "rows must be checked";
      }
    }
    return nullptr;
  }

  /** The position of a field among the stored columns. */
  int place_of(const Field *field) const {
    int place = 0;
    for (uint i = 0; i < before_->s->fields; i++) {
      if (before_->field[i] == field) return field->stored_in_db() ? place : -1;
      place += before_->field[i]->stored_in_db();
    }
    return -1;
  }

  const char *changes_form(const StoredColumn &old, const StoredColumn &now) const {
    if (old.sized != now.sized || old.length != now.length)
      return text(ER_ALTER_OPERATION_NOT_SUPPORTED_REASON_COLUMN_TYPE);
    if (old.nullable && !now.nullable) return "rows must be checked for NULL";
    return nullptr;
  }

  /** Constraints of columns: the server does not check existing rows against those of new or altered columns. */
  const char *check_constraint(Field *f, const Create_field *definition) const {
    if (!f->check_constraint) return nullptr;
    const Field *old = definition->field;
    if (old && old->check_constraint && definition->check_constraint == old->check_constraint) return nullptr;
    // The constraint of a JSON column involves only that column, which has the default in all rows.
    const bool json = !old && Type_handler_json_common::has_json_valid_constraint(f) && f->set_default() == 0;
    if (json && (f->check_constraint->expr->val_bool() || f->check_constraint->expr->null_value)) return nullptr;
    return "rows must be checked";
  }

  /** The value of a new column in existing rows: its current default. */
  const char *add_absent(Field *f, const Column &column, const StoredColumn &stored) {
    if (info_->error_if_not_empty) return "the default is not a valid value of the column";
    const Virtual_column_info *value = f->default_value;
    if (value && (value->flags & ~uint(VCOL_SESSION_FUNC | VCOL_TIME_FUNC))) return "the default differs from row to row";
    const int error = f->set_default();
    if (error != 0 && error != 3) return "the default does not fit the column";  // 3: a time that was truncated
    AbsentValue a;
    a.id = stored.id;
    a.null = stored.nullable && column.is_null(after_->record[0]);
    if (!a.null) append_column(column, after_->record[0], &a.value);
    plan_.after.absent.push_back(a);
    return absent_bytes(plan_.after) > MOST_ABSENT_BYTES ? "defaults of added columns take too much space" : nullptr;
  }

  void forget_dropped(const RowLayout &layout) {
    auto &absent = plan_.after.absent;
    const auto dropped = [&](const AbsentValue &a) {
      return std::none_of(layout.begin(), layout.end(), [&](const StoredColumn &c) { return c.id == a.id; });
    };
    absent.erase(std::remove_if(absent.begin(), absent.end(), dropped), absent.end());
  }

  static bool same(const RowLayout &a, const RowLayout &b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const StoredColumn &x, const StoredColumn &y) {
      return x.id == y.id && x.nullable == y.nullable;
    });
  }

  /** Maps the keys of the altered table to indexes. */
  const char *keys() {
    const uint n = after_->s->keys;
    std::vector<uint32_t> ids(n, 0);
    std::vector<bool> kept(before_->s->keys, false);
    const bool had_primary = before_->s->primary_key < before_->s->keys, has_primary = after_->s->primary_key < n;
    if (had_primary != has_primary) return "rows are stored in the order of the primary key";
    std::vector<int> from(n);
    for (uint k = 0; k < n; k++) {
      const int old = from[k] = old_key(k);
      if (old < 0) {
        if (has_primary && k == after_->s->primary_key) return "rows are stored in the order of the primary key";
        plan_.added.push_back(k);
        continue;
      }
      const uint o = static_cast<uint>(old);
      if ((had_primary && o == before_->s->primary_key) != (has_primary && k == after_->s->primary_key))
        return "rows are stored in the order of the primary key";
      ids[k] = now_.keys[o];
      kept[o] = true;
    }
    for (uint k = 0; k < before_->s->keys; k++)
      if (!kept[k]) plan_.dropped.push_back(now_.keys[k]);
    plan_.after.keys = ids;
    for (uint k : plan_.added)
      if (const char *why = cannot_build(after_->key_info[k])) return why;
    return forms(from);
  }

  const char *cannot_build(const KEY &key) const {
    if (is_foreign_kind(key)) return SERVERS_WORDS;
    if (info_->ignore && (key.flags & HA_NOSAME)) return text(ER_ALTER_OPERATION_NOT_SUPPORTED_REASON_IGNORE);
    for (uint i = 0; i < key.user_defined_key_parts; i++)
      if (!after_->field[key.key_part[i].fieldnr - 1]->stored_in_db()) return "values of a virtual column are not stored";
    return nullptr;
  }

  /** The present key that corresponds to a key of the altered table; -1 if that is new. */
  int old_key(uint k) const {
    const char *name = after_->key_info[k].name.str;
    for (uint i = 0; i < info_->index_add_count; i++)
      if (info_->index_add_buffer[i] == k) return -1;
    for (const auto &renamed : info_->rename_keys)
      if (same_name(renamed.new_key->name.str, name))
        return static_cast<int>(renamed.old_key - before_->key_info);
    for (uint o = 0; o < before_->s->keys; o++)
      if (same_name(before_->key_info[o].name.str, name)) return static_cast<int>(o);
    return -1;
  }

  /** Checks that the entries of indexes that stay have the form in which they would be written now. */
  const char *forms(const std::vector<int> &from) const {
    const TableFormat old(before_, now_), now(after_, plan_.after);
    if (!old.fits || !now.fits) return SERVERS_WORDS;
    for (size_t k = 0; k < from.size(); k++)
      if (from[k] >= 0 && !same_form(old.indexes[static_cast<size_t>(from[k])], now.indexes[k]))
        return text(ER_ALTER_OPERATION_NOT_SUPPORTED_REASON_COLUMN_TYPE);
    return nullptr;
  }

  TABLE *before_, *after_;
  const Alter_inplace_info *info_;
  const TableRecord &now_;
  AlterPlan plan_;
};

bool in_any_key(const Field &field) {
  const TABLE *t = field.table;
  for (uint k = 0; k < t->s->keys; k++)
    for (uint i = 0; i < t->key_info[k].user_defined_key_parts; i++)
      if (t->key_info[k].key_part[i].fieldnr == field.field_index + 1U) return true;
  return false;
}

/** Whether nothing stored depends on how the column compares. */
bool collation_is_free(const Field &field) {
#ifdef WITH_PARTITION_STORAGE_ENGINE
  if (field.table->part_info) return false;
#endif
  return !in_any_key(field) && field.table->s->virtual_fields == 0;
}

}  // namespace

bool converts_in_place(const Field &field, const Column_definition &type) {
  if (type.type_handler() != field.type_handler() || field.vcol_info) return false;
  const enum_field_types real = field.real_type();
  const bool sized = real == MYSQL_TYPE_VARCHAR || (real == MYSQL_TYPE_STRING && field.has_charset());
  if (!sized || type.compression_method() || field.compression_method()) return false;
  if (type.charset != field.charset()) {
    if (!my_charset_same(type.charset, field.charset()) || !collation_is_free(field)) return false;
  }
  if (type.length < field.field_length || type.char_length < field.char_length()) return false;
  // In some collations, keys include the padding of CHAR.
  return real == MYSQL_TYPE_VARCHAR || type.length == field.field_length || collation_is_free(field);
}

size_t absent_bytes(const TableRecord &record) {
  size_t bytes = 0;
  for (const AbsentValue &one : record.absent) bytes += one.value.size();
  return bytes;
}

AlterPlan plan_alter(TABLE *before, TABLE *after, const Alter_inplace_info *info, const TableRecord &now) {
  return Planner(before, after, info, now).plan();
}

}  // namespace kingtide
