/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "key_codec.h"

namespace kingtide {
namespace {

constexpr uint8_t LOWER_FOLLOWS = 1, TEXT_ENDS = 2, HIGHER_FOLLOWS = 3;

void append_bytes(std::string &out, Slice bytes) {
  for (size_t i = 0; i < bytes.size; i++) {
    out.push_back(static_cast<char>(bytes.data[i]));
    if (bytes.data[i] == 0) out.push_back('\xff');
  }
  out.append(2, '\0');
}

void append_text(std::string &out, Slice weights, Slice space) {
  const size_t unit = space.size;
  auto is_space = [&](size_t at) { return at + unit <= weights.size && weights.from(at).first(unit) == space; };
  while (weights.size >= unit && is_space(weights.size - unit)) weights.size -= unit;
  for (size_t at = 0; at < weights.size;) {
    if (!is_space(at)) {
      const size_t n = weights.size - at < unit ? weights.size - at : unit;
      append(out, weights.from(at).first(n));
      at += n;
      continue;
    }
    size_t run = 0;
    for (; is_space(at); at += unit) run++;
    append(out, space);
    const bool lower = weights.from(at).first(weights.size - at < unit ? weights.size - at : unit).compare(space) < 0;
    out.push_back(lower ? LOWER_FOLLOWS : HIGHER_FOLLOWS);
    append_be(out, lower ? run : ~run, 2);
  }
  append(out, space);
  out.push_back(TEXT_ENDS);
}

/** Reads bytes of a key, and inverts them if the part is descending. */
class Reader {
 public:
  Reader(Slice from, bool inverted) : from_(from), mask_(inverted ? 0xff : 0) {}
  bool has(size_t n) const { return from_.size - at_ >= n; }
  uint8_t next() { return from_.data[at_++] ^ mask_; }
  uint8_t peek(size_t ahead) const { return from_.data[at_ + ahead] ^ mask_; }
  void skip(size_t n) { at_ += n; }
  size_t at() const { return at_; }

 private:
  Slice from_;
  size_t at_ = 0;
  uint8_t mask_;
};

bool skip_bytes(Reader &r) {
  while (r.has(2)) {
    if (r.next() != 0) continue;
    const uint8_t second = r.next();
    if (second == 0) return true;
    if (second != 0xff) return false;
  }
  return false;
}

bool skip_text(Reader &r, Slice space) {
  for (;;) {
    if (!r.has(space.size + 1)) return false;
    bool is_space = true;
    for (size_t i = 0; i < space.size && is_space; i++) is_space = r.peek(i) == space.data[i];
    r.skip(space.size);
    if (!is_space) continue;
    switch (r.next()) {
      case TEXT_ENDS:
        return true;
      case LOWER_FOLLOWS:
      case HIGHER_FOLLOWS:
        if (!r.has(2)) return false;
        r.skip(2);
        break;
      default:
        return false;
    }
  }
}

}  // namespace

size_t KeyWriter::begin(const KeyPart &part) {
  const size_t from = out_.size();
  if (part.nullable) out_.push_back(1);
  return from;
}

void KeyWriter::end(const KeyPart &part, size_t from) {
  if (!part.descending) return;
  for (size_t i = from; i < out_.size(); i++) out_[i] = static_cast<char>(~out_[i]);
}

void KeyWriter::null(const KeyPart &part) {
  const size_t from = out_.size();
  out_.push_back(0);
  end(part, from);
}

void KeyWriter::integer(const KeyPart &part, const uint8_t *native) {
  const size_t from = begin(part);
  uint64_t v = read_le(native, part.length);
  if (!part.is_unsigned) v ^= uint64_t{1} << (8 * part.length - 1);
  append_be(out_, v, part.length);
  end(part, from);
}

void KeyWriter::value(const KeyPart &part, Slice bytes) {
  const size_t from = begin(part);
  if (part.kind == PartKind::Bytes)
    append_bytes(out_, bytes);
  else if (part.kind == PartKind::Text)
    append_text(out_, bytes, part.space);
  else
    append(out_, bytes);
  end(part, from);
}

void KeyWriter::levels(const KeyPart &part, const std::vector<std::string> &weights) {
  const size_t from = begin(part);
  for (size_t i = 0; i < part.spaces.size(); i++)
    if (part.spaces[i].empty())
      append_bytes(out_, weights[i]);
    else
      append_text(out_, weights[i], part.spaces[i]);
  end(part, from);
}

bool parse_part(const KeyPart &part, Slice key, PartValue *value) {
  Reader r(key, part.descending);
  value->is_null = false;
  if (part.nullable) {
    if (!r.has(1)) return false;
    const uint8_t mark = r.next();
    if (mark > 1) return false;
    value->is_null = mark == 0;
  }
  bool whole = true;
  if (!value->is_null) {
    switch (part.kind) {
      case PartKind::Integer:
      case PartKind::Image:
        whole = r.has(part.length);
        if (whole) r.skip(part.length);
        break;
      case PartKind::Bytes:
        whole = skip_bytes(r);
        break;
      case PartKind::Text:
        whole = skip_text(r, part.space);
        break;
      case PartKind::Levels:
        for (size_t i = 0; i < part.spaces.size() && whole; i++)
          whole = part.spaces[i].empty() ? skip_bytes(r) : skip_text(r, part.spaces[i]);
        break;
    }
  }
  value->size = r.at();
  return whole;
}

void read_integer(const KeyPart &part, Slice key, uint8_t *native) {
  uint64_t v = read_be(key.data + (part.nullable ? 1 : 0), part.length);
  if (part.descending) v = ~v;
  if (!part.is_unsigned) v ^= uint64_t{1} << (8 * part.length - 1);
  write_le(native, v, part.length);
}

std::string after_prefix(Slice prefix) {
  std::string s = prefix.str();
  while (!s.empty() && static_cast<uint8_t>(s.back()) == 0xff) s.pop_back();
  if (!s.empty()) s.back() = static_cast<char>(s.back() + 1);
  return s;
}

}  // namespace kingtide
