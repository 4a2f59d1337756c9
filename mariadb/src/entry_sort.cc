/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "entry_sort.h"

#include <algorithm>

namespace kingtide {

bool EntrySort::fail() {
  failed_ = true;
  return false;
}

void EntrySort::sort() {
  std::sort(entries_.begin(), entries_.end(),
            [this](const Entry &a, const Entry &b) { return key_of(a).compare(key_of(b)) < 0; });
}

bool EntrySort::add(Slice key, Slice value) {
  const size_t more = key.size + value.size + sizeof(Entry);
  if (!entries_.empty() && bytes_.size() + entries_.size() * sizeof(Entry) + more > memory_ && !spill()) return false;
  entries_.push_back({bytes_.size(), static_cast<uint32_t>(key.size), static_cast<uint32_t>(value.size)});
  append(bytes_, key);
  append(bytes_, value);
  return true;
}

/** Sorts the entries in memory and writes them to a file. */
bool EntrySort::spill() {
  sort();
  Run run;
  run.file.reset(make_file_());
  if (!run.file) return fail();
  FILE *f = run.file.get();
  for (const Entry &e : entries_) {
    const uint32_t sizes[] = {e.key, e.value};
    const size_t size = size_t{e.key} + e.value;
    if (fwrite(sizes, sizeof sizes, 1, f) != 1 || fwrite(bytes_.data() + e.at, 1, size, f) != size) return fail();
  }
  if (fflush(f) != 0 || fseek(f, 0, SEEK_SET) != 0) return fail();
  runs_.push_back(std::move(run));
  entries_.clear();
  bytes_.clear();
  return true;
}

bool EntrySort::read(Run *run, bool *end) {
  uint32_t sizes[2];
  FILE *f = run->file.get();
  *end = fread(sizes, sizeof sizes, 1, f) != 1;
  if (*end) return !ferror(f);
  run->key = sizes[0];
  run->bytes.resize(size_t{sizes[0]} + sizes[1]);
  return fread(&run->bytes[0], 1, run->bytes.size(), f) == run->bytes.size();
}

/** Order for a heap with the least entry at the front. */
bool EntrySort::later(size_t a, size_t b) const {
  return Slice(runs_[a].bytes).first(runs_[a].key).compare(Slice(runs_[b].bytes).first(runs_[b].key)) > 0;
}

bool EntrySort::finish() {
  if (runs_.empty()) {
    sort();
    return true;
  }
  if (!entries_.empty() && !spill()) return false;
  bytes_.shrink_to_fit();
  for (size_t i = 0; i < runs_.size(); i++) {
    bool end;
    if (!read(&runs_[i], &end)) return fail();
    if (!end) heap_.push_back(i);
  }
  std::make_heap(heap_.begin(), heap_.end(), [this](size_t a, size_t b) { return later(a, b); });
  return true;
}

bool EntrySort::next(Slice *key, Slice *value) {
  if (failed_) return false;
  if (runs_.empty()) {
    if (given_ == entries_.size()) return false;
    const Entry &e = entries_[given_++];
    *key = key_of(e);
    *value = Slice(bytes_).from(e.at + e.key).first(e.value);
    return true;
  }
  const auto order = [this](size_t a, size_t b) { return later(a, b); };
  if (given_from_run_) {  // the entry that was returned last came from the front
    std::pop_heap(heap_.begin(), heap_.end(), order);
    bool end;
    if (!read(&runs_[heap_.back()], &end)) return fail();
    if (end)
      heap_.pop_back();
    else
      std::push_heap(heap_.begin(), heap_.end(), order);
  }
  given_from_run_ = !heap_.empty();
  if (heap_.empty()) return false;
  const Run &run = runs_[heap_.front()];
  *key = Slice(run.bytes).first(run.key);
  *value = Slice(run.bytes).from(run.key);
  return true;
}

}  // namespace kingtide
