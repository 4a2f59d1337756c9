/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/*
  What the codecs promise, tried on random values without a server: keys sort as their values do, parts are taken apart
  again, rows come back as they were, and hostile bytes are refused without a read out of bounds.

  Usage: codec_test [seed]. It prints its seed, which replays a failure.
*/
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <stdexcept>

#include "../codec/key_codec.h"
#include "../codec/row_codec.h"
#include "../codec/table_record.h"
#include "../codec/table_statistics.h"
#include "../src/guard.h"

using namespace kingtide;

namespace {

uint64_t seed;
std::mt19937_64 rng;

void fail(const char *what, int line) {
  fprintf(stderr, "codec_test:%d: %s (seed %llu)\n", line, what, static_cast<unsigned long long>(seed));
  exit(1);
}

#define CHECK(condition) \
  if (!(condition)) fail(#condition, __LINE__)

size_t below(size_t n) { return rng() % n; }

int sign(int64_t v) { return v < 0 ? -1 : v > 0; }

/** Random text over few units, spaces among them, so that runs and equal beginnings are common. */
std::string random_text(size_t unit) {
  static const uint8_t alphabet[] = {0, 1, 2, 3, 0x1f, 0x20, 0x20, 0x20, 0x20, 0x21, 0xfe, 0xff};
  std::string s;
  for (size_t n = below(9); n-- > 0;) {
    const uint8_t u = alphabet[below(sizeof alphabet)];
    for (size_t i = 0; i < unit; i++) s.push_back(static_cast<char>(i == 0 ? u : u == 0x20 ? 0x20 : alphabet[below(12)]));
  }
  return s;
}

/** The order that PAD SPACE means, spelled out. */
int compare_padded(std::string a, std::string b, const std::string &space) {
  while (a.size() < b.size()) a += space;
  while (b.size() < a.size()) b += space;
  return Slice(a).compare(b);
}

std::string encode(const KeyPart &part, Slice value) {
  std::string out;
  KeyWriter(out).value(part, value);
  return out;
}

void check_parse(const KeyPart &part, const std::string &key, bool is_null) {
  PartValue v;
  const std::string more = key + random_text(1);
  CHECK(parse_part(part, Slice(more), &v));
  CHECK(v.size == key.size() && v.is_null == is_null);
  for (size_t cut = 0; cut < key.size(); cut++) CHECK(!parse_part(part, Slice(key).first(cut), &v));
}

void strings_sort(int rounds) {
  for (int i = 0; i < rounds; i++) {
    KeyPart part;
    part.kind = below(2) ? PartKind::Text : PartKind::Bytes;
    part.nullable = below(2);
    part.descending = below(2);
    part.space = std::string(part.kind == PartKind::Text ? 1 + below(3) : 1, ' ');
    const std::string a = random_text(part.space.size()), b = random_text(part.space.size());
    int expected = part.kind == PartKind::Text ? compare_padded(a, b, part.space) : Slice(a).compare(b);
    if (part.descending) expected = -expected;
    const std::string ka = encode(part, a), kb = encode(part, b);
    CHECK(sign(Slice(ka).compare(kb)) == sign(expected));
    CHECK(ka == kb || (!Slice(ka).starts_with(kb) && !Slice(kb).starts_with(ka)));
    check_parse(part, ka, false);
  }
}

/** Level by level, and each as if it were alone. */
void levels_sort(int rounds) {
  for (int i = 0; i < rounds; i++) {
    KeyPart part;
    part.kind = PartKind::Levels;
    part.nullable = below(2);
    part.descending = below(2);
    std::vector<std::string> a, b;
    int expected = 0;
    for (size_t n = 1 + below(3); n-- > 0;) {
      const std::string space = std::string(below(3), ' ');
      const size_t unit = space.empty() ? 1 : space.size();
      part.spaces.push_back(space);
      a.push_back(random_text(unit));
      b.push_back(below(3) ? a.back() : random_text(unit));
      if (expected != 0) continue;
      expected = space.empty() ? Slice(a.back()).compare(b.back()) : compare_padded(a.back(), b.back(), space);
    }
    if (part.descending) expected = -expected;
    std::string ka, kb;
    KeyWriter(ka).levels(part, a);
    KeyWriter(kb).levels(part, b);
    CHECK(sign(Slice(ka).compare(kb)) == sign(expected));
    CHECK(ka == kb || (!Slice(ka).starts_with(kb) && !Slice(kb).starts_with(ka)));
    check_parse(part, ka, false);
  }
}

int64_t random_integer(unsigned bytes, bool is_unsigned) {
  uint64_t v = rng() >> below(64);
  if (below(2)) v = ~v;
  v <<= 64 - 8 * bytes;
  return is_unsigned ? static_cast<int64_t>(v >> (64 - 8 * bytes)) : static_cast<int64_t>(v) >> (64 - 8 * bytes);
}

void integers_sort_and_come_back(int rounds) {
  for (int i = 0; i < rounds; i++) {
    KeyPart part;
    part.kind = PartKind::Integer;
    part.length = 1 + below(8);
    part.is_unsigned = below(2);
    part.nullable = below(2);
    part.descending = below(2);
    const int64_t a = random_integer(part.length, part.is_unsigned), b = random_integer(part.length, part.is_unsigned);
    uint8_t na[8], nb[8], back[8];
    write_le(na, static_cast<uint64_t>(a), part.length);
    write_le(nb, static_cast<uint64_t>(b), part.length);
    std::string ka, kb;
    KeyWriter(ka).integer(part, na);
    KeyWriter(kb).integer(part, nb);
    int expected = part.is_unsigned ? (static_cast<uint64_t>(a) > static_cast<uint64_t>(b)) -
                                          (static_cast<uint64_t>(a) < static_cast<uint64_t>(b))
                                    : (a > b) - (a < b);
    if (part.descending) expected = -expected;
    CHECK(sign(Slice(ka).compare(kb)) == expected);
    read_integer(part, Slice(ka), back);
    CHECK(memcmp(na, back, part.length) == 0);
    check_parse(part, ka, false);
    if (!part.nullable) continue;
    std::string null;
    KeyWriter(null).null(part);
    CHECK(sign(Slice(null).compare(ka)) == (part.descending ? 1 : -1));
    check_parse(part, null, true);
  }
}

void prefixes_end(int rounds) {
  for (int i = 0; i < rounds; i++) {
    const std::string p = random_text(1), s = p + random_text(1), end = after_prefix(Slice(p));
    CHECK(end.empty() ? p.find_first_not_of('\xff') == std::string::npos : Slice(s).compare(end) < 0);
    const std::string other = random_text(1);
    if (!end.empty() && Slice(other).compare(p) > 0 && !Slice(other).starts_with(p)) CHECK(Slice(end).compare(other) <= 0);
  }
}

/** A record of random columns, as the server would lay it out, and data for its blobs. */
struct Table {
  RowFormat format;
  size_t record_bytes = 0;

  explicit Table(size_t columns) {
    std::vector<Column> kinds;
    for (size_t i = 0; i < columns; i++) {
      Column c;
      c.kind = static_cast<ColumnKind>(below(4));
      c.length = c.kind == ColumnKind::Char ? 2 * (1 + below(20)) : 1 + below(12);
      c.length_bytes = c.kind == ColumnKind::Var ? 1 + below(2) : 1 + below(4);
      c.null_mask = static_cast<uint8_t>(below(2));
      if (c.kind == ColumnKind::Char) c.pad = below(2) ? std::string(" ") : std::string("\0 ", 2);
      kinds.push_back(c);
    }
    lay_out(kinds);
  }

  explicit Table(const std::vector<Column> &kinds) { lay_out(kinds); }

  void lay_out(const std::vector<Column> &kinds) {
    RowLayout layout;
    record_bytes = (kinds.size() + 7) / 8;
    for (Column c : kinds) {
      const size_t i = layout.size();
      c.number = static_cast<uint32_t>(5 * i);
      c.offset = record_bytes;
      c.null_offset = i / 8;
      c.null_mask = c.null_mask ? 1 << i % 8 : 0;
      record_bytes += c.kind == ColumnKind::Blob  ? c.length_bytes + sizeof(void *)
                      : c.kind == ColumnKind::Var ? c.length_bytes + c.length
                                                  : c.length;
      format.columns.push_back(c);
      layout.push_back(stored_form(c, static_cast<uint32_t>(i)));
    }
    CHECK(format.set_layouts({layout}, {}));
  }

  std::string random_record(std::string &blobs) const {
    std::string record(record_bytes, '\0');
    uint8_t *r = reinterpret_cast<uint8_t *>(&record[0]);
    for (const Column &c : format.columns) {
      if (c.null_mask && below(3) == 0) r[c.null_offset] |= c.null_mask;
      const size_t n = below(c.length + 1);
      const size_t head = c.kind == ColumnKind::Var ? c.length_bytes : 0;
      if (c.kind == ColumnKind::Blob) {
        const uint8_t *at = reinterpret_cast<const uint8_t *>(blobs.data()) + below(blobs.size() / 2);
        write_le(r + c.offset, n, c.length_bytes);
        memcpy(r + c.offset + c.length_bytes, &at, sizeof at);
        continue;
      }
      if (head) write_le(r + c.offset, n, c.length_bytes);
      for (size_t i = 0; i < c.length; i++) r[c.offset + head + i] = i < n ? "ab \0"[below(4)] : ' ';
    }
    return record;
  }
};

/** Of a row only those columns come that are wanted, and the others' bytes, by which `b` is filled, stay. */
void wanted_columns_come(const Table &t, const std::string &row, const uint8_t *r) {
  unsigned long long bits[2] = {rng(), rng()};
  const Wanted wanted(bits);
  std::string back(t.record_bytes, '\x55'), defaults(t.record_bytes, '\0');
  uint8_t *b = reinterpret_cast<uint8_t *>(&back[0]);
  CHECK(t.format.decode(Slice(row), b, reinterpret_cast<const uint8_t *>(defaults.data()), wanted));
  for (const Column &c : t.format.columns) {
    CHECK(wanted.has(c) == ((bits[c.number / 64] >> (c.number % 64)) % 2 == 1));
    const bool null = c.null_mask && c.is_null(r);
    if (!wanted.has(c)) {
      CHECK(b[c.offset] == 0x55 && (!c.null_mask || c.is_null(b) == ((0x55 & c.null_mask) != 0)));
      continue;
    }
    CHECK(null == (c.null_mask && c.is_null(b)));
    CHECK(null || c.data(r) == c.data(b));
  }
}

/** A row of which few bytes are read at a time, and whose pieces are gone when others are read. */
class Pieces : public RowPieces {
 public:
  explicit Pieces(const std::string &row) : row_(row), least_(1 + below(20)) {}
  uint64_t size() const override { return row_.size(); }
  size_t least() const override { return least_; }
  bool read(uint64_t offset, size_t size, Slice *piece) override {
    CHECK(offset <= row_.size());
    std::string now = row_.substr(offset, size);
    for (char &c : last_) c = '\x55';
    last_.swap(now);
    read_ += last_.size();
    *piece = Slice(last_);
    return fails_ == 0 || --fails_ != 0;
  }
  size_t read_ = 0, fails_ = 0;

 private:
  const std::string &row_;
  const size_t least_;
  std::string last_;
};

/** The same of a row that is read in pieces. */
void wanted_columns_come_in_pieces(const Table &t, const std::string &row, const uint8_t *r) {
  unsigned long long bits[2] = {rng(), rng()};
  for (const Column &c : t.format.columns)
    if (c.kind == ColumnKind::Blob) bits[c.number / 64] &= ~(1ULL << c.number % 64);
  const Wanted wanted(bits);
  std::string back(t.record_bytes, '\x55'), defaults(t.record_bytes, '\0');
  uint8_t *b = reinterpret_cast<uint8_t *>(&back[0]);
  const uint8_t *none = reinterpret_cast<const uint8_t *>(defaults.data());
  Pieces pieces(row);
  CHECK(t.format.decode(pieces, b, none, wanted));
  for (const Column &c : t.format.columns) {
    if (!wanted.has(c)) {
      CHECK(b[c.offset] == 0x55 && (!c.null_mask || c.is_null(b) == ((0x55 & c.null_mask) != 0)));
      continue;
    }
    const bool null = c.null_mask && c.is_null(r);
    CHECK(null == (c.null_mask && c.is_null(b)));
    CHECK(null || c.data(r) == c.data(b));
  }
  for (size_t cut = 0; cut < row.size(); cut++) {
    const std::string part = row.substr(0, cut);
    Pieces some(part);
    CHECK(!t.format.decode(some, b, none, wanted));
  }
  std::string bad = row;
  bad[below(bad.size())] ^= static_cast<char>(1 << below(8));
  Pieces wrong(bad);
  t.format.decode(wrong, b, none, wanted);
  Pieces failing(row);
  failing.fails_ = 1;
  CHECK(!t.format.decode(failing, b, none, wanted));
}

struct Joined final : RowSink {
  std::string row;
  size_t pieces = 0, at_most = SIZE_MAX;
  bool take(Slice piece) override {
    row.append(reinterpret_cast<const char *>(piece.data), piece.size);
    return ++pieces < at_most;
  }
};

/** A record's row, written in pieces. */
std::string in_pieces(const RowFormat &format, const uint8_t *record) {
  Joined joined;
  CHECK(format.encode(record, joined));
  return joined.row;
}

/** Long blobs are given as they are, and a sink that takes no more ends it. */
void long_blobs_are_not_copied(const RowFormat &format, const uint8_t *record, const std::string &row, size_t blobs) {
  CHECK(in_pieces(format, record) == row);
  Joined joined;
  CHECK(format.encode(record, joined));
  CHECK(joined.pieces == 2 * blobs + 1);
  CHECK(format.blob_bytes(record) == blobs * 100000);
  Joined full;
  full.at_most = 2;
  CHECK(!format.encode(record, full));
  CHECK(full.pieces == 2);
}

/** Columns that are not wanted are not read: neither the long blob in the middle nor the one at the end. */
void long_columns_are_not_read() {
  RowFormat format;
  std::vector<StoredColumn> layout;
  uint32_t offset = 1;
  for (uint32_t i = 0; i < 5; i++) {
    Column c;
    c.kind = i % 2 ? ColumnKind::Blob : ColumnKind::Fixed;
    c.number = i;
    c.offset = offset;
    c.length_bytes = i % 2 ? 4 : 0;
    c.length = i % 2 ? 12 : 4;
    offset += c.length;
    format.columns.push_back(c);
    layout.push_back(stored_form(c, i));
  }
  CHECK(format.set_layouts({layout}, {}));
  const std::string blob(100000, 'b'), defaults(offset, '\0');
  std::string record(offset, '\0'), row, back(offset, '\0');
  for (const Column &c : format.columns) {
    uint8_t *at = reinterpret_cast<uint8_t *>(&record[c.offset]);
    const uint8_t *data = reinterpret_cast<const uint8_t *>(blob.data());
    if (c.kind == ColumnKind::Fixed) {
      memcpy(at, "abcd", 4);
      continue;
    }
    write_le(at, blob.size(), 4);
    memcpy(at + 4, &data, sizeof data);
  }
  format.encode(reinterpret_cast<const uint8_t *>(record.data()), &row);
  long_blobs_are_not_copied(format, reinterpret_cast<const uint8_t *>(record.data()), row, 2);
  const unsigned long long bits[1] = {0x15};
  Pieces pieces(row);
  CHECK(format.decode(pieces, reinterpret_cast<uint8_t *>(&back[0]), reinterpret_cast<const uint8_t *>(defaults.data()),
                      Wanted(bits)));
  for (const Column &c : format.columns)
    if (c.kind == ColumnKind::Fixed) CHECK(back.compare(c.offset, 4, "abcd") == 0);
  CHECK(pieces.read_ < 300);
}

void rows_come_back(int rounds) {
  std::string blobs;
  for (int i = 0; i < 64; i++) blobs.push_back(static_cast<char>(rng()));
  for (int i = 0; i < rounds; i++) {
    const Table t(1 + below(20));
    const std::string record = t.random_record(blobs);
    const uint8_t *r = reinterpret_cast<const uint8_t *>(record.data());
    std::string row;
    t.format.encode(r, &row);
    CHECK(in_pieces(t.format, r) == row);
    std::string back(t.record_bytes, '\x55');
    uint8_t *b = reinterpret_cast<uint8_t *>(&back[0]);
    const std::string defaults(t.record_bytes, '\0');
    const uint8_t *none = reinterpret_cast<const uint8_t *>(defaults.data());
    CHECK(t.format.decode(Slice(row), b, none));
    for (const Column &c : t.format.columns) {
      const bool null = c.null_mask && c.is_null(r);
      CHECK(null == (c.null_mask && c.is_null(b)));
      CHECK(null || c.data(r) == c.data(b));
    }
    wanted_columns_come(t, row, r);
    wanted_columns_come_in_pieces(t, row, r);
    std::string changed = record;
    const Column &one = t.format.columns[below(t.format.columns.size())];
    changed[one.offset] = static_cast<char>(changed[one.offset] ^ below(2));
    const uint8_t *ch = reinterpret_cast<const uint8_t *>(changed.data());
    if (one.kind == ColumnKind::Fixed) {
      std::string other;
      t.format.encode(ch, &other);
      CHECK(t.format.same(r, ch) == (row == other));
    }
    CHECK(t.format.same(r, r));
    for (size_t cut = 0; cut < row.size(); cut++) CHECK(!t.format.decode(Slice(row).first(cut), b, none));
    std::string bad = row;
    bad[below(bad.size())] ^= static_cast<char>(1 << below(8));
    t.format.decode(Slice(bad), b, none);  // whatever it says, it stays within its bounds: run under a sanitizer
    // Version 1 differs in its first two bytes.
    std::string counted = row;
    counted[0] = 1;
    counted[1] = static_cast<char>(t.format.columns.size());
    CHECK(t.format.decode(Slice(counted), b, none));
    counted[1]++;
    CHECK(!t.format.decode(Slice(counted), b, none));
  }
}

/** What a row has, by the numbers of columns; those that are NULL have no value. */
using Values = std::map<uint32_t, std::pair<bool, std::string>>;

/** A table that is altered while it has rows, and what they should read as. */
struct AlteredTable {
  struct Row {
    std::string stored;
    Values values;
  };
  TableRecord record;
  Table now{0};
  std::vector<Row> rows;
  std::string blobs;

  AlteredTable() {
    for (int i = 0; i < 64; i++) blobs.push_back(static_cast<char>(rng()));
    now = Table(1 + below(6));
    RowLayout layout;
    for (const Column &c : now.format.columns) layout.push_back(stored_form(c, record.next_column++));
    record.primary = 1;
    record.layouts = {layout};
    CHECK(now.format.set_layouts(record.layouts, record.absent));
  }

  Values values_of(const std::string &bytes) const {
    const uint8_t *r = reinterpret_cast<const uint8_t *>(bytes.data());
    Values values;
    for (size_t i = 0; i < now.format.columns.size(); i++) {
      const Column &c = now.format.columns[i];
      const bool null = c.null_mask && c.is_null(r);
      std::string data;
      if (!null) append_column(c, r, &data);
      values[record.layouts.back()[i].id] = {null, data};
    }
    return values;
  }

  void insert() {
    const std::string bytes = now.random_record(blobs);
    Row row;
    now.format.encode(reinterpret_cast<const uint8_t *>(bytes.data()), &row.stored);
    row.values = values_of(bytes);
    rows.push_back(row);
  }

  /** Adds, drops, moves or relaxes a column. */
  void alter() {
    std::vector<Column> columns = now.format.columns;
    RowLayout layout = record.layouts.back();
    const size_t at = below(columns.size());
    switch (below(4)) {
      case 0: {
        const Table more(1);
        const std::string value = more.random_record(blobs);
        const uint8_t *r = reinterpret_cast<const uint8_t *>(value.data());
        const Column &c = more.format.columns[0];
        AbsentValue absent;
        absent.id = record.next_column++;
        absent.null = c.null_mask && c.is_null(r);
        if (!absent.null) append_column(c, r, &absent.value);
        columns.insert(columns.begin() + static_cast<long>(at), c);
        layout.insert(layout.begin() + static_cast<long>(at), stored_form(c, absent.id));
        record.absent.push_back(absent);
        for (Row &row : rows) row.values[absent.id] = {absent.null, absent.value};
        break;
      }
      case 1: {
        if (columns.size() == 1) return;
        const uint32_t id = layout[at].id;
        for (Row &row : rows) row.values.erase(id);
        for (size_t i = record.absent.size(); i-- > 0;)
          if (record.absent[i].id == id) record.absent.erase(record.absent.begin() + static_cast<long>(i));
        columns.erase(columns.begin() + static_cast<long>(at));
        layout.erase(layout.begin() + static_cast<long>(at));
        break;
      }
      case 2: {
        const size_t to = below(columns.size());
        std::swap(columns[at], columns[to]);
        std::swap(layout[at], layout[to]);
        break;
      }
      default:
        columns[at].null_mask = 1;
        layout[at].nullable = true;
    }
    now = Table(columns);
    record.layouts.push_back(layout);
    std::string why;
    TableRecord back;
    CHECK(decode_table_record(Slice(encode_table_record(record)), &back, &why));
    CHECK(now.format.set_layouts(back.layouts, back.absent));
    CHECK(back.next_column == record.next_column);
  }

  void check() {
    const std::string defaults(now.record_bytes, '\0');
    const uint8_t *none = reinterpret_cast<const uint8_t *>(defaults.data());
    for (const Row &row : rows) {
      std::string bytes(now.record_bytes, '\x55');
      uint8_t *b = reinterpret_cast<uint8_t *>(&bytes[0]);
      CHECK(now.format.decode(Slice(row.stored), b, none));
      CHECK(values_of(bytes) == row.values);
      for (size_t cut = 0; cut < row.stored.size(); cut++) CHECK(!now.format.decode(Slice(row.stored).first(cut), b, none));
      std::string bad = row.stored;
      bad[below(bad.size())] ^= static_cast<char>(1 << below(8));
      now.format.decode(Slice(bad), b, none);
    }
  }
};

void rows_outlive_alterations(int rounds) {
  for (int i = 0; i < rounds; i++) {
    AlteredTable t;
    for (size_t n = below(10); n-- > 0;) {
      for (size_t rows = below(3); rows-- > 0;) t.insert();
      t.alter();
    }
    t.insert();
    t.check();
    // What is said of columns that cannot be is refused, or harmless.
    TableRecord bad = t.record;
    std::string why, bytes = encode_table_record(bad);
    bytes[below(bytes.size())] ^= static_cast<char>(1 << below(8));
    if (!decode_table_record(Slice(bytes), &bad, &why)) continue;
    Table hostile(t.now.format.columns);
    if (!hostile.format.set_layouts(bad.layouts, bad.absent)) continue;
    std::string record(hostile.record_bytes, '\0');
    const std::string defaults = record;
    for (const auto &row : t.rows)
      hostile.format.decode(Slice(row.stored), reinterpret_cast<uint8_t *>(&record[0]),
                            reinterpret_cast<const uint8_t *>(defaults.data()));
  }
}

void table_records_come_back(int rounds) {
  std::string why;
  TableRecord back;
  for (int i = 0; i < rounds; i++) {
    TableRecord r;
    r.primary = 1 + static_cast<uint32_t>(rng() >> (32 + below(31)));
    for (size_t n = below(6); n-- > 0;) r.keys.push_back(static_cast<uint32_t>(rng() >> (32 + below(32))));
    r.key_form = static_cast<uint32_t>(below(KEY_FORM_NEWEST + 1));
    const std::string bytes = encode_table_record(r);
    CHECK(decode_table_record(Slice(bytes), &back, &why) && back.primary == r.primary && back.keys == r.keys);
    CHECK(back.key_form == r.key_form);
    for (size_t cut = 0; cut < bytes.size(); cut++) {
      // Without its last fields a record is one that has none of them.
      if (!decode_table_record(Slice(bytes).first(cut), &back, &why)) continue;
      CHECK(encode_table_record(back) != bytes);
    }
    std::string bad = bytes;
    bad[below(bad.size())] ^= static_cast<char>(1 << below(8));
    decode_table_record(Slice(bad), &back, &why);
    CHECK(back.keys.size() <= bad.size());
    std::string later = bytes;
    append_varint(later, 1000);
    later += std::string("\1x");
    CHECK(!decode_table_record(Slice(later), &back, &why) && why.find("property 1000") != std::string::npos);
    std::string twice = bytes + bytes.substr(1);
    CHECK(!decode_table_record(Slice(twice), &back, &why));
  }
  TableRecord later;
  later.primary = 1;
  later.key_form = KEY_FORM_NEWEST + 1;
  CHECK(!decode_table_record(Slice(encode_table_record(later)), &back, &why) && why.find("keys of form") != std::string::npos);
  const std::string first = {1, 7, 2, 7, 8};
  CHECK(decode_table_record(Slice(first), &back, &why) && back.primary == 7 && back.keys == std::vector<uint32_t>({7, 8}));
  CHECK(!decode_table_record(Slice(first + '\0'), &back, &why));
  CHECK(!decode_table_record(Slice(std::string(1, '\3')), &back, &why) && why.find("version 3") != std::string::npos);
  CHECK(!decode_table_record(Slice(), &back, &why));
}

void table_statistics_come_back(int rounds) {
  TableStatistics back;
  for (int i = 0; i < rounds; i++) {
    TableStatistics s;
    s.rows = rng() >> below(64);
    for (size_t n = below(4); n-- > 0;) {
      std::vector<uint64_t> &parts = s.rows_per_key[static_cast<uint32_t>(rng() >> (32 + below(32)))];
      for (size_t p = below(5); p-- > 0;) parts.push_back(rng() >> below(64));
    }
    const std::string bytes = encode_table_statistics(s);
    CHECK(decode_table_statistics(Slice(bytes), &back) && back.rows == s.rows && back.rows_per_key == s.rows_per_key);
    for (size_t cut = 0; cut < bytes.size(); cut++) CHECK(!decode_table_statistics(Slice(bytes).first(cut), &back));
    CHECK(!decode_table_statistics(Slice(bytes + std::string(1, static_cast<char>(rng()))), &back));
    std::string bad = bytes;
    bad[below(bad.size())] ^= static_cast<char>(1 << below(8));
    if (decode_table_statistics(Slice(bad), &back)) {
      size_t parts = 0;
      for (const auto &key : back.rows_per_key) parts += key.second.size();
      CHECK(back.rows_per_key.size() + parts <= bad.size());  // no memory but for what is there
    }
  }
}

std::string reported;

int throws_or(int what) {
  if (what == 1) throw std::bad_alloc();
  if (what == 2) throw std::length_error("too long");
  if (what == 3) throw 3;
  return what;
}

void throws(int *what) { *what = throws_or(*what); }

void no_exception_passes_the_border() {
  const int results[] = {0, 128, 122, 122, 4};
  const char *reports[] = {"", "out of memory", "too long", "an unknown exception", ""};
  for (int what = 0; what < 5; what++) {
    reported.clear();
    CHECK(guarded(128, 122, [&] { return throws_or(what); }) == results[what] && reported == reports[what]);
    CHECK((Guarded<throws_or, 128, 122>::call(what)) == results[what]);
    int in_place = what;
    Guarded<throws>::call(&in_place);
    CHECK(in_place == what && reported == reports[what]);
  }
}

}  // namespace

void kingtide::report_exception(const char *what) { reported = what; }

int main(int argc, char **argv) {
  seed = argc > 1 ? strtoull(argv[1], nullptr, 10) : 20261122;
  rng.seed(seed);
  const int rounds = getenv("KINGTIDE_FULL") ? 5000000 : 200000;
  strings_sort(rounds);
  levels_sort(rounds);
  integers_sort_and_come_back(rounds);
  prefixes_end(rounds);
  rows_come_back(rounds / 4);
  long_columns_are_not_read();
  rows_outlive_alterations(rounds / 20);
  table_records_come_back(rounds / 4);
  table_statistics_come_back(rounds / 4);
  no_exception_passes_the_border();
  printf("codec_test: %d rounds each of strings, integers and prefixes, %d rows, seed %llu\n", rounds, rounds / 4,
         static_cast<unsigned long long>(seed));
  return 0;
}
