/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>

#include "fields.h"
#include "row_log.h"
#include "snapshot.h"

namespace kingtide {

/**
  Makes indexes follow what others did while they were built: for each row that was changed, its entry goes that is in the index,
  and the one comes that it has now. This is done in rounds, each as of a snapshot; the last one, when no statement uses the table any
  more, finds little to do.

  A row's entry in the index is the one that it had at the snapshot of the round in which it was looked at last, so the snapshots
  of all rounds are kept. It would not do to take the one before: a change may be visible to a round and be told after it.

  While others go on, two rows may seem to have one value of a unique index, as one has been looked at and the other has not.
  Then the entry that is there stays, and the other row is looked at again in the next round. In the last one it is a duplicate.
*/
class CatchUp {
 public:
  /** For these keys of the altered table, which will have this record. */
  CatchUp(THD *thd, TABLE *altered, const TableRecord &record, const std::vector<uint> &keys, std::shared_ptr<RowLog> log)
      : thd_(thd), altered_(altered), format_(altered, record), keys_(keys), log_(std::move(log)) {}

  /** Takes the snapshot as of which the indexes are built. */
  Outcome begin();
  const Snapshot &base() const { return snapshots_.front(); }
  const TableFormat &format() const { return format_; }

  /** After the indexes are built: does rounds until little is left, or it cannot keep up. Returns server errors. */
  int follow();
  /** To be called when neither statements nor prepared transactions use the table any more. */
  int finish();

  /** After HA_ERR_FOUND_DUPP_KEY: the key, and in the altered table's record the row. */
  uint duplicate() const { return duplicate_; }
  /** A duplicate that was found while they were built: the key, and the primary key of a row that has it. */
  void show_duplicate(uint key, const std::string &row_key);

 private:
  struct Entry {
    bool there = false, checked = false;
    std::string key, value;
  };

  bool show(Slice row);
  int round(const RowKeys &keys, bool last);
  int remove_old(const std::string &row_key);
  int put_new(const std::string &row_key, bool last);
  int read(const Snapshot &snapshot, const std::string &row_key, bool *there);
  void entry(uint k, const std::string &row_key, Entry *entry);
  int owner(const Index &index, const std::string &key, bool *there, std::string *row_key);
  int flush_if(size_t bytes);
  int killed();

  THD *const thd_;
  TABLE *const altered_;
  const TableFormat format_;
  const std::vector<uint> keys_;
  const std::shared_ptr<RowLog> log_;
  /** The snapshot that the indexes were built from, and those of all rounds. */
  std::deque<Snapshot> snapshots_;
  /** Rows that were processed since, and in which round. */
  std::unordered_map<std::string, size_t> looked_at_;
  /** Rows that have no entry in a unique index yet because another row has it. */
  RowKeys again_;
  std::unique_ptr<Batch> batch_;
  size_t batch_bytes_ = 0;
  /** Entries of unique indexes in the batch, with the rows that they belong to. */
  std::unordered_map<std::string, std::string> fresh_;
  /** The last row read; blobs in the record point into it. */
  std::string row_;
  std::string found_;
  Entry old_, new_;
  uint64_t seen_ = 0;
  uint duplicate_ = 0;
};

}  // namespace kingtide
