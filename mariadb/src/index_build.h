/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "entry_sort.h"
#include "fields.h"
#include "row_log.h"

namespace kingtide {

/**
  Builds indexes of a table that has rows already: makes the entries of all rows, sorts them, and gives the engine a file of
  them, past its log and memtables. Nothing is there before `finish`, and everything after it.
*/
class IndexBuild {
 public:
  /** Number of stages of the statement's progress: rows are read, then sorted entries are written. */
  static constexpr uint STAGES = 2;

  /** Makes entries as `altered` has them, of rows of any layout that `record` knows; of about so many, for the progress. */
  IndexBuild(THD *thd, TABLE *altered, const TableRecord &record, const std::vector<uint> &keys, const RowLog &log,
             uint64_t rows);

  /** These return errors of the server. */
  int add(Slice row_key, Slice row);
  int finish();

  /** After HA_ERR_FOUND_DUPP_KEY: the key of which there is a duplicate, and the primary key of a row that has it. */
  std::pair<uint, std::string> duplicate() const { return {duplicate_key_, duplicate_row_}; }

 private:
  /** Puts a row into the altered table's record. */
  bool show(Slice row);
  /** One more item of the stage is done. Reports progress from time to time; false if the statement was killed. */
  int look_up();

  THD *thd_;
  TABLE *altered_;
  const TableFormat format_;
  const std::vector<uint> keys_;
  /** What other sessions change meanwhile. */
  const RowLog &log_;
  EntrySort sort_;
  std::string key_, value_;
  /** What of the present stage is done, and what there is to do, at least. */
  uint64_t done_ = 0, expected_;
  uint64_t entries_ = 0;
  uint duplicate_key_ = 0;
  std::string duplicate_row_;
};

}  // namespace kingtide
