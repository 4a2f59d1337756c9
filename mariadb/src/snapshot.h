/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "engine.h"

namespace kingtide {

/** A snapshot, for reads outside of transactions. */
class Snapshot {
 public:
  Snapshot() = default;
  ~Snapshot();
  Snapshot(const Snapshot &) = delete;

  /** Takes the snapshot now, and releases the previous one. */
  Outcome take();
  /** Takes a snapshot of the state with that sequence number, which a running transaction must still see. */
  Outcome take_at(uint64_t sequence);
  void release();
  bool taken() const { return snapshot_ != nullptr; }
  Outcome get(Slice key, std::string *value) const;
  Outcome iterate(Slice from, Slice to, Iter *iter) const;

 private:
  kingtide_snapshot *snapshot_ = nullptr;
};

/** Reads the last committed value of an index entry, outside of transactions. */
Outcome newest_entry(Slice key, std::string *value);

}  // namespace kingtide
