/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "row_log.h"

#include <algorithm>
#include <new>
#include <shared_mutex>

namespace kingtide {
namespace {

/** Approximate overhead of a key, in bytes. */
constexpr uint64_t KEY_BYTES = 96;

std::shared_mutex logs_mutex;
std::map<uint32_t, std::shared_ptr<RowLog>> logs;

}  // namespace

std::atomic<size_t> RowLog::count_{0};

std::shared_ptr<RowLog> RowLog::begin(uint32_t primary, uint64_t most_bytes) {
  const auto log = std::make_shared<RowLog>(most_bytes);
  std::unique_lock<std::shared_mutex> guard(logs_mutex);
  logs[primary] = log;
  count_.store(logs.size(), std::memory_order_release);
  return log;
}

void RowLog::end(uint32_t primary) {
  std::unique_lock<std::shared_mutex> guard(logs_mutex);
  const auto found = logs.find(primary);
  if (found == logs.end()) return;
  found->second->give_up();
  logs.erase(found);
  count_.store(logs.size(), std::memory_order_release);
}

std::shared_ptr<RowLog> RowLog::of(uint32_t primary) {
  std::shared_lock<std::shared_mutex> guard(logs_mutex);
  const auto found = logs.find(primary);
  return found == logs.end() ? nullptr : found->second;
}

void RowLog::prepared_ended(const std::string &xid, bool committed) {
  if (!any()) return;
  std::shared_lock<std::shared_mutex> guard(logs_mutex);
  for (const auto &one : logs) one.second->ended(xid, committed);
}

bool RowLog::take_room(size_t key_size) {
  if (is_too_big()) return false;
  if (bytes_.fetch_add(key_size + KEY_BYTES, std::memory_order_relaxed) + key_size + KEY_BYTES > most_) give_up();
  return !is_too_big();
}

void RowLog::give_room_back(const RowKeys &keys) {
  uint64_t bytes = 0;
  for (const std::string &key : keys) bytes += key.size() + KEY_BYTES;
  bytes_.fetch_sub(bytes, std::memory_order_relaxed);
}

/** Merges keys into others. Memory of duplicates is no longer counted. */
void RowLog::merge(RowKeys from, RowKeys *into) {
  try {
    if (into->size() < from.size()) into->swap(from);
    into->merge(from);
    give_room_back(from);
  } catch (const std::bad_alloc &) {
    give_up();
  }
}

void RowLog::committed(RowKeys keys) {
  std::lock_guard<std::mutex> guard(mutex_);
  merge(std::move(keys), &committed_);
}

void RowLog::prepared(const std::string &xid, RowKeys keys) {
  std::lock_guard<std::mutex> guard(mutex_);
  try {
    merge(std::move(keys), &prepared_[xid]);
  } catch (const std::bad_alloc &) {
    give_up();
  }
}

void RowLog::ended(const std::string &xid, bool committed) {
  std::lock_guard<std::mutex> guard(mutex_);
  const auto found = prepared_.find(xid);
  if (found == prepared_.end()) return;
  if (committed)
    merge(std::move(found->second), &committed_);
  else
    give_room_back(found->second);
  prepared_.erase(found);
}

RowKeys RowLog::take() {
  RowKeys taken;
  std::lock_guard<std::mutex> guard(mutex_);
  taken.swap(committed_);
  return taken;
}

RowKeys RowLog::take_all() {
  RowKeys taken = take();
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto &one : prepared_) merge(std::move(one.second), &taken);
  prepared_.clear();
  return taken;
}

ChangedRows::OfTable *ChangedRows::table(uint32_t primary) {
  for (OfTable &t : tables_)
    if (t.primary == primary) return &t;
  std::shared_ptr<RowLog> log = RowLog::of(primary);
  if (!log) return nullptr;
  tables_.push_back({primary, std::move(log), {}});
  return &tables_.back();
}

void ChangedRows::note_in_log(uint32_t primary, Slice row_key) {
  std::shared_ptr<RowLog> log = nullptr;
  try {
    // A running transaction keeps the next ALTER TABLE from beginning, so the log is the one that it used first.
    OfTable *t = table(primary);
    if (!t) return;
    log = t->log;
    if (log->is_too_big()) return t->keys.clear();  // the build will fail
    if (t->keys.insert(row_key.str()).second) log->take_room(row_key.size);
  } catch (const std::bad_alloc &) {
    if (log || (log = RowLog::of(primary))) log->give_up();
  }
}

void ChangedRows::prepared(const std::string &xid) {
  if (tables_.empty()) return;
  xid_ = xid;
  for (OfTable &t : tables_) {
    t.log->prepared(xid, std::move(t.keys));
    t.keys.clear();
  }
}

void ChangedRows::committed() {
  for (OfTable &t : tables_) {
    if (!xid_.empty()) t.log->ended(xid_, true);
    t.log->committed(std::move(t.keys));
  }
  forget();
}

void ChangedRows::rolled_back() {
  for (OfTable &t : tables_) {
    if (!xid_.empty()) t.log->ended(xid_, false);
    t.log->give_room_back(t.keys);
  }
  forget();
}

}  // namespace kingtide
