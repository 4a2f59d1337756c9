/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <map>
#include <string>

#include "fields.h"
#include "inspect.h"

/** Maps locks to tables and indexes, by the names that users know. */
namespace kingtide {

class TableShare;

/** Splits "database/table". For a temporary table, `name` is a path: `database` is then empty, and `table` is the path. */
void split_name(const std::string &name, std::string *database, std::string *table);

/** Returns the table's index with this number and sets `name` to its name. Returns nullptr if the table has no such index. */
const Index *index_of(const TableShare &share, uint32_t number, std::string *name);

/** The place of a lock. `table` is empty if it is unknown; `index` is empty while the table is not open. */
struct LockPlace {
  std::string database, table, index;
  /** The key or range, as returned by locked_text. */
  std::string keys;
};

/** Finds the tables of locks. Use a new object for each listing, because it does not see tables that are created later. */
class TableNames {
 public:
  LockPlace place_of(const LockedKeys &keys);

 private:
  const std::string *of(uint32_t index);
  void load();

  bool loaded_ = false;
  /** Names of all tables, by the numbers of their indexes; loaded when a table is not open. */
  std::map<uint32_t, std::string> names_;
};

}  // namespace kingtide
