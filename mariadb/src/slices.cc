/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "slices.h"

#include <algorithm>

#include "server.h"
#include "variables.h"

namespace kingtide {
namespace {

/** Bytes of rows and entries in one slice; fewer if the memory limit of transactions is low. */
constexpr uint64_t MOST = 16 << 20;
/** The same of many writers. The engine does not count the memory of a transaction that has written less. */
constexpr uint64_t LEAST = 32 << 10;

}  // namespace

Outcome Slices::begin(uint64_t writers) {
  size_ = std::max(std::min(MOST, transaction_memory() / 8) / std::max<uint64_t>(writers, 1), LEAST);
  return txn_.begin(Level::ReadUncommitted, NO_WAIT, Durability::Process);
}

Outcome Slices::next() {
  const Outcome o = txn_.commit();
  return o == Outcome::Ok ? txn_.begin(Level::ReadUncommitted, NO_WAIT, Durability::Process) : o;
}

Outcome Slices::row_written() { return txn_.size_of_writes() >= size_ ? next() : Outcome::Ok; }

Outcome Slices::end() {
  const Outcome o = txn_.commit();
  close();
  return o;
}

}  // namespace kingtide
