/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <map>
#include <vector>

#include "slice.h"

/**
  The result of ANALYZE TABLE, as stored in the dictionary. This code does not depend on the server.

      1 byte    version of this format: 1
      varints   number of rows; number of indexes; for each index: its number, the number of its parts, and for each number of
                leading parts, from 1 on, how many rows have the same values in them
*/
namespace kingtide {

struct TableStatistics {
  uint64_t rows = 0;
  /** By the number of the index, and the number of leading parts minus one. */
  std::map<uint32_t, std::vector<uint64_t>> rows_per_key;
};

std::string encode_table_statistics(const TableStatistics &statistics);

/** Returns false if encode_table_statistics cannot have written these bytes. */
bool decode_table_statistics(Slice bytes, TableStatistics *statistics);

}  // namespace kingtide
