/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "table_record.h"

namespace kingtide {
namespace {

constexpr uint8_t WITHOUT_TAGS = 1, VERSION = 2;

/** Tags of the fields. A number is never reused with another meaning. */
enum Tag : uint64_t { PRIMARY = 1, KEYS = 2, LAYOUTS = 3, NEXT_COLUMN = 4, ABSENT = 5, DEFINITION = 6, KEY_FORM = 7 };

void append_field(std::string &out, Tag tag, Slice bytes) {
  append_varint(out, tag);
  append_varint(out, bytes.size);
  append(out, bytes);
}

std::string number(uint64_t n) {
  std::string s;
  append_varint(s, n);
  return s;
}

bool take_id(Slice &from, uint32_t *id) {
  uint64_t n;
  if (!take_varint(from, &n) || n > UINT32_MAX) return false;
  *id = static_cast<uint32_t>(n);
  return true;
}

bool take_keys(Slice &from, std::vector<uint32_t> *keys) {
  uint64_t n;
  if (!take_varint(from, &n) || n > from.size) return false;
  keys->assign(n, 0);
  for (uint32_t &id : *keys)
    if (!take_id(from, &id)) return false;
  return true;
}

void append_layouts(std::string &out, const std::vector<RowLayout> &layouts) {
  append_varint(out, layouts.size());
  for (const RowLayout &layout : layouts) {
    append_varint(out, layout.size());
    for (const StoredColumn &c : layout) {
      append_varint(out, c.id);
      append_varint(out, uint64_t{c.length} << 2 | uint64_t{c.sized} << 1 | uint64_t{c.nullable});
    }
  }
}

bool take_layouts(Slice &from, std::vector<RowLayout> *layouts) {
  uint64_t n, columns, form;
  if (!take_varint(from, &n) || n > from.size) return false;
  for (layouts->clear(); n > 0; n--) {
    if (!take_varint(from, &columns) || columns > from.size) return false;
    RowLayout layout(columns);
    for (StoredColumn &c : layout) {
      if (!take_id(from, &c.id) || !take_varint(from, &form) || form >> 2 > UINT32_MAX) return false;
      c.nullable = form & 1;
      c.sized = form & 2;
      c.length = static_cast<uint32_t>(form >> 2);
    }
    layouts->push_back(std::move(layout));
  }
  return true;
}

void append_absent(std::string &out, const std::vector<AbsentValue> &absent) {
  append_varint(out, absent.size());
  for (const AbsentValue &a : absent) {
    append_varint(out, a.id);
    append_varint(out, a.null ? 0 : a.value.size() + 1);
    if (!a.null) out += a.value;
  }
}

bool take_absent(Slice &from, std::vector<AbsentValue> *absent) {
  uint64_t n, size;
  if (!take_varint(from, &n) || n > from.size) return false;
  absent->assign(n, AbsentValue());
  for (AbsentValue &a : *absent) {
    if (!take_id(from, &a.id) || !take_varint(from, &size) || size > from.size + 1) return false;
    a.null = size == 0;
    if (a.null) continue;
    a.value = from.first(size - 1).str();
    from = from.from(size - 1);
  }
  return true;
}

/** Decodes the bytes of one field, all of which must be used. */
bool take_field(uint64_t tag, Slice bytes, TableRecord *r) {
  switch (tag) {
    case PRIMARY:
      return take_id(bytes, &r->primary) && bytes.size == 0;
    case KEYS:
      return take_keys(bytes, &r->keys) && bytes.size == 0;
    case LAYOUTS:
      return take_layouts(bytes, &r->layouts) && bytes.size == 0;
    case NEXT_COLUMN:
      return take_id(bytes, &r->next_column) && bytes.size == 0;
    case ABSENT:
      return take_absent(bytes, &r->absent) && bytes.size == 0;
    case DEFINITION:
      r->definition = bytes.str();
      return true;
    case KEY_FORM:
      return take_id(bytes, &r->key_form) && bytes.size == 0;
    default:
      return false;
  }
}

bool known(uint64_t tag) { return tag >= PRIMARY && tag <= KEY_FORM; }

}  // namespace

std::string encode_table_record(const TableRecord &r) {
  std::string s(1, VERSION), keys = number(r.keys.size());
  for (uint32_t id : r.keys) append_varint(keys, id);
  append_field(s, PRIMARY, number(r.primary));
  append_field(s, KEYS, keys);
  if (!r.layouts.empty()) {
    std::string layouts, absent;
    append_layouts(layouts, r.layouts);
    append_field(s, LAYOUTS, layouts);
    append_field(s, NEXT_COLUMN, number(r.next_column));
    append_absent(absent, r.absent);
    if (!r.absent.empty()) append_field(s, ABSENT, absent);
  }
  if (!r.definition.empty()) append_field(s, DEFINITION, r.definition);
  if (r.key_form != KEY_FORM_FIRST) append_field(s, KEY_FORM, number(r.key_form));
  return s;
}

bool decode_table_record(Slice s, TableRecord *r, std::string *why) {
  *r = TableRecord();
  *why = "a table's entry in the dictionary is damaged";
  if (s.size == 0) return false;
  const uint8_t version = s.data[0];
  s = s.from(1);
  if (version == WITHOUT_TAGS) return take_id(s, &r->primary) && take_keys(s, &r->keys) && s.size == 0;
  if (version != VERSION) {
    *why = "a table's entry in the dictionary has version " + std::to_string(version) + ", which this program does not know";
    return false;
  }
  uint64_t last = 0;
  bool has_keys = false;
  while (s.size != 0) {
    uint64_t tag, size;
    if (!take_varint(s, &tag) || !take_varint(s, &size) || size > s.size || tag <= last) return false;
    last = tag;
    has_keys |= tag == KEYS;
    if (!known(tag)) {
      *why = "a table has property " + std::to_string(tag) + ", which this program does not know: a later one made it";
      return false;
    }
    if (!take_field(tag, s.first(size), r)) return false;
    s = s.from(size);
  }
  if (r->key_form > KEY_FORM_NEWEST) {
    *why = "a table has keys of form " + std::to_string(r->key_form) + ", which this program does not know: a later one made it";
    return false;
  }
  return r->primary != 0 && has_keys;
}

}  // namespace kingtide
