/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "fields.h"

/** What an ALTER TABLE in place makes of a table, before anything of it is done. */
namespace kingtide {

struct AlterPlan {
  /** Why it cannot be done in place; nullptr if it can. An empty text: the server has words of its own for it. */
  const char *refused = nullptr;
  /** The table's record afterwards. Indexes that are to be made have no number yet. */
  TableRecord after;
  /** Numbers of indexes that go. */
  std::vector<uint32_t> dropped;
  /** Keys of the altered table that have no index yet. */
  std::vector<uint> added;
};

/** `now` is the table's record, of a table that has rows in the layout of `before`. */
AlterPlan plan_alter(TABLE *before, TABLE *after, const Alter_inplace_info *info, const TableRecord &now);

/** Whether rows and entries that have a column keep their form if it gets another type. */
bool converts_in_place(const Field &field, const Column_definition &type);

}  // namespace kingtide
