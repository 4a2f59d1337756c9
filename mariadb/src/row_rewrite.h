/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "table_share.h"

namespace kingtide {

/**
  ALTER TABLE ... FORCE in place: writes the rows of a table under the number of another primary index, in the newest form. The entries of other
  indexes refer to rows by their keys, so they stay as they are. No other statement may write to the table meanwhile. The rows are
  written in slices; if this fails, the caller must remove what was written. Returns an error of the server.
*/
int rewrite_rows(THD *thd, TABLE *altered, const TableShare &share, const TableRecord &after);

/**
  To be called after the rows of all partitions were written: brings them to the disk. Otherwise the batch that gives them to the table would do
  this, when the server no longer lets KILL end the statement. Returns an error of the server.
*/
int end_rewriting(THD *thd);

}  // namespace kingtide
