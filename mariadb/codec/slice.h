/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <endian.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace kingtide {

/** A reference to bytes that another object owns. */
struct Slice {
  const uint8_t *data = nullptr;
  size_t size = 0;

  Slice() = default;
  Slice(const uint8_t *d, size_t n) : data(d), size(n) {}
  Slice(const std::string &s) : data(reinterpret_cast<const uint8_t *>(s.data())), size(s.size()) {}

  bool starts_with(Slice p) const { return size >= p.size && (p.size == 0 || memcmp(data, p.data, p.size) == 0); }
  Slice from(size_t at) const { return Slice(data + at, size - at); }
  Slice first(size_t n) const { return Slice(data, n); }
  std::string str() const { return std::string(reinterpret_cast<const char *>(data), size); }

  int compare(Slice other) const {
    size_t n = size < other.size ? size : other.size;
    int c = n ? memcmp(data, other.data, n) : 0;
    return c ? c : size < other.size ? -1 : size > other.size;
  }
};

inline bool operator==(Slice a, Slice b) { return a.compare(b) == 0; }

inline void append(std::string &out, Slice s) { out.append(reinterpret_cast<const char *>(s.data), s.size); }

/** Like `out = s.str()`, but reuses the memory of `out`. */
inline void assign(std::string &out, Slice s) {
  if (out.size() == s.size && s.size)
    memcpy(&out[0], s.data, s.size);  // successive keys mostly have the same length
  else
    out.assign(reinterpret_cast<const char *>(s.data), s.size);
}

/** Appends the low `bytes` bytes of a number, 1 to 8, most significant first, so that they sort like numbers. */
inline void append_be(std::string &out, uint64_t v, unsigned bytes) {
  v = htobe64(v << (8 * (sizeof v - bytes)));
  out.append(reinterpret_cast<const char *>(&v), bytes);
}

inline uint64_t read_be(const uint8_t *p, unsigned bytes) {
  if (bytes == 4) {
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return be32toh(four);
  }
  uint64_t v = 0;
  for (unsigned i = 0; i < bytes; i++) v = v << 8 | p[i];
  return v;
}

inline uint64_t read_le(const uint8_t *p, unsigned bytes) {
  if (bytes == 4) {
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return le32toh(four);
  }
  uint64_t v = 0;
  for (unsigned i = bytes; i-- > 0;) v = v << 8 | p[i];
  return v;
}

inline void write_le(uint8_t *p, uint64_t v, unsigned bytes) {
  if (bytes == 4) {
    const uint32_t four = htole32(static_cast<uint32_t>(v));
    memcpy(p, &four, sizeof four);
    return;
  }
  for (unsigned i = 0; i < bytes; i++) p[i] = static_cast<uint8_t>(v >> (8 * i));
}

/** Appends seven bits per byte, least significant first. The high bit says that more bytes follow. */
inline void append_varint(std::string &out, uint64_t v) {
  for (; v >= 128; v >>= 7) out.push_back(static_cast<char>(v | 128));
  out.push_back(static_cast<char>(v));
}

/** Removes a number from the front of `from`. Returns false if there is none. */
inline bool take_varint(Slice &from, uint64_t *v) {
  if (from.size != 0 && *from.data < 128) {
    *v = *from.data;
    from = from.from(1);
    return true;
  }
  *v = 0;
  for (unsigned i = 0; i < 10 && i < from.size; i++) {
    *v |= static_cast<uint64_t>(from.data[i] & 127) << (7 * i);
    if (from.data[i] < 128) {
      from = from.from(i + 1);
      return true;
    }
  }
  return false;
}

}  // namespace kingtide
