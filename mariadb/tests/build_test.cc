/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/*
  What the building of an index rests on, tried without a server: entries come sorted out of memory and files, what cannot be
  written is an error, and no row that a transaction changed is left out of the log, nor its room taken for good.

  Usage: build_test [seed]. It prints its seed, which replays a failure.
*/
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "../src/entry_sort.h"
#include "../src/row_log.h"

using namespace kingtide;

namespace {

uint64_t seed;
std::mt19937_64 rng;

void fail(const char *what, int line) {
  fprintf(stderr, "build_test:%d: %s (seed %llu)\n", line, what, static_cast<unsigned long long>(seed));
  exit(1);
}

#define CHECK(condition) \
  if (!(condition)) fail(#condition, __LINE__)

size_t below(size_t n) { return rng() % n; }

std::string random_bytes(size_t most) {
  std::string s(below(most + 1), '\0');
  for (char &c : s) c = static_cast<char>(below(3) * 127);
  return s;
}

void entries_come_sorted(int rounds) {
  for (int i = 0; i < rounds; i++) {
    std::vector<std::pair<std::string, std::string>> entries(below(200));
    int files = 0;
    EntrySort sort(1 + below(4000), [&files] { return files++, tmpfile(); });
    for (auto &[key, value] : entries) {
      key = random_bytes(20);
      value = random_bytes(i % 10 ? 20 : 3000);
      CHECK(sort.add(key, value));
    }
    CHECK(sort.finish());
    std::vector<std::pair<std::string, std::string>> found;
    Slice key, value;
    while (sort.next(&key, &value)) {
      CHECK(found.empty() || found.back().first <= key.str());
      found.emplace_back(key.str(), value.str());
    }
    CHECK(!sort.failed() && !sort.next(&key, &value));
    std::sort(entries.begin(), entries.end());
    std::sort(found.begin(), found.end());
    CHECK(found == entries);
  }
}

/** Fills until the sort says no, or there is nothing more to add. */
bool fill(EntrySort *sort) {
  for (int i = 0; i < 500; i++)
    if (!sort->add(random_bytes(30), std::string(100, 'v'))) return false;
  return sort->finish();
}

void what_cannot_be_written_is_an_error() {
  EntrySort none(1000, [] { return static_cast<FILE *>(nullptr); });
  CHECK(!fill(&none) && none.failed());
  EntrySort full(1000, [] { return fopen("/dev/full", "w+"); });
  CHECK(!fill(&full) && full.failed());
  int files = 0;
  EntrySort third(1000, [&files] { return ++files < 3 ? tmpfile() : nullptr; });
  CHECK(!fill(&third) && third.failed());
  Slice key, value;
  CHECK(!third.next(&key, &value));
  EntrySort empty(1000, [] { return static_cast<FILE *>(nullptr); });
  CHECK(empty.finish() && !empty.next(&key, &value) && !empty.failed());
}

std::string number(uint64_t n) {
  std::string key;
  append_be(key, n, 8);
  return key;
}

void note(ChangedRows *rows, uint32_t table, uint64_t key) { rows->note(table, number(key)); }

void logs_keep_what_was_committed() {
  ChangedRows none;
  note(&none, 1, 1);  // no index is built
  const auto log = RowLog::begin(1, 1 << 20);
  CHECK(RowLog::any() && RowLog::of(1) == log && !RowLog::of(2));
  ChangedRows a, b, c, d;
  note(&a, 1, 1), note(&a, 1, 1), note(&a, 2, 7);
  note(&b, 1, 2);
  CHECK(log->take().empty());
  a.committed();
  b.rolled_back();
  CHECK(log->take() == RowKeys({number(1)}) && log->take().empty());
  note(&a, 1, 3), note(&b, 1, 4), note(&c, 1, 5), note(&d, 1, 6);
  for (auto *one : {&a, &b, &c, &d}) one->prepared(one == &a ? "a" : one == &b ? "b" : one == &c ? "c" : "d");
  CHECK(log->take().empty());
  a.committed();
  b.rolled_back();
  c.forget();
  d.forget();
  CHECK(log->take() == RowKeys({number(3)}));
  RowLog::prepared_ended("c", true);
  RowLog::prepared_ended("c", true);
  CHECK(log->take() == RowKeys({number(5)}));
  CHECK(log->take_all() == RowKeys({number(6)}) && log->take_all().empty());
  RowLog::end(1);
  CHECK(!RowLog::any() && log->is_too_big());
  note(&a, 1, 1);
  a.committed();
}

void room_is_given_back() {
  const auto log = RowLog::begin(1, 1000);
  ChangedRows rows;
  for (int i = 0; i < 1000; i++) {
    note(&rows, 1, i);
    note(&rows, 1, i + 1);
    i % 2 ? rows.prepared("x") : (void)0;
    rows.rolled_back();
  }
  for (int i = 0; i < 1000; i++) {  // the same ones, which are there already
    note(&rows, 1, i % 3);
    rows.committed();
  }
  CHECK(!log->is_too_big() && log->take().size() == 3);
  for (int i = 0; i < 20; i++) note(&rows, 1, i);
  CHECK(log->is_too_big());
  rows.rolled_back();
  CHECK(log->is_too_big());
  RowLog::end(1);
}

/** Many commit; one takes meanwhile: whatever was committed has been taken in the end, and nothing else. */
void nothing_is_lost(int transactions) {
  constexpr int THREADS = 4;
  const auto log = RowLog::begin(9, UINT64_MAX / 2);
  std::vector<RowKeys> committed(THREADS);
  std::vector<std::thread> threads;
  for (int t = 0; t < THREADS; t++)
    threads.emplace_back([&committed, t, transactions] {
      std::mt19937_64 own(seed + static_cast<uint64_t>(t));
      ChangedRows rows;
      for (int i = 0; i < transactions; i++) {
        RowKeys keys;
        for (size_t n = own() % 5; n > 0; n--) keys.insert(number(static_cast<uint64_t>(t) << 32 | own() % 1000000));
        for (const std::string &key : keys) rows.note(9, key);
        const bool commits = own() % 3 != 0, prepares = own() % 2;
        const std::string xid = std::to_string(t) + "-" + std::to_string(i);
        if (prepares) rows.prepared(xid);
        if (prepares && own() % 2) {
          rows.forget();
          RowLog::prepared_ended(xid, commits);
        } else {
          commits ? rows.committed() : rows.rolled_back();
        }
        if (commits) committed[static_cast<size_t>(t)].merge(keys);
      }
    });
  RowKeys taken, all;
  for (int i = 0; i < 100; i++) taken.merge(log->take());
  for (std::thread &t : threads) t.join();
  taken.merge(log->take());
  for (RowKeys &keys : committed) all.merge(keys);
  CHECK(taken == all && log->take_all().empty() && !log->is_too_big());
  RowLog::end(9);
}

}  // namespace

int main(int argc, char **argv) {
  seed = argc > 1 ? strtoull(argv[1], nullptr, 10) : 20261122;
  rng.seed(seed);
  const int rounds = getenv("KINGTIDE_FULL") ? 50000 : 2000;
  entries_come_sorted(rounds);
  what_cannot_be_written_is_an_error();
  logs_keep_what_was_committed();
  room_is_given_back();
  nothing_is_lost(rounds * 10);
  printf("build_test: %d sorts, %d transactions, seed %llu\n", rounds, rounds * 40, static_cast<unsigned long long>(seed));
  return 0;
}
