/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "key_text.h"

namespace kingtide {
namespace {

/** Length of the index number at the beginning of each key, in bytes. */
constexpr size_t NUMBER = 4;
/** Maximum length of a part that is shown, in bytes. */
constexpr size_t SHOWN = 64;

std::string hexadecimal(Slice bytes) {
  static const char digits[] = "0123456789abcdef";
  std::string s = "0x";
  for (size_t i = 0; i < bytes.size && i < SHOWN; i++) {
    s += digits[bytes.data[i] >> 4];
    s += digits[bytes.data[i] & 15];
  }
  return bytes.size > SHOWN ? s + "..." : s;
}

std::string inverted_if(bool descending, Slice bytes) {
  std::string s = bytes.str();
  if (descending)
    for (char &c : s) c = static_cast<char>(~c);
  return s;
}

/** Decodes a part of kind Bytes, without the 0 0 at its end. Returns false if it has unprintable bytes. */
bool printable_bytes(Slice part, std::string *out) {
  for (size_t i = 0; i + 2 < part.size; i++) {
    if (part.data[i] < 0x20 || part.data[i] > 0x7e || part.data[i] == '\'') return false;
    out->push_back(static_cast<char>(part.data[i]));
  }
  return true;
}

/**
  Decodes a part of kind Text whose weights are the characters themselves, or their capitals. Returns false if they are not.
*/
bool printable_weights(const std::string &space, Slice part, std::string *out) {
  const size_t unit = space.size();
  if (unit == 0) return false;
  for (size_t i = 0; i + unit <= part.size; i += unit) {
    const uint64_t c = unit <= 8 ? read_be(part.data + i, static_cast<unsigned>(unit)) : UINT64_MAX;
    if (c < 0x20 || c > 0x7e || c == '\'') return false;
    if (!Slice(part.data + i, unit).starts_with(space)) {
      out->push_back(static_cast<char>(c));
      continue;
    }
    if (i + unit >= part.size) return false;
    const uint8_t what = part.data[i + unit];
    if (what == 2) return true;
    if (i + unit + 3 > part.size) return false;
    const uint64_t n = read_be(part.data + i + unit + 1, 2);
    const uint64_t spaces = what == 1 ? n : 0xffff - n;
    if (spaces > SHOWN) return false;
    out->append(spaces, ' ');
    i += 3;
  }
  return true;
}

/** Returns the part at the beginning of `at` in readable form. It has `size` bytes and is not NULL. */
std::string part_text(const KeyPart &part, Slice at, size_t size) {
  if (part.kind == PartKind::Integer) {
    uint8_t native[8] = {};
    read_integer(part, at, native);
    const uint64_t v = read_le(native, part.length);
    if (part.is_unsigned) return std::to_string(v);
    const unsigned shift = 64 - 8 * part.length;
    return std::to_string(static_cast<int64_t>(v << shift) >> shift);
  }
  const size_t mark = part.nullable ? 1 : 0;
  const std::string bytes = inverted_if(part.descending, at.first(size).from(mark));
  std::string text;
  const bool printable = part.kind == PartKind::Bytes  ? printable_bytes(bytes, &text)
                         : part.kind == PartKind::Text ? printable_weights(part.space, bytes, &text)
                                                       : false;
  return printable ? "'" + text.substr(0, SHOWN) + "'" : hexadecimal(bytes);
}

/** Appends the parts at the beginning of `key` to `text`, and removes them from `key`. */
void append_parts(const std::vector<IndexPart> &parts, Slice *key, std::string *text) {
  for (const IndexPart &p : parts) {
    PartValue v;
    if (key->size == 0 || !parse_part(p.codec, *key, &v)) return;
    if (!text->empty()) *text += ", ";
    *text += v.is_null ? "NULL" : part_text(p.codec, *key, v.size);
    *key = key->from(v.size);
  }
}

/** Returns what follows the parts of a key, which is given without the index number. */
Slice behind_parts(const TableFormat &format, const Index &index, Slice key) {
  std::string ignored;
  append_parts(index.parts, &key, &ignored);
  if (!index.primary) append_parts(format.primary.parts, &key, &ignored);
  if (key.size >= 8 && format.hidden_primary) key = key.from(8);
  return key;
}

/** Whether a bound is just after a complete key, that is, whether the key is followed by a zero byte. */
bool begins_behind(const TableFormat &format, const Index &index, Slice lower) {
  if (lower.size <= NUMBER || lower.data[lower.size - 1] != 0) return false;
  return behind_parts(format, index, lower.from(NUMBER)).size == 1;
}

/** Whether a range ends after all keys that begin with certain parts. If so, sets `parts` to these. */
bool ends_behind(const TableFormat &format, const Index &index, Slice upper, std::string *parts) {
  if (upper.size <= NUMBER || behind_parts(format, index, upper.from(NUMBER)).size == 0) return false;
  *parts = upper.str();
  parts->back() = static_cast<char>(parts->back() - 1);  // reverses after_prefix
  return behind_parts(format, index, Slice(*parts).from(NUMBER)).size == 0;
}

}  // namespace

std::string key_text(const TableFormat &format, const Index &index, Slice key) {
  std::string text;
  if (key.size < NUMBER) return hexadecimal(key);
  key = key.from(NUMBER);
  append_parts(index.parts, &key, &text);
  if (!index.primary) append_parts(format.primary.parts, &key, &text);
  if (key.size == 8 && format.hidden_primary) {
    text += (text.empty() ? "#" : ", #") + std::to_string(read_be(key.data, 8));
    key = key.from(8);
  }
  if (key.size > 0) text += (text.empty() ? "" : ", ") + hexadecimal(key);
  return text;
}

std::string locked_text(const TableFormat *format, const Index *index, const LockedKeys &keys) {
  const bool known = format && index;
  const auto text = [&](Slice key) { return known ? key_text(*format, *index, key) : hexadecimal(key); };
  if (!keys.range) return text(keys.lower);
  Slice lower = keys.lower, upper = keys.upper;
  bool excluded = keys.lower_excluded, included = keys.upper_included;
  if (!known) return (excluded ? "(" : "[") + text(lower) + " .. " + text(upper) + (included ? "]" : ")");
  if (lower.size > NUMBER && after_prefix(lower) == keys.upper) return "[" + text(lower) + "]";
  std::string parts;
  if (!excluded && begins_behind(*format, *index, lower)) {
    excluded = true;
    lower = lower.first(lower.size - 1);
  }
  if (!included && begins_behind(*format, *index, upper)) {
    included = true;
    upper = upper.first(upper.size - 1);
  } else if (!included && ends_behind(*format, *index, upper, &parts)) {
    included = true;
    upper = parts;
  }
  const std::string from = lower.size <= NUMBER ? "-" : text(lower), to = upper.size <= NUMBER ? "+" : text(upper);
  return (excluded ? "(" : "[") + from + " .. " + to + (included ? "]" : ")");
}

}  // namespace kingtide
