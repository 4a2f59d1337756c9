/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <map>
#include <vector>

#include "slice.h"

/**
  What ANALYZE TABLE found, as the dictionary keeps it. Nothing here knows the server.

      1 byte    version of this form: 1
      varints   rows; number of indexes; for each: its number, number of its parts, and for each number of first parts from 1 on
                how many rows have the same values in them
*/
namespace kingtide {

struct TableStatistics {
  uint64_t rows = 0;
  /** By the index's number, and the number of parts less one. */
  std::map<uint32_t, std::vector<uint64_t>> rows_per_key;
};

std::string encode_table_statistics(const TableStatistics &statistics);

/** False for bytes that encode_table_statistics did not make. */
bool decode_table_statistics(Slice bytes, TableStatistics *statistics);

}  // namespace kingtide
