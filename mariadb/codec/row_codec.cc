/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "row_codec.h"

#include <algorithm>
#include <unordered_map>

namespace kingtide {
namespace {

constexpr uint8_t COUNTED = 1, VERSION = 2;
constexpr size_t LONGEST_VARINT = 10;
/** Shorter blobs are copied together with what is around them. */
constexpr size_t LONG_BLOB = 64 << 10;

Slice without_padding(Slice data, Slice pad) {
  if (pad.size == 1) {  // the usual case
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

/** Copies a column's bytes from another record, or makes a blob empty. */
void copy_default(const Column &c, const uint8_t *defaults, uint8_t *record) {
  size_t size = c.length;
  if (c.kind == ColumnKind::Var) size = c.length_bytes + read_le(defaults + c.offset, c.length_bytes);
  if (c.kind == ColumnKind::Blob)
    memset(record + c.offset, 0, c.length_bytes + sizeof(void *));
  else
    memcpy(record + c.offset, defaults + c.offset, size);
}

void set_null(const Column &c, uint8_t *record, const uint8_t *defaults) {
  record[c.null_offset] |= c.null_mask;
  copy_default(c, defaults, record);
}

void set_not_null(const Column &c, uint8_t *record) {
  if (c.null_mask) record[c.null_offset] &= static_cast<uint8_t>(~c.null_mask);
}

/** Copies bytes, without a function call for the most frequent lengths. */
inline void copy(uint8_t *to, const uint8_t *from, size_t size) {
  if (size == 4)
    memcpy(to, from, 4);
  else if (size == 8)
    memcpy(to, from, 8);
  else if (size == 1)
    *to = *from;
  else if (size != 0)
    memcpy(to, from, size);
}

/** Copies the bytes of a column from a row into a record. Returns false if there are more than the column can have. */
[[gnu::always_inline]] inline bool place(const Column &c, const uint8_t *data, size_t size, uint8_t *record) {
  uint8_t *at = record + c.offset;
  switch (c.kind) {
    case ColumnKind::Fixed:
      copy(at, data, size);
      return true;
    case ColumnKind::Char:
      if (size > c.length) return false;
      memcpy(at, data, size);
      if (size < c.length) fill(at + size, c.length - size, c.pad);
      return true;
    case ColumnKind::Var:
      if (size > c.length) return false;
      write_le(at, size, c.length_bytes);
      memcpy(at + c.length_bytes, data, size);
      return true;
    case ColumnKind::Blob:
      if (c.length_bytes < 8 && size >> (8 * c.length_bytes) != 0) return false;
      write_le(at, size, c.length_bytes);
      memcpy(at + c.length_bytes, &data, sizeof data);
      return true;
  }
  return false;
}

/** See take_column. */
inline bool take(const Column &c, Slice &from, uint8_t *record) {
  Slice data;
  if (c.kind != ColumnKind::Fixed) return take_sized(from, &data) && place(c, data.data, data.size, record);
  if (from.size < c.length) return false;
  copy(record + c.offset, from.data, c.length);
  from = from.from(c.length);
  return true;
}

/** Whether take_column would take all of `value`. */
bool fits(const Column &c, Slice value) {
  Slice data;
  if (c.kind == ColumnKind::Fixed) return value.size == c.length;
  if (!take_sized(value, &data) || value.size != 0) return false;
  return c.kind == ColumnKind::Blob ? c.length_bytes >= 8 || data.size >> (8 * c.length_bytes) == 0 : data.size <= c.length;
}

}  // namespace

StoredColumn stored_form(const Column &c, uint32_t id) {
  StoredColumn s;
  s.id = id;
  s.nullable = c.null_mask != 0;
  s.sized = c.kind != ColumnKind::Fixed;
  s.length = s.sized ? 0 : c.length;
  return s;
}

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

bool take_column(const Column &c, Slice &from, uint8_t *record) { return take(c, from, record); }

bool RowFormat::set_layouts(const std::vector<RowLayout> &layouts, const std::vector<AbsentValue> &absent) {
  if (layouts.empty() || layouts.back().size() != columns.size()) return false;
  std::unordered_map<uint32_t, size_t> places;
  for (size_t i = 0; i < columns.size(); i++) {
    const StoredColumn &s = layouts.back()[i], form = stored_form(columns[i], s.id);
    if (s.nullable != form.nullable || s.sized != form.sized || s.length != form.length) return false;
    if (!places.emplace(s.id, i).second) return false;
  }
  absent_.assign(columns.size(), AbsentValue());
  std::vector<bool> may_be_absent(columns.size(), false);
  for (const AbsentValue &a : absent) {
    const auto place = places.find(a.id);
    if (place == places.end()) return false;
    const Column &c = columns[place->second];
    if (a.null ? !c.null_mask : !fits(c, a.value)) return false;
    absent_[place->second] = a;
    may_be_absent[place->second] = true;
  }
  layouts_.clear();
  for (const RowLayout &from : layouts) {
    Layout layout;
    std::vector<bool> has(columns.size(), false);
    for (const StoredColumn &s : from) {
      const auto place = places.find(s.id);
      const int column = place == places.end() ? -1 : static_cast<int>(place->second);
      if (column >= 0) {
        const StoredColumn &now = layouts.back()[place->second];
        // A column may become nullable, but not the reverse.
        if (has[place->second] || s.sized != now.sized || s.length != now.length || (s.nullable && !now.nullable)) return false;
        has[place->second] = true;
      }
      layout.slots.push_back({s, column, column < 0 ? 0 : columns[static_cast<size_t>(column)].number});
      layout.nullable += s.nullable;
    }
    for (size_t i = 0; i < columns.size(); i++) {
      if (has[i]) continue;
      if (!may_be_absent[i]) return false;
      layout.absent.push_back(i);
    }
    layouts_.push_back(std::move(layout));
  }
  newest_ = layouts_.size() <= 128 ? static_cast<int>(layouts_.size()) - 1 : -1;
  return true;
}

/** What is in front of the columns. */
void RowFormat::encode_head(const uint8_t *record, std::string *row) const {
  row->push_back(VERSION);
  append_varint(*row, layouts_.size() - 1);
  const size_t nulls = row->size();
  size_t bit = 0;
  for (const Column &c : columns) {
    if (!c.null_mask) continue;
    if (bit % 8 == 0) row->push_back(0);
    if (c.is_null(record)) (*row)[nulls + bit / 8] = static_cast<char>((*row)[nulls + bit / 8] | 1 << bit % 8);
    bit++;
  }
}

void RowFormat::encode(const uint8_t *record, std::string *row) const {
  encode_head(record, row);
  for (const Column &c : columns)
    if (!c.null_mask || !c.is_null(record)) append_column(c, record, row);
}

bool RowFormat::encode(const uint8_t *record, RowSink &sink) const {
  std::string between;
  encode_head(record, &between);
  for (const Column &c : columns) {
    if (c.null_mask && c.is_null(record)) continue;
    const Slice blob = c.kind == ColumnKind::Blob ? c.data(record) : Slice();
    if (blob.size < LONG_BLOB) {
      append_column(c, record, &between);
      continue;
    }
    append_varint(between, blob.size);
    if (!sink.take(between) || !sink.take(blob)) return false;
    between.clear();
  }
  return between.empty() || sink.take(between);
}

uint64_t RowFormat::blob_bytes(const uint8_t *record) const {
  uint64_t bytes = 0;
  for (const Column &c : columns)
    if (c.kind == ColumnKind::Blob && (!c.null_mask || !c.is_null(record))) bytes += c.data(record).size;
  return bytes;
}

bool RowFormat::same(const uint8_t *a, const uint8_t *b) const {
  for (const Column &c : columns)
    if (!c.same(a, b)) return false;
  return true;
}

/** The rest of a row that is being decoded in pieces. */
class RowFormat::Input {
 public:
  explicit Input(RowPieces &pieces) : pieces_(pieces) {}

  /** The rest of the current piece. */
  Slice here;

  /** Ensures that `here` has `size` bytes, or all that are left. Returns false if they cannot be read. */
  bool ahead(size_t size) {
    if (here.size >= size) return true;
    const uint64_t at = read_ - here.size;
    if (!pieces_.read(at, std::max(size, pieces_.least()), &here)) return false;
    read_ = at + here.size;
    return true;
  }

  /** Ensures that `here` has the entire column. */
  bool ahead(const StoredColumn &c) {
    if (!c.sized) return ahead(c.length);
    uint64_t size;
    if (!ahead(LONGEST_VARINT)) return false;
    Slice data = here;
    return take_varint(data, &size) && size <= MOST_WHOLE && ahead(here.size - data.size + size);
  }

  /** Skips the bytes of a column that the statement does not read. */
  bool pass_over(const StoredColumn &c) {
    uint64_t size = c.length;
    if (c.sized && (!ahead(LONGEST_VARINT) || !take_varint(here, &size))) return false;
    if (size <= here.size) {
      here = here.from(size);
      return true;
    }
    if (size - here.size > pieces_.size() - read_) return false;
    read_ += size - here.size;
    here = Slice();
    return true;
  }

  bool at_end() const { return here.size == 0 && read_ == pieces_.size(); }

 private:
  /** Maximum length of a column that is not a blob. */
  static constexpr size_t MOST_WHOLE = 1 << 17;

  RowPieces &pieces_;
  /** Offset in the row of the end of `here`. */
  uint64_t read_ = 0;
};

bool RowFormat::decode(Slice row, uint8_t *record, const uint8_t *defaults, Wanted wanted) const {
  const Layout *layout;
  if (row.size >= 2 && row.data[0] == VERSION && row.data[1] == newest_) {  // the usual case
    layout = &layouts_.back();
    row = row.from(2);
  } else {
    layout = take_layout(row);
  }
  if (!layout || !read_slots(*layout, row, record, defaults, wanted)) return false;
  if (!layout->absent.empty()) fill_absent(*layout, record, defaults, wanted);
  return true;
}

bool RowFormat::decode(RowPieces &pieces, uint8_t *record, const uint8_t *defaults, Wanted wanted) const {
  Input input(pieces);
  if (!input.ahead(1 + LONGEST_VARINT)) return false;
  const Layout *layout = take_layout(input.here);
  if (!layout || !read_slots(*layout, input, record, defaults, wanted)) return false;
  fill_absent(*layout, record, defaults, wanted);
  return true;
}

/** Takes what is in front of the NULL bits. Returns null if the format is unknown. */
const RowFormat::Layout *RowFormat::take_layout(Slice &row) const {
  uint64_t number;
  if (row.size == 0 || (row.data[0] != VERSION && row.data[0] != COUNTED)) return nullptr;
  const bool counted = row.data[0] == COUNTED;
  row = row.from(1);
  if (!take_varint(row, &number)) return nullptr;
  if (counted) {
    if (number != layouts_[0].slots.size()) return nullptr;
    number = 0;
  }
  return number < layouts_.size() ? &layouts_[number] : nullptr;
}

/** Reads a row that is entirely in memory: the usual case, and most of the work of a scan here. */
bool RowFormat::read_slots(const Layout &layout, Slice row, uint8_t *record, const uint8_t *defaults, Wanted wanted) const {
  const size_t null_bytes = (layout.nullable + 7) / 8;
  if (row.size < null_bytes) return false;
  // These are locals because, as far as the compiler knows, a byte written to the record might change what this object points to.
  const Column *const all = columns.data();
  const uint8_t *const nulls = row.data, *const end = row.data + row.size;
  const uint8_t *at = nulls + null_bytes;
  size_t bit = 0;
  for (const Slot &slot : layout.slots) {
    const bool reads = slot.column >= 0 && wanted.has(slot.number);
    if (slot.stored.nullable) {
      const bool is_null = nulls[bit / 8] >> bit % 8 & 1;
      bit++;
      if (is_null) {
        if (reads) set_null(all[slot.column], record, defaults);
        continue;
      }
    }
    uint64_t size = slot.stored.length;
    if (slot.stored.sized) {
      if (at != end && *at < 128) {
        size = *at++;
      } else {
        Slice rest(at, static_cast<size_t>(end - at));
        if (!take_varint(rest, &size)) return false;
        at = rest.data;
      }
    }
    if (size > static_cast<size_t>(end - at)) return false;
    if (reads) {
      const Column &c = all[slot.column];
      set_not_null(c, record);
      if (!place(c, at, size, record)) return false;
    }
    at += size;
  }
  return at == end;
}

bool RowFormat::read_slots(const Layout &layout, Input &row, uint8_t *record, const uint8_t *defaults, Wanted wanted) const {
  const size_t null_bytes = (layout.nullable + 7) / 8;
  if (!row.ahead(null_bytes) || row.here.size < null_bytes) return false;
  const std::string nulls = row.here.first(null_bytes).str();  // a piece is invalid after the next read
  row.here = row.here.from(null_bytes);
  size_t bit = 0;
  for (const Slot &slot : layout.slots) {
    bool is_null = false;
    if (slot.stored.nullable) {
      is_null = static_cast<uint8_t>(nulls[bit / 8]) >> bit % 8 & 1;
      bit++;
    }
    if (slot.column < 0 || !wanted.has(slot.number)) {
      if (!is_null && !row.pass_over(slot.stored)) return false;
      continue;
    }
    const Column &c = columns[static_cast<size_t>(slot.column)];
    if (is_null) {
      set_null(c, record, defaults);
      continue;
    }
    set_not_null(c, record);
    if (!row.ahead(slot.stored) || !take_column(c, row.here, record)) return false;
  }
  return row.at_end();
}

void RowFormat::fill_absent(const Layout &layout, uint8_t *record, const uint8_t *defaults, Wanted wanted) const {
  for (size_t i : layout.absent) {
    const Column &c = columns[i];
    if (!wanted.has(c)) continue;
    const AbsentValue &a = absent_[i];
    if (a.null) {
      set_null(c, record, defaults);
      continue;
    }
    set_not_null(c, record);
    Slice value(a.value);
    take_column(c, value, record);
  }
}

}  // namespace kingtide
