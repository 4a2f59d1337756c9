/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_set>

namespace kingtide {

/**
  The rows that a transaction changed over versions newer than its snapshot, by the hashes of their keys: about 45 bytes for each. A row
  that was not noted may be taken for one that was; readers must only be slower then. That also makes it possible to stop at a
  limit, and to take every row for one of these.
*/
class OverwrittenRows {
 public:
  /** With this many the set takes about 11 MiB. */
  static constexpr size_t MOST = 1 << 18;

  void note(const std::string &row) {
    if (all_) return;
    hashes_.insert(std::hash<std::string>()(row));
    if (hashes_.size() < MOST) return;
    clear();
    all_ = true;
  }
  bool empty() const { return !all_ && hashes_.empty(); }
  bool may_have(const std::string &row) const { return all_ || hashes_.count(std::hash<std::string>()(row)) != 0; }
  void clear() {
    all_ = false;
    if (!hashes_.empty()) std::unordered_set<uint64_t>().swap(hashes_);
  }

 private:
  std::unordered_set<uint64_t> hashes_;
  bool all_ = false;
};

}  // namespace kingtide
