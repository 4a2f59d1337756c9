/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "engine.h"

namespace kingtide {

/** What was committed at a moment, for those who read outside of transactions. */
class Snapshot {
 public:
  Snapshot() = default;
  ~Snapshot();
  Snapshot(const Snapshot &) = delete;

  /** As of now. */
  Outcome take();
  Outcome get(Slice key, std::string *value) const;
  Outcome iterate(Slice from, Slice to, Iter *iter) const;

 private:
  kingtide_snapshot *snapshot_ = nullptr;
};

/** What an entry of an index is now, outside of transactions. */
Outcome newest_entry(Slice key, std::string *value);

}  // namespace kingtide
