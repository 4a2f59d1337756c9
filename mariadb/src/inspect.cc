/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "inspect.h"

#include <kingtide.h>

#include <map>

#include "engine.h"

namespace kingtide {
namespace {

/** Calls `visit` with each item of a list of the database. Does nothing if the database is closed or returns an error. */
template <typename List, typename Info, typename Visit>
void each(kingtide_status (*ask)(const kingtide_db *, List **, kingtide_error **),
          bool (*get)(const List *, size_t, Info *), void (*free)(List *), Visit visit) {
  Engine::with_handle([&](kingtide_db *db) {
    List *list = nullptr;
    kingtide_error *error = nullptr;
    if (ask(db, &list, &error) == KINGTIDE_OK) {
      Info info = {};
      info.size = sizeof info;
      for (size_t i = 0; get(list, i, &info); i++) visit(info);
    }
    kingtide_error_free(error);
    free(list);
  });
}

/** The names of the families by their numbers, loaded once for a listing. */
class FamilyNames {
 public:
  const std::string &of(uint32_t id) {
    if (names_.empty()) load();
    return names_[id];
  }

 private:
  void load() {
    Engine::with_handle([this](kingtide_db *db) {
      kingtide_strings *all = nullptr;
      kingtide_error *error = nullptr;
      const bool listed = kingtide_db_families(db, &all, &error) == KINGTIDE_OK;
      for (size_t i = 0; listed && i < kingtide_strings_count(all); i++) {
        const char *name = kingtide_strings_get(all, i, nullptr);
        kingtide_family *family = nullptr;
        kingtide_error *gone = nullptr;
        if (kingtide_db_family(db, name, &family, &gone) == KINGTIDE_OK) names_[kingtide_family_id(family)] = name;
        kingtide_error_free(gone);
        kingtide_family_free(family);
      }
      kingtide_error_free(error);
      kingtide_strings_free(all);
    });
    names_[UINT32_MAX];  // no family has this number; with it, the map is not empty and is not loaded again
  }

  std::map<uint32_t, std::string> names_;
};

template <typename Info>
void describe(const Info &info, FamilyNames *names, LockedKeys *out) {
  if (names) out->family = names->of(info.family);
  out->exclusive = info.mode == KINGTIDE_LOCK_EXCLUSIVE;
  out->range = info.is_range;
  if (info.lower.kind != KINGTIDE_UNBOUNDED) out->lower.assign(static_cast<const char *>(info.lower.key), info.lower.key_len);
  if (info.upper.kind != KINGTIDE_UNBOUNDED) out->upper.assign(static_cast<const char *>(info.upper.key), info.upper.key_len);
  out->lower_excluded = info.lower.kind == KINGTIDE_EXCLUDED;
  out->upper_included = info.upper.kind == KINGTIDE_INCLUDED;
}

}  // namespace

std::vector<TransactionSeen> list_transactions() {
  std::vector<TransactionSeen> all;
  each(kingtide_db_transactions, kingtide_txn_list_get, kingtide_txn_list_free, [&](const kingtide_txn_info &info) {
    TransactionSeen t;
    t.id = info.id;
    t.writes = info.writes;
    t.prepared = info.xid != nullptr;
    all.push_back(t);
  });
  return all;
}

std::vector<LockHeld> list_locks() {
  std::vector<LockHeld> all;
  FamilyNames names;
  each(kingtide_db_locks, kingtide_lock_list_get, kingtide_lock_list_free, [&](const kingtide_lock_info &info) {
    LockHeld lock;
    describe(info, &names, &lock);
    lock.transaction = info.txn;
    all.push_back(lock);
  });
  return all;
}

std::vector<LockWanted> list_lock_waits() {
  std::vector<LockWanted> all;
  FamilyNames names;
  each(kingtide_db_lock_waits, kingtide_lock_wait_list_get, kingtide_lock_wait_list_free,
       [&](const kingtide_lock_wait_info &info) {
         LockWanted wait;
         describe(info, &names, &wait);
         wait.waiter = info.waiter;
         wait.holders.assign(info.holders, info.holders + info.holder_count);
         wait.microseconds = info.waited_us;
         all.push_back(wait);
       });
  return all;
}

std::vector<DeadlockStep> steps_of(const kingtide_deadlock *deadlock) {
  std::vector<DeadlockStep> all;
  kingtide_lock_info wanted = {}, held = {};
  wanted.size = held.size = sizeof wanted;
  for (size_t i = 0; kingtide_deadlock_wanted(deadlock, i, &wanted) && kingtide_deadlock_held(deadlock, i, &held); i++) {
    DeadlockStep step;
    step.waiter = wanted.txn;
    step.holder = held.txn;
    describe(wanted, nullptr, &step.wanted);
    describe(held, nullptr, &step.held);
    all.push_back(step);
  }
  return all;
}

std::vector<FamilyShape> list_families() {
  std::vector<FamilyShape> all;
  Engine::with_handle([&](kingtide_db *db) {
    kingtide_stats *stats = nullptr;
    kingtide_error *error = nullptr;
    const bool taken = kingtide_db_stats(db, &stats, &error) == KINGTIDE_OK;
    kingtide_family_stats f = {};
    f.size = sizeof f;
    for (size_t i = 0; taken && kingtide_stats_family(stats, i, &f); i++) {
      FamilyShape shape;
      shape.name = f.name;
      shape.active_bytes = f.active_bytes;
      shape.immutable_memtables = f.immutable_memtables;
      shape.memtable_entries = f.memtable_entries;
      shape.value_log_bytes = f.vlog_bytes;
      shape.value_log_dead_bytes = f.vlog_dead_bytes;
      kingtide_level_stats l = {};
      l.size = sizeof l;
      for (size_t k = 0; kingtide_stats_level(stats, i, k, &l); k++)
        shape.levels.push_back({l.level, l.runs, l.files, l.bytes, l.entries, l.tombstones});
      all.push_back(shape);
    }
    kingtide_error_free(error);
    kingtide_stats_free(stats);
  });
  return all;
}

}  // namespace kingtide
