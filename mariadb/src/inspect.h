/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct kingtide_deadlock;

/** Information about the engine: transactions, locks, and the shape of its trees, each as of one moment. */
namespace kingtide {

/** A key or key range that is locked, or that a transaction wants to lock. */
struct LockedKeys {
  std::string family;
  bool exclusive = false, range = false;
  /** The key; or where the range begins, and where it ends. An end that is open is empty. */
  std::string lower, upper;
  bool lower_excluded = false, upper_included = false;
};

struct LockHeld : LockedKeys {
  uint64_t transaction = 0;
};

struct LockWanted : LockedKeys {
  /** 0 for a change outside of transactions, as of a table's definition. */
  uint64_t waiter = 0;
  std::vector<uint64_t> holders;
  uint64_t microseconds = 0;
};

/** A transaction of a deadlock: what it waits for, and the lock of the next one that stands in its way. */
struct DeadlockStep {
  uint64_t waiter = 0, holder = 0;
  LockedKeys wanted, held;
};

struct TransactionSeen {
  uint64_t id = 0, writes = 0;
  bool prepared = false;
};

struct LevelShape {
  uint64_t level = 0, runs = 0, files = 0, bytes = 0, entries = 0, tombstones = 0;
};

struct FamilyShape {
  std::string name;
  uint64_t active_bytes = 0, immutable_memtables = 0, memtable_entries = 0, value_log_bytes = 0, value_log_dead_bytes = 0;
  std::vector<LevelShape> levels;
};

std::vector<TransactionSeen> list_transactions();
std::vector<LockHeld> list_locks();
std::vector<LockWanted> list_lock_waits();
std::vector<FamilyShape> list_families();
/** The steps of a deadlock, of which the first transaction is the victim. The names of the families are not looked up. */
std::vector<DeadlockStep> steps_of(const kingtide_deadlock *deadlock);

}  // namespace kingtide
