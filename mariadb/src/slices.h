/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "engine.h"

namespace kingtide {

/**
  Writes rows in transactions of limited size, so that there may be more of them than transactions may hold. No other statement may see the
  table or the index that gets them before all are written, and it must be removed if they are not. A slice ends early, also in the middle of a
  row, if other transactions have the rest of the memory.
*/
class Slices {
 public:
  /** Begins the first slice. `writers` is how many such objects the statement writes with at the same time: together they write no more than one. */
  Outcome begin(uint64_t writers);
  /** Whether rows are being written. */
  bool open() const { return txn_.open(); }
  /** The transaction of the current slice, to read what was written; written to by `write` only. */
  Txn &txn() { return txn_; }
  /** Whether nothing has been written since the last slice ended. */
  bool between() const { return txn_.size_of_writes() == 0; }

  /** Calls `write` with the transaction. If that returns Busy, and so has written nothing, it is called again in the next slice. */
  template <class Write>
  Outcome write(const Write &write) {
    Outcome o = write(txn_);
    if (o == Outcome::Busy && (o = next()) == Outcome::Ok) o = write(txn_);
    return o;
  }
  /** To be called after each row: begins the next slice if this one is large enough. */
  Outcome row_written();
  /** Commits the last slice. */
  Outcome end();
  /** Gives up what was not committed. */
  void close() { txn_.close(); }

 private:
  Outcome next();

  Txn txn_;
  uint64_t size_ = 0;
};

}  // namespace kingtide
