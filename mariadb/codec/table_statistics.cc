/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "table_statistics.h"

namespace kingtide {

std::string encode_table_statistics(const TableStatistics &statistics) {
  std::string s(1, 1);
  append_varint(s, statistics.rows);
  append_varint(s, statistics.rows_per_key.size());
  for (const auto &[index, rows] : statistics.rows_per_key) {
    append_varint(s, index);
    append_varint(s, rows.size());
    for (uint64_t n : rows) append_varint(s, n);
  }
  return s;
}

bool decode_table_statistics(Slice bytes, TableStatistics *statistics) {
  uint64_t indexes, index, parts, n;
  *statistics = TableStatistics();
  if (bytes.size == 0 || bytes.data[0] != 1) return false;
  bytes = bytes.from(1);
  if (!take_varint(bytes, &statistics->rows) || !take_varint(bytes, &indexes)) return false;
  for (; indexes > 0; indexes--) {
    // Each number takes at least one byte, so a count that exceeds the remaining bytes is invalid.
    if (!take_varint(bytes, &index) || index > UINT32_MAX || !take_varint(bytes, &parts) || parts > bytes.size) return false;
    const auto [entry, fresh] = statistics->rows_per_key.try_emplace(static_cast<uint32_t>(index));
    if (!fresh) return false;
    std::vector<uint64_t> &rows = entry->second;
    for (; parts > 0; parts--) {
      if (!take_varint(bytes, &n)) return false;
      rows.push_back(n);
    }
  }
  return bytes.size == 0;
}

}  // namespace kingtide
