/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "fields.h"

/** The outcome of an in-place ALTER TABLE, planned before anything is changed. */
namespace kingtide {

struct AlterPlan {
  /** Why it cannot be done in place; nullptr if it can. Empty if the server has a message of its own for it. */
  const char *refused = nullptr;
  /** The table's record afterwards. Indexes to be created have no number yet. */
  TableRecord after;
  /** Numbers of the indexes to be dropped. */
  std::vector<uint32_t> dropped;
  /** Keys of the altered table that have no index yet. */
  std::vector<uint> added;
  /** Whether all rows are to be written again, under another number: see row_rewrite.h. */
  bool rewrites = false;
};

/** `now` is the record of the table, whose rows have the layout of `before`. */
AlterPlan plan_alter(TABLE *before, TABLE *after, const Alter_inplace_info *info, const TableRecord &now);

/** Bytes of the values that rows of older layouts have in added columns. */
size_t absent_bytes(const TableRecord &record);

/** Whether rows and entries with this column keep their format when its type changes. */
bool converts_in_place(const Field &field, const Column_definition &type);

}  // namespace kingtide
