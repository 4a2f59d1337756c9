/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "fields.h"

#include <algorithm>


namespace kingtide {
namespace {

bool is_varchar(const Field *f) {
  return f->real_type() == MYSQL_TYPE_VARCHAR || f->real_type() == MYSQL_TYPE_VARCHAR_COMPRESSED;
}

bool is_blob(const Field *f) { return f->flags & BLOB_FLAG; }

bool is_char(const Field *f) { return f->real_type() == MYSQL_TYPE_STRING && f->has_charset(); }

std::string fill_of(CHARSET_INFO *cs) {
  char space[8];
  cs->cset->fill(cs, space, cs->mbminlen, ' ');
  return std::string(space, cs->mbminlen);
}

Column column_of(const TABLE *table, const Field *f) {
  Column c;
  c.number = f->field_index;
  c.offset = f->offset(table->record[0]);
  c.length = f->pack_length();
  if (f->null_ptr) {
    c.null_offset = f->null_offset(table->record[0]);
    c.null_mask = f->null_bit;
  }
  if (is_varchar(f)) {
    c.kind = ColumnKind::Var;
    c.length_bytes = static_cast<const Field_varstring *>(f)->length_bytes;
    c.length -= c.length_bytes;
  } else if (is_blob(f)) {
    c.kind = ColumnKind::Blob;
    c.length_bytes = static_cast<const Field_blob *>(f)->pack_length_no_ptr();
  } else if (is_char(f)) {
    c.kind = ColumnKind::Char;
    c.pad = fill_of(f->charset());
  }
  return c;
}

/** Whether the collation compares level by level, and strnxfrm can return each level alone. */
bool has_levels(CHARSET_INFO *cs) { return cs->levels_for_order > 1 && !(cs->state & MY_CS_STRNXFRM_BAD_NWEIGHTS); }

/** Its strnxfrm sorts by strokes and gives some characters equal weights, but comparisons use the characters' codes. */
bool is_big5_chinese(CHARSET_INFO *cs) { return !(cs->state & MY_CS_BINSORT) && !strcmp(cs->cs_name.str, "big5"); }

/**
  Whether keys of the first form lack weights in this collation: those with several levels; those in which a character of two
  bytes can have more weights than the server's functions say (U+FDFA has 18); and big5_chinese, whose weights do not match its
  comparisons.
*/
bool first_form_fails(CHARSET_INFO *cs) { return has_levels(cs) || (cs->uca && cs->mbminlen == 2) || is_big5_chinese(cs); }

std::string big5_weights(CHARSET_INFO *cs, Slice text) {
  std::string weights;
  const char *at = reinterpret_cast<const char *>(text.data), *const end = at + text.size;
  while (at < end) {
    if (my_ismbchar(cs, at, end) == 2) {
      weights.append(at, 2);
      at += 2;
      continue;
    }
    const uchar byte = static_cast<uchar>(*at++);
    if (byte >= 0x80) weights.push_back('\xff');  // incomplete characters sort last
    weights.push_back(static_cast<char>(byte < 0x80 ? cs->sort_order[byte] : byte));
  }
  return weights;
}

/** Whether the collation is an old one (Czech) that compares level by level, ignoring trailing spaces. */
bool strips_levels(CHARSET_INFO *cs) { return cs->levels_for_order > 1 && (cs->state & MY_CS_STRNXFRM_BAD_NWEIGHTS); }

/** The weights of a text, in one level or in all. */
std::string weights_of(CHARSET_INFO *cs, Slice text, uint levels = 0) {
  if (is_big5_chinese(cs)) return big5_weights(cs, text);
  // strnxfrmlen expects the length of as many characters of maximum size, and its result is an estimate: if characters have more
  // weights than that, strnxfrm fills the buffer and drops the rest.
  std::string weights(cs->strnxfrmlen((text.size + 1) * cs->mbmaxlen) + 8, '\0');
  for (;;) {
    const size_t n = cs->coll->strnxfrm(cs, reinterpret_cast<uchar *>(&weights[0]), weights.size(),
                                        static_cast<uint>(weights.size()), text.data, text.size, levels);
    if (n < weights.size()) {
      weights.resize(n);
      return weights;
    }
    weights.resize(2 * weights.size());
  }
}

/** The weights in each level that the collation compares. */
std::vector<std::string> levels_of(CHARSET_INFO *cs, Slice text) {
  std::vector<std::string> levels;
  for (uint i = 0, left = cs->levels_for_order; left != 0; i++, left >>= 1)
    if (left & 1) levels.push_back(weights_of(cs, text, MY_STRXFRM_LEVEL1 << i));
  return levels;
}

void describe_text(IndexPart *p, const Field *f) {
  CHARSET_INFO *cs = f->charset();
  p->charset = cs;
  if (has_levels(cs)) {
    p->codec.kind = PartKind::Levels;
    p->codec.spaces = levels_of(cs, Slice(fill_of(cs)));
    if (cs->state & MY_CS_NOPAD) p->codec.spaces[0].clear();  // the server pads all levels except the first
    return;
  }
  // Without PAD SPACE, the padding of CHAR is compared like other characters.
  if (strips_levels(cs) || (cs->state & MY_CS_NOPAD)) {
    p->codec.kind = PartKind::Bytes;
    return;
  }
  p->codec.kind = PartKind::Text;
  p->codec.space = weights_of(cs, Slice(fill_of(cs)));
}

bool is_integer(const Field *f) {
  switch (f->real_type()) {
    case MYSQL_TYPE_TINY:
    case MYSQL_TYPE_SHORT:
    case MYSQL_TYPE_INT24:
    case MYSQL_TYPE_LONG:
    case MYSQL_TYPE_LONGLONG:
      return true;
    default:
      return false;
  }
}

IndexPart part_of(const TABLE *table, const KEY_PART_INFO &kp) {
  const Field *f = table->field[kp.fieldnr - 1];
  IndexPart p;
  p.field = kp.fieldnr - 1;
  p.length = kp.length;
  p.column = column_of(table, f);
  p.codec.nullable = f->real_maybe_null();
  p.codec.descending = kp.key_part_flag & HA_REVERSE_SORT;
  p.sized_in_tuple = kp.key_part_flag & (HA_VAR_LENGTH_PART | HA_BLOB_PART);
  p.whole = !(kp.key_part_flag & HA_PART_KEY_SEG) && !is_blob(f);
  if (is_varchar(f) || is_blob(f) || is_char(f)) {
    if (f->has_charset())
      describe_text(&p, f);
    else
      p.codec.kind = PartKind::Bytes;
  } else if (is_integer(f)) {
    p.codec.kind = PartKind::Integer;
    p.codec.length = f->pack_length();
    p.codec.is_unsigned = f->flags & UNSIGNED_FLAG;
  } else {
    p.codec.kind = PartKind::Image;
    p.codec.length = kp.length;
    p.raw = kp.length < f->pack_length();
  }
  return p;
}

/** The part of a text that is indexed. */
Slice prefix_of(const IndexPart &p, Slice text) {
  CHARSET_INFO *cs = p.charset;
  if (!cs || cs->mbmaxlen == 1) return text.size > p.length ? text.first(p.length) : text;
  const char *begin = reinterpret_cast<const char *>(text.data);
  const size_t n = cs->charpos(begin, begin + text.size, p.length / cs->mbmaxlen);
  return n < text.size ? text.first(n) : text;
}

}  // namespace

std::string Index::prefix() const {
  std::string s;
  append_be(s, id, 4);
  return s;
}

std::string Index::end() const {
  std::string s;
  append_be(s, id + uint64_t{1}, 4);
  return s;
}

bool same_form(const Index &a, const Index &b) {
  if (a.unique != b.unique || a.parts.size() != b.parts.size()) return false;
  for (size_t i = 0; i < a.parts.size(); i++) {
    const IndexPart &p = a.parts[i], &q = b.parts[i];
    if (p.codec.kind != q.codec.kind || p.codec.nullable != q.codec.nullable || p.codec.descending != q.codec.descending ||
        p.codec.length != q.codec.length || p.codec.is_unsigned != q.codec.is_unsigned || p.codec.space != q.codec.space ||
        p.codec.spaces != q.codec.spaces)
      return false;
    if (p.charset != q.charset || p.raw != q.raw || p.whole != q.whole || (!p.whole && p.length != q.length)) return false;
    const StoredColumn s = stored_form(p.column, 0), t = stored_form(q.column, 0);
    if (s.sized != t.sized || s.length != t.length) return false;
  }
  return true;
}

std::vector<Column> row_columns(const TABLE *table) {
  std::vector<Column> columns;
  for (uint i = 0; i < table->s->fields; i++)
    if (table->field[i]->stored_in_db()) columns.push_back(column_of(table, table->field[i]));
  return columns;
}

CHARSET_INFO *collation_of_key_form(const TABLE *table) {
  for (uint k = 0; k < table->s->keys; k++) {
    const KEY &key = table->key_info[k];
    for (uint i = 0; i < key.user_defined_key_parts; i++) {
      const Field *f = table->field[key.key_part[i].fieldnr - 1];
      if ((is_varchar(f) || is_blob(f) || is_char(f)) && f->has_charset() && first_form_fails(f->charset())) return f->charset();
    }
  }
  return nullptr;
}

void set_key_form(const TABLE *table, TableRecord *record) {
  if (collation_of_key_form(table)) record->key_form = KEY_FORM_NEWEST;
}

void set_first_layout(const std::vector<Column> &columns, TableRecord *record) {
  RowLayout layout;
  for (const Column &c : columns) layout.push_back(stored_form(c, record->next_column++));
  record->layouts = {layout};
}

TableFormat::TableFormat(const TABLE *table, const TableRecord &record) {
  const TABLE_SHARE *share = table->s;
  row.columns = row_columns(table);
  TableRecord first;
  if (record.layouts.empty()) set_first_layout(row.columns, &first);
  fits = record.keys.size() == share->keys && row.set_layouts(record.layouts.empty() ? first.layouts : record.layouts, record.absent);
  if (!fits) return;
  outdated = record.key_form == KEY_FORM_FIRST && collation_of_key_form(table);
  int next = 0;
  for (uint i = 0; i < share->fields; i++) stored.push_back(table->field[i]->stored_in_db() ? next++ : -1);
  for (uint k = 0; k < share->keys; k++) {
    const KEY &key = table->key_info[k];
    Index index;
    index.id = record.keys[k];
    index.primary = k == share->primary_key;
    index.unique = key.flags & HA_NOSAME;
    for (uint i = 0; i < key.user_defined_key_parts; i++) index.parts.push_back(part_of(table, key.key_part[i]));
    index.extended_parts = key.ext_key_parts;
    indexes.push_back(index);
  }
  hidden_primary = share->primary_key >= share->keys;
  if (!hidden_primary) {
    primary = indexes[share->primary_key];
    for (Index &index : indexes) describe_tail(&index);
  } else {
    primary.id = record.primary;
    primary.primary = primary.unique = true;
  }
  for (Index &index : indexes) find_beginnings(&index);
}

/** A column of which one part has only the beginning may be complete in another part. */
void TableFormat::find_beginnings(Index *index) const {
  const auto is_whole = [](const std::vector<IndexPart> &parts, uint field) {
    return std::any_of(parts.begin(), parts.end(), [field](const IndexPart &p) { return p.field == field && p.whole; });
  };
  for (const Index *i : {static_cast<const Index *>(index), &primary})
    for (const IndexPart &p : i->parts)
      if (!is_whole(index->parts, p.field) && !is_whole(primary.parts, p.field)) {
        index->beginnings.push_back(p);
        index->has_virtual_beginnings |= stored[p.field] < 0;
      }
}

void TableFormat::describe_tail(Index *index) const {
  if (index->unique) return;
  for (const IndexPart &p : primary.parts) {
    const auto same = std::find_if(index->parts.begin(), index->parts.end(),
                                   [&p](const IndexPart &other) { return other.field == p.field; });
    index->tail.push_back(same == index->parts.end() ? -1 : static_cast<int>(same - index->parts.begin()));
  }
}

void TableFormat::append_part(const IndexPart &p, TABLE *table, Slice data, std::string *out) const {
  KeyWriter writer(*out);
  if (p.codec.kind == PartKind::Integer) return writer.integer(p.codec, data.data);
  if (p.charset) {
    data = prefix_of(p, data);
    if (p.codec.kind == PartKind::Levels) return writer.levels(p.codec, levels_of(p.charset, data));
    if (strips_levels(p.charset))
      data = data.first(p.charset->lengthsp(reinterpret_cast<const char *>(data.data), data.size));
    return writer.value(p.codec, weights_of(p.charset, data));
  }
  if (p.codec.kind == PartKind::Bytes || p.raw) return writer.value(p.codec, data.size > p.length ? data.first(p.length) : data);
  Field *f = table->field[p.field];
  AllColumnsReadable readable(table);
  std::string image(p.codec.length, '\0');
  uchar *const at = f->ptr;
  f->ptr = const_cast<uchar *>(data.data);
  f->sort_string(reinterpret_cast<uchar *>(&image[0]), p.codec.length);
  f->ptr = at;
  writer.value(p.codec, image);
}

void TableFormat::append_key(const Index &index, TABLE *table, const uchar *record, std::string *out, bool *null) const {
  for (const IndexPart &p : index.parts) {
    if (p.codec.nullable && p.column.null_mask && p.column.is_null(record)) {
      KeyWriter(*out).null(p.codec);
      if (null) *null = true;
      continue;
    }
    append_part(p, table, p.column.data(record), out);
  }
}

bool TableFormat::sorts_by_integers(const Index &index, key_part_map map) const {
  const size_t parts = index.parts.size();
  if (map != HA_WHOLE_KEY && map >> parts != 0) return false;
  for (size_t i = 0; i < parts && (map >> i & 1); i++)
    if (index.parts[i].codec.kind != PartKind::Integer) return false;
  return true;
}

void TableFormat::append_tuple(const Index &index, TABLE *table, const uchar *tuple, key_part_map map, std::string *out,
                               bool *null, uint *parts) const {
  std::vector<Slice> values;
  const bool extended = map != HA_WHOLE_KEY && (map >> index.parts.size()) != 0 && !index.tail.empty();
  const auto take = [&](const IndexPart &p) {
    const Slice data = p.data_in_tuple(tuple);
    tuple += p.tuple_length();
    return data;
  };
  for (*parts = 0; *parts < index.parts.size() && (map >> *parts & 1); (*parts)++) {
    const IndexPart &p = index.parts[*parts];
    const bool is_null = p.codec.nullable && *tuple++;
    const Slice value = take(p);
    if (extended) values.push_back(value);
    if (is_null) {
      KeyWriter(*out).null(p.codec);
      *null = true;
    } else {
      append_part(p, table, value, out);
    }
  }
  // The primary key's parts: those that the index also has are repeated in the entry, but not in the tuple.
  if (*parts < index.parts.size() || !extended) return;
  std::string again;
  uint next = *parts;
  for (size_t i = 0; i < index.tail.size() && next < index.extended_parts; i++) {
    const IndexPart &p = primary.parts[i];
    if (index.tail[i] < 0) {
      if (!(map >> next++ & 1)) return;
      append(*out, again);
      again.clear();
      append_part(p, table, take(p), out);
    } else {
      append_part(p, table, values[index.tail[i]], &again);
    }
  }
}

uint TableFormat::position_length() const {
  uint n = hidden_primary ? HIDDEN_KEY : 0;
  for (const IndexPart &p : primary.parts) n += p.tuple_length();
  return n;
}

void TableFormat::position(const uchar *record, uchar *position) const {
  for (const IndexPart &p : primary.parts) {
    Slice data = p.column.data(record);
    if (p.charset) data = prefix_of(p, data);
    const size_t n = std::min<size_t>(data.size, p.length), head = p.sized_in_tuple ? HA_KEY_BLOB_LENGTH : 0;
    if (head) int2store(position, n);
    if (n > 0) memcpy(position + head, data.data, n);
    memset(position + head + n, 0, p.length - n);  // the server may compare the bytes
    position += p.tuple_length();
  }
}

int TableFormat::compare_positions(TABLE *table, const uchar *a, const uchar *b) const {
  if (hidden_primary) return memcmp(a, b, HIDDEN_KEY);
  for (const IndexPart &p : primary.parts) {
    if (memcmp(a, b, p.tuple_length()) != 0) {
      std::string of_a, of_b;
      append_part(p, table, p.data_in_tuple(a), &of_a);
      append_part(p, table, p.data_in_tuple(b), &of_b);
      if (const int order = Slice(of_a).compare(of_b)) return order;
    }
    a += p.tuple_length();
    b += p.tuple_length();
  }
  return 0;
}

void TableFormat::entry(const Index &index, TABLE *table, const uchar *record, Slice row_key, std::string *key,
                        std::string *value, bool *checked) const {
  bool null = false;
  *key = index.prefix();
  append_key(index, table, record, key, &null);
  *checked = index.unique && !null;
  value->clear();
  if (*checked) {
    append_varint(*value, row_key.size);
    append(*value, row_key);
  } else {
    append(*key, row_key);
  }
  for (const Index *i : {&index, static_cast<const Index *>(&primary)})
    for (const IndexPart &p : i->parts)
      if (p.kept() && !(p.column.null_mask && p.column.is_null(record))) append_column(p.column, record, value);
}

bool TableFormat::same_entry(const Index &index, const uchar *a, const uchar *b) const {
  for (const Index *i : {&index, static_cast<const Index *>(&primary)})
    for (const IndexPart &p : i->parts)
      if (!p.column.same(a, b)) return false;
  return true;
}

bool TableFormat::row_key(const Index &index, Slice key, Slice value, Slice *row_key) const {
  key = key.from(4);
  bool null = false;
  for (const IndexPart &p : index.parts) {
    PartValue v;
    if (!parse_part(p.codec, key, &v)) return false;
    null |= v.is_null;
    key = key.from(v.size);
  }
  if (!index.unique || null) {
    *row_key = key;
    return true;
  }
  uint64_t size;
  if (!take_varint(value, &size) || size > value.size) return false;
  *row_key = value.first(size);
  return true;
}

bool TableFormat::restore_parts(const Index &index, Slice *key, Slice *kept, uchar *record) const {
  for (const IndexPart &p : index.parts) {
    if (p.codec.kind == PartKind::Integer && !p.codec.nullable) {
      if (key->size < p.codec.length) return false;
      if (p.whole) read_integer(p.codec, *key, record + p.column.offset);
      *key = key->from(p.codec.length);
      continue;
    }
    PartValue v;
    if (!parse_part(p.codec, *key, &v)) return false;
    if (p.codec.nullable && p.whole) {
      if (v.is_null)
        record[p.column.null_offset] |= p.column.null_mask;
      else
        record[p.column.null_offset] &= static_cast<uchar>(~p.column.null_mask);
    }
    if (p.whole && !v.is_null) {
      if (p.codec.kind == PartKind::Integer)
        read_integer(p.codec, *key, record + p.column.offset);
      else if (!take_column(p.column, *kept, record))
        return false;
    }
    *key = key->from(v.size);
  }
  return true;
}

bool TableFormat::primary_gives(Wanted wanted) const {
  for (const Column &c : row.columns) {
    if (!wanted.has(c)) continue;
    const auto gives = [&c](const IndexPart &p) {
      return p.field == c.number && p.whole && p.codec.kind == PartKind::Integer && !p.codec.nullable;
    };
    if (std::none_of(primary.parts.begin(), primary.parts.end(), gives)) return false;
  }
  return true;
}

bool TableFormat::restore_primary(Slice key, uchar *record) const {
  for (const IndexPart &p : primary.parts) {
    PartValue v;
    if (!parse_part(p.codec, key, &v)) return false;
    if (p.whole && p.codec.kind == PartKind::Integer && !v.is_null) read_integer(p.codec, key, record + p.column.offset);
    key = key.from(v.size);
  }
  return true;
}

bool TableFormat::covers(const Index &index, Wanted wanted) const {
  const auto has = [wanted](const IndexPart &p) { return wanted.has(p.column); };
  return std::none_of(index.beginnings.begin(), index.beginnings.end(), has);
}

/** Whether an entry of a secondary index has a column that is wanted. */
bool TableFormat::gives_back(const Index &index, Wanted wanted) const {
  const auto has = [wanted](const IndexPart &p) { return wanted.has(p.column); };
  return wanted.all() || std::any_of(index.parts.begin(), index.parts.end(), has) ||
         std::any_of(primary.parts.begin(), primary.parts.end(), has);
}

bool TableFormat::restore(const Index &index, Slice key, Slice value, uchar *record, Wanted wanted) const {
  if (!gives_back(index, wanted)) return true;
  Slice row = key.from(4);
  if (!index.unique) return restore_parts(index, &row, &value, record) && restore_parts(primary, &row, &value, record);
  if (!row_key(index, key, value, &row)) return false;
  key = key.from(4);
  if (row.data >= value.data && row.data < value.data + value.size)
    value = Slice(row.data + row.size, value.data + value.size - (row.data + row.size));
  if (!restore_parts(index, &key, &value, record)) return false;
  return restore_parts(primary, &row, &value, record);
}

}  // namespace kingtide
