/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <string>

#include "fields.h"
#include "inspect.h"

namespace kingtide {

/**
  Returns the parts of a key in readable form: numbers in decimal, text by its weights if they are printable characters (capitals
  in a collation that ignores case), and everything else in hexadecimal. `key` begins with the number of the index.
*/
std::string key_text(const TableFormat &format, const Index &index, Slice key);

/**
  Returns a lock's key or range in readable form: "5"; "[5 .. 8)", with - and + for the ends of the index; or "[5]" for all keys
  with these first parts. The keys of an unknown index are shown in hexadecimal.
*/
std::string locked_text(const TableFormat *format, const Index *index, const LockedKeys &keys);

}  // namespace kingtide
