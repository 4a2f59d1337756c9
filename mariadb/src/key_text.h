/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <string>

#include "fields.h"
#include "inspect.h"

namespace kingtide {

/**
  A key's parts for people: numbers as such, text by its weights where these look like characters (a collation that ignores
  case shows capitals), everything else in hexadecimal digits. `key` begins with the index's number.
*/
std::string key_text(const TableFormat &format, const Index &index, Slice key);

/**
  What is locked: "5"; or "[5 .. 8)", with - and + for the ends of the index; or "[5]", all keys of which the first parts are
  these. Of an index that is not known it is in hexadecimal digits.
*/
std::string locked_text(const TableFormat *format, const Index *index, const LockedKeys &keys);

}  // namespace kingtide
