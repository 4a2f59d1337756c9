/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "../codec/slice.h"

namespace kingtide {

/**
  Sorts entries by their keys. What is more than its memory goes to files, sorted, which are merged in the end. Knows nothing of
  the server.
*/
class EntrySort {
 public:
  /** `make_file` returns an empty temporary file, which is removed when it is closed; nullptr on failure. */
  EntrySort(size_t memory, std::function<FILE *()> make_file) : memory_(memory), make_file_(std::move(make_file)) {}

  /** False if a file cannot be written; see errno. */
  bool add(Slice key, Slice value);
  /** To be called when all entries were added. False as above. */
  bool finish();
  /** The next entry in order, valid until the next call; false at the end or on an error: see `failed`. */
  bool next(Slice *key, Slice *value);
  bool failed() const { return failed_; }

 private:
  struct Entry {
    size_t at;
    uint32_t key, value;
  };
  struct Close {
    void operator()(FILE *f) const { fclose(f); }
  };
  /** A file and its next entry. */
  struct Run {
    std::unique_ptr<FILE, Close> file;
    std::string bytes;
    uint32_t key = 0;
  };

  Slice key_of(const Entry &e) const { return Slice(bytes_).from(e.at).first(e.key); }
  bool fail();
  void sort();
  bool spill();
  bool read(Run *run, bool *end);
  bool later(size_t a, size_t b) const;

  const size_t memory_;
  const std::function<FILE *()> make_file_;
  std::string bytes_;
  std::vector<Entry> entries_;
  size_t given_ = 0;
  std::vector<Run> runs_;
  /** Places of `runs_` that have entries left, as a heap, and the one whose entry was given last. */
  std::vector<size_t> heap_;
  bool given_from_run_ = false;
  bool failed_ = false;
};

}  // namespace kingtide
