/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "generated.h"

#include <utility>

namespace kingtide {
namespace {

bool is_generated_blob(const Field *field) { return field->vcol_info && (field->flags & BLOB_FLAG); }

/** Determines whether keys have STORED generated columns, and whether they have virtual ones. */
void find_in_keys(const TABLE *table, bool *stored_ones, bool *virtual_ones) {
  *stored_ones = *virtual_ones = false;
  for (uint k = 0; k < table->s->keys; k++) {
    const KEY &key = table->key_info[k];
    for (uint p = 0; p < key.user_defined_key_parts; p++) {
      const Field *field = key.key_part[p].field;
      if (field->vcol_info) *(field->stored_in_db() ? stored_ones : virtual_ones) = true;
    }
  }
}

/** Returns all virtual columns: those that are in no key may be part of the expressions of others. */
std::vector<Field *> all_virtual(const TABLE *table) {
  std::vector<Field *> columns;
  for (Field **f = table->vfield; *f; f++)
    if (!(*f)->stored_in_db()) columns.push_back(*f);
  return columns;
}

}  // namespace

Generating::Generating(TABLE *table, const uchar *record)
    : table_(table), offset_(record - table->record[0]), readable_(table),
      written_(dbug_tmp_use_all_columns(table, &table->write_set)) {
  move(offset_);
  table_->in_use->set_n_backup_active_arena(table_->expr_arena, &before_);
  table_->in_use->push_internal_handler(&ignore_);
}

Generating::~Generating() {
  table_->in_use->pop_internal_handler();
  table_->in_use->restore_active_arena(table_->expr_arena, &before_);
  move(-offset_);
  dbug_tmp_restore_column_map(&table_->write_set, written_);
}

void Generating::move(my_ptrdiff_t offset) {
  for (Field **f = table_->field; *f; f++) (*f)->move_field_offset(offset);
}

void Generating::compute(Field *field) { field->vcol_info->expr->save_in_field(field, 0); }

std::unique_ptr<GeneratedBlobs> GeneratedBlobs::of(TABLE *table) {
  if (!table->versioned() || !table->vfield) return nullptr;
  bool virtual_in_key = false;
  for (uint k = 0; k < table->s->keys; k++) {
    const KEY &key = table->key_info[k];
    for (uint p = 0; p < key.user_defined_key_parts; p++) {
      const Field *field = key.key_part[p].field;
      virtual_in_key |= is_generated_blob(field) && !field->stored_in_db();
    }
  }
  std::unique_ptr<GeneratedBlobs> blobs(new GeneratedBlobs(table));
  // One that is in no key may be part of the expression of one that is.
  for (Field **f = table->vfield; *f; f++)
    if (is_generated_blob(*f) && (virtual_in_key || (*f)->stored_in_db())) blobs->columns_.push_back(static_cast<Field_blob *>(*f));
  if (blobs->columns_.empty()) return nullptr;
  blobs->values_ = std::vector<String>(RECORDS * blobs->columns_.size());
  return blobs;
}

const Field *GeneratedBlobs::under_hash(const TABLE *table) {
  if (!table->versioned()) return nullptr;
  for (uint k = 0; k < table->s->keys; k++) {
    KEY *key = &table->key_info[k];
    if (!(key->key_part->field->flags & LONG_UNIQUE_HASH_FIELD)) continue;
    // The columns stand in front of the hash.
    for (int p = -static_cast<int>(fields_in_hash_keyinfo(key)); p < 0; p++)
      if (is_generated_blob(key->key_part[p].field)) return key->key_part[p].field;
  }
  return nullptr;
}

void GeneratedBlobs::renew(const uchar *record, bool was_read) {
  Generating generating(table_, record);
  String *value = &values_[record_++ % RECORDS * columns_.size()];
  for (Field_blob *column : columns_) {
    String &mine = *value++;
    if (was_read && column->stored_in_db()) continue;
    column->swap(mine, false);
    generating.compute(column);
    column->swap(mine, false);
  }
}

void GeneratedBlobs::give_memory_back(size_t most_kept) {
  for (String &value : values_)
    if (value.alloced_length() > most_kept) value.free();
}

void RecordCopy::make_room(const TABLE *table, size_t virtual_columns) {
  record.resize(table->s->reclength);
  values = std::vector<String>(virtual_columns);
}

void RecordCopy::compute(TABLE *table, const std::vector<Field *> &columns) {
  Generating generating(table, record.data());
  for (size_t i = 0; i < columns.size(); i++) {
    // The column's own value belongs to the server's record.
    auto *blob = columns[i]->flags & BLOB_FLAG ? static_cast<Field_blob *>(columns[i]) : nullptr;
    if (blob) blob->swap(values[i], false);
    generating.compute(columns[i]);
    if (blob) blob->swap(values[i], false);
  }
}

void RecordCopy::give_memory_back(size_t most_kept) {
  for (String &value : values)
    if (value.alloced_length() > most_kept) value.free();
}

VirtualColumns::VirtualColumns(TABLE *table, std::vector<Field *> columns) : table_(table), columns_(std::move(columns)) {
  for (RecordCopy *copy : {&before_, &after_}) copy->make_room(table, columns_.size());
}

std::unique_ptr<VirtualColumns> VirtualColumns::of(TABLE *table) {
  if (!table->vfield) return nullptr;
  bool stored_in_key, virtual_in_key;
  find_in_keys(table, &stored_in_key, &virtual_in_key);
  return std::unique_ptr<VirtualColumns>(virtual_in_key ? new VirtualColumns(table, all_virtual(table)) : nullptr);
}

void VirtualColumns::compute(const uchar **before, const uchar **after) {
  for (const auto &[record, copy] : {std::pair(before, &before_), std::pair(after, &after_)}) {
    if (!record) continue;
    memcpy(copy->record.data(), *record, copy->record.size());
    copy->compute(table_, columns_);
    *record = copy->record.data();
  }
}

void VirtualColumns::give_memory_back(size_t most_kept) {
  for (RecordCopy *copy : {&before_, &after_}) copy->give_memory_back(most_kept);
}

StoredColumns::StoredColumns(TABLE *table) : table_(table), stored_(table->s->fields / 64 + 1) {}

std::unique_ptr<StoredColumns> StoredColumns::of(TABLE *table) {
  if (!table->vfield) return nullptr;
  bool stored_in_key, virtual_in_key;
  find_in_keys(table, &stored_in_key, &virtual_in_key);
  if (!stored_in_key && !virtual_in_key) return nullptr;
  std::unique_ptr<StoredColumns> columns(new StoredColumns(table));
  bool any = false;
  for (Field **f = table->vfield; *f; f++) {
    const uint number = (*f)->field_index;
    if (!(*f)->stored_in_db()) continue;
    columns->stored_[number / 64] |= 1ULL << number % 64;
    any = true;
  }
  if (!any) return nullptr;
  if (virtual_in_key) columns->virtual_ = all_virtual(table);
  for (RecordCopy *copy : {&columns->before_, &columns->after_}) copy->make_room(table, columns->virtual_.size());
  return columns;
}

bool StoredColumns::differ(const RowFormat &format, const uchar *a, const uchar *b) const {
  for (const Column &c : format.columns)
    if (Wanted(stored_.data()).has(c) && !c.same(a, b)) return true;
  return false;
}

bool StoredColumns::restore(const RowFormat &format, Slice row, const uchar **before, const uchar **after) {
  Columns unchanged(stored_.size());
  bool any = false;
  for (const Column &c : format.columns) {
    if (!after || !Wanted(stored_.data()).has(c) || !c.same(*before, *after)) continue;
    unchanged[c.number / 64] |= 1ULL << c.number % 64;
    any = true;
  }
  const uchar *const computed = *before;
  if (!restore(format, row, stored_, &before_, before)) return false;
  return !any || *before == computed || restore(format, row, unchanged, &after_, after);
}

bool StoredColumns::restore(const RowFormat &format, Slice row, const Columns &columns, RecordCopy *copy, const uchar **record) {
  uchar *const to = copy->record.data();
  memcpy(to, *record, copy->record.size());
  if (!format.decode(row, to, table_->s->default_values, Wanted(columns.data()))) return false;
  // With system versioning, blobs of the record may point to memory that was freed: see GeneratedBlobs.
  if (!table_->versioned() && !differ(format, *record, to)) return true;
  *record = to;
  if (!virtual_.empty()) copy->compute(table_, virtual_);
  return true;
}

void StoredColumns::give_memory_back(size_t most_kept) {
  if (row.capacity() > most_kept) std::string().swap(row);
  for (RecordCopy *copy : {&before_, &after_}) copy->give_memory_back(most_kept);
}

}  // namespace kingtide
