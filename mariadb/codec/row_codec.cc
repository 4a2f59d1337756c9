/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "row_codec.h"

namespace kingtide {
namespace {

constexpr uint8_t VERSION = 1;

Slice without_padding(Slice data, Slice pad) {
  if (pad.size == 1) {  // nearly all of them are
    uint64_t pads, word;
    memset(&pads, *pad.data, sizeof pads);
    for (; data.size >= sizeof word; data.size -= sizeof word) {
      memcpy(&word, data.data + data.size - sizeof word, sizeof word);
      if (word != pads) break;
    }
    while (data.size != 0 && data.data[data.size - 1] == *pad.data) data.size--;
    return data;
  }
  while (pad.size != 0 && data.size >= pad.size && data.from(data.size - pad.size) == pad) data.size -= pad.size;
  return data;
}

void fill(uint8_t *at, size_t size, const std::string &pad) {
  if (pad.size() == 1) {
    memset(at, static_cast<uint8_t>(pad[0]), size);
    return;
  }
  for (size_t i = 0, p = 0; i < size; i++, p = p + 1 == pad.size() ? 0 : p + 1) at[i] = static_cast<uint8_t>(pad[p]);
}

bool take_sized(Slice &from, Slice *data) {
  uint64_t size;
  if (!take_varint(from, &size) || size > from.size) return false;
  *data = from.first(size);
  from = from.from(size);
  return true;
}

/** Gives a column the bytes that it has in another record: of a blob, none. */
void copy_default(const Column &c, const uint8_t *defaults, uint8_t *record) {
  size_t size = c.length;
  if (c.kind == ColumnKind::Var) size = c.length_bytes + read_le(defaults + c.offset, c.length_bytes);
  if (c.kind == ColumnKind::Blob)
    memset(record + c.offset, 0, c.length_bytes + sizeof(void *));
  else
    memcpy(record + c.offset, defaults + c.offset, size);
}

}  // namespace

Slice Column::data(const uint8_t *record) const {
  const uint8_t *at = record + offset;
  switch (kind) {
    case ColumnKind::Var:
      return Slice(at + length_bytes, read_le(at, length_bytes));
    case ColumnKind::Blob: {
      const uint8_t *bytes;
      memcpy(&bytes, at + length_bytes, sizeof bytes);
      return Slice(bytes, read_le(at, length_bytes));
    }
    default:
      return Slice(at, length);
  }
}

bool Column::same(const uint8_t *a, const uint8_t *b) const {
  if (null_mask && is_null(a) != is_null(b)) return false;
  return (null_mask && is_null(a)) || data(a) == data(b);
}

void append_column(const Column &c, const uint8_t *record, std::string *out) {
  Slice data = c.data(record);
  if (c.kind == ColumnKind::Char) data = without_padding(data, c.pad);
  if (c.kind != ColumnKind::Fixed) append_varint(*out, data.size);
  append(*out, data);
}

bool take_column(const Column &c, Slice &from, uint8_t *record) {
  uint8_t *at = record + c.offset;
  Slice data;
  if (c.kind == ColumnKind::Fixed) {
    if (from.size < c.length) return false;
    memcpy(at, from.data, c.length);
    from = from.from(c.length);
    return true;
  }
  if (!take_sized(from, &data)) return false;
  if (c.kind == ColumnKind::Blob) {
    if (c.length_bytes < 8 && data.size >> (8 * c.length_bytes) != 0) return false;
    write_le(at, data.size, c.length_bytes);
    memcpy(at + c.length_bytes, &data.data, sizeof data.data);
    return true;
  }
  if (data.size > c.length) return false;
  if (c.kind == ColumnKind::Var) {
    write_le(at, data.size, c.length_bytes);
    if (data.size) memcpy(at + c.length_bytes, data.data, data.size);
    return true;
  }
  if (data.size) memcpy(at, data.data, data.size);
  fill(at + data.size, c.length - data.size, c.pad);
  return true;
}

void RowFormat::encode(const uint8_t *record, std::string *row) const {
  row->push_back(VERSION);
  append_varint(*row, columns.size());
  const size_t nulls = row->size();
  size_t bit = 0;
  for (const Column &c : columns) {
    if (!c.null_mask) continue;
    if (bit % 8 == 0) row->push_back(0);
    if (c.is_null(record)) (*row)[nulls + bit / 8] = static_cast<char>((*row)[nulls + bit / 8] | 1 << bit % 8);
    bit++;
  }
  for (const Column &c : columns)
    if (!c.null_mask || !c.is_null(record)) append_column(c, record, row);
}

bool RowFormat::same(const uint8_t *a, const uint8_t *b) const {
  for (const Column &c : columns)
    if (!c.same(a, b)) return false;
  return true;
}

bool RowFormat::decode(Slice row, uint8_t *record, const uint8_t *defaults, size_t *missing) const {
  uint64_t stored;
  if (row.size == 0 || row.data[0] != VERSION) return false;
  row = row.from(1);
  if (!take_varint(row, &stored) || stored > columns.size()) return false;
  *missing = columns.size() - stored;
  size_t nullable = 0;
  for (size_t i = 0; i < stored; i++) nullable += columns[i].null_mask != 0;
  if (row.size < (nullable + 7) / 8) return false;
  const uint8_t *nulls = row.data;
  row = row.from((nullable + 7) / 8);
  size_t bit = 0;
  for (size_t i = 0; i < stored; i++) {
    const Column &c = columns[i];
    if (c.null_mask) {
      const bool is_null = nulls[bit / 8] >> bit % 8 & 1;
      bit++;
      if (is_null) {
        record[c.null_offset] |= c.null_mask;
        copy_default(c, defaults, record);
        continue;
      }
      record[c.null_offset] &= static_cast<uint8_t>(~c.null_mask);
    }
    if (!take_column(c, row, record)) return false;
  }
  for (size_t i = stored; i < columns.size(); i++) {
    const Column &c = columns[i];
    copy_default(c, defaults, record);
    if (c.null_mask)
      record[c.null_offset] = static_cast<uint8_t>((record[c.null_offset] & ~c.null_mask) |
                                                   (defaults[c.null_offset] & c.null_mask));
  }
  return row.size == 0;
}

}  // namespace kingtide
