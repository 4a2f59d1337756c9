/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct kingtide_deadlock;

/** Information about the engine: transactions, locks, and the shape of its trees. Each list shows one moment. */
namespace kingtide {

/** A key or key range that a transaction has locked or waits to lock. */
struct LockedKeys {
  std::string family;
  bool exclusive = false, range = false;
  /** The key (`lower`), or the bounds of the range. A bound is empty if the range is unbounded there. */
  std::string lower, upper;
  bool lower_excluded = false, upper_included = false;
};

struct LockHeld : LockedKeys {
  uint64_t transaction = 0;
};

struct LockWanted : LockedKeys {
  /** The waiting transaction; 0 for a change outside of transactions, such as one of a table's definition. */
  uint64_t waiter = 0;
  std::vector<uint64_t> holders;
  uint64_t microseconds = 0;
};

/** A transaction of a deadlock: the lock that it waits for, and the conflicting lock of the next transaction. */
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
/** Returns the steps of a deadlock. The first transaction is the victim. The names of the families are left empty. */
std::vector<DeadlockStep> steps_of(const kingtide_deadlock *deadlock);

}  // namespace kingtide
