/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <map>
#include <string>

#include "fields.h"
#include "inspect.h"

/** The tables and indexes of locks, by the names that users know. */
namespace kingtide {

class TableShare;

/** "database/table", or the path of a temporary table, which has no database to show. */
void split_name(const std::string &name, std::string *database, std::string *table);

/** The index of a table that has this number, and its name; null if the table has no such index. */
const Index *index_of(const TableShare &share, uint32_t number, std::string *name);

/** Where a lock is. The table is empty if it is unknown, and the index while the table is not open. */
struct LockPlace {
  std::string database, table, index;
  /** The key or range, as locked_text has it. */
  std::string keys;
};

/** Finds the tables of locks. For one listing: it does not see what is created later. */
class TableNames {
 public:
  LockPlace place_of(const LockedKeys &keys);

 private:
  const std::string *of(uint32_t index);
  void load();

  bool loaded_ = false;
  /** Of tables that are not open, by the numbers of their indexes. */
  std::map<uint32_t, std::string> names_;
};

}  // namespace kingtide
