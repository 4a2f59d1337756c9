/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "entry_sort.h"
#include "fields.h"
#include "row_log.h"

namespace kingtide {

/**
  Builds indexes of a table that already has rows: creates the entries of all rows, sorts them, and ingests them into the engine
  as a file, bypassing its log and memtables. The indexes have no entries until `finish`, and all of them afterwards.
*/
class IndexBuild {
 public:
  /** Number of stages of the progress report: reading the rows, and writing the sorted entries. */
  static constexpr uint STAGES = 2;

  /** Builds entries for keys of `altered`, from rows in any layout of `record`. `rows` is an estimate, for the progress report. */
  IndexBuild(THD *thd, TABLE *altered, const TableRecord &record, const std::vector<uint> &keys, const RowLog &log,
             uint64_t rows);

  /** `add` and `finish` return error numbers of the server. */
  int add(Slice row_key, Slice row);
  int finish();

  /** After HA_ERR_FOUND_DUPP_KEY: the key that has a duplicate, and the primary key of one of the rows. */
  std::pair<uint, std::string> duplicate() const { return {duplicate_key_, duplicate_row_}; }

 private:
  /** Decodes a row into the record of the altered table. */
  bool show(Slice row);
  /** Counts an item of the stage as done, and reports progress from time to time. Returns false if the statement was killed. */
  int look_up();

  THD *thd_;
  TABLE *altered_;
  const TableFormat format_;
  const std::vector<uint> keys_;
  /** Rows that other sessions change meanwhile. */
  const RowLog &log_;
  EntrySort sort_;
  std::string key_, value_;
  /** Items of the current stage that are done, and an estimate of all its items. */
  uint64_t done_ = 0, expected_;
  uint64_t entries_ = 0;
  uint duplicate_key_ = 0;
  std::string duplicate_row_;
};

}  // namespace kingtide
