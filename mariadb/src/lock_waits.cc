/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/*
  Reports lock waits to the server. A replica that applies transactions in parallel commits them in the order of the primary. A
  transaction that holds locks and waits for its turn to commit must therefore not block an earlier one. The engine does not know
  that order, so each wait is reported to the server. If necessary, the server kills the later transaction, which interrupts it
  here, and applies it again.

  The server examines the connection that holds the lock. Meanwhile that connection must not begin another transaction, let alone
  close, so it is reported under a mutex that is also taken at the end of its transaction.

  The server's thread pool must know of waits, also of those for the disk: it runs only a few threads at a time, and the holder of the lock may
  need one. Another thread's commit may join the same sync.
*/
#include "lock_waits.h"

#include <mutex>
#include <unordered_map>

#include "deadlocks.h"
#include "engine.h"
#include "guard.h"

/** Functions of the server that no header declares. */
extern "C" int thd_rpl_deadlock_check(MYSQL_THD thd, MYSQL_THD other);
extern "C" int thd_need_wait_reports(const MYSQL_THD thd);

namespace kingtide {
namespace {

/** A part of the running transactions. There are several, because each transaction takes a mutex twice. */
struct Shard {
  std::mutex mutex;
  std::unordered_map<uint64_t, THD *> connections;
};

thread_local uint64_t calls = 0;

constexpr size_t SHARDS = 32;
Shard shards[SHARDS];

/** Transactions that run at the same time differ in the lower bits of their ids, which spreads them over the shards. */
Shard &shard_of(uint64_t transaction) { return shards[transaction % SHARDS]; }

/** Called on the waiting thread, before it waits and from time to time while it waits. */
void report(void *, uint64_t, const uint64_t *holders, size_t count) {
  calls++;
  THD *waiter = current_thd;
  if (!waiter || !thd_need_wait_reports(waiter)) return;
  for (size_t i = 0; i < count; i++) {
    Shard &shard = shard_of(holders[i]);
    std::lock_guard<std::mutex> guard(shard.mutex);
    const auto holder = shard.connections.find(holders[i]);
    if (holder != shard.connections.end()) thd_rpl_deadlock_check(waiter, holder->second);
  }
}

}  // namespace

void LockWaits::begin_to_report() {
  Engine::WaitHooks hooks;
  hooks.waits = &Guarded<report>::call;
  hooks.deadlock = &Guarded<note_deadlock>::call;
  hooks.wait_begins = [](WaitFor what) { thd_wait_begin(nullptr, what == WaitFor::Lock ? THD_WAIT_ROW_LOCK : THD_WAIT_GROUP_COMMIT); };
  hooks.wait_ended = [] { thd_wait_end(nullptr); };
  Engine::watch_waits(hooks);
}

uint64_t LockWaits::of_this_thread() { return calls; }

void LockWaits::running(uint64_t transaction, THD *thd) {
  Shard &shard = shard_of(transaction);
  std::lock_guard<std::mutex> guard(shard.mutex);
  shard.connections[transaction] = thd;
}

void LockWaits::over(uint64_t transaction) {
  Shard &shard = shard_of(transaction);
  std::lock_guard<std::mutex> guard(shard.mutex);
  shard.connections.erase(transaction);
}

}  // namespace kingtide
