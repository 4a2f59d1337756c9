/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/*
  Who waits for whom, for the server. It commits what a replica applies in parallel in the order of the primary: a transaction
  that has locks and waits for its turn must not keep an earlier one waiting for those. The engine does not know of that order.
  So each wait is reported to the server; it kills the later one, which interrupts it here, and applies it again.

  The server looks into the connection that holds a lock. It must not begin with another transaction meanwhile, much less
  end: so it is named under a mutex that the end of its transaction takes.
*/
#include "lock_waits.h"

#include <mutex>
#include <unordered_map>

#include "deadlocks.h"
#include "engine.h"
#include "guard.h"

/** Of the server, which declares them in no header. */
extern "C" int thd_rpl_deadlock_check(MYSQL_THD thd, MYSQL_THD other);
extern "C" int thd_need_wait_reports(const MYSQL_THD thd);

namespace kingtide {
namespace {

/** Some of the running transactions: their mutex is taken twice in each transaction, so it is not one for all. */
struct Shard {
  std::mutex mutex;
  std::unordered_map<uint64_t, THD *> connections;
};

constexpr size_t SHARDS = 32;
Shard shards[SHARDS];

/** Ids of transactions that run at the same time differ in their lower bits. */
Shard &shard_of(uint64_t transaction) { return shards[transaction % SHARDS]; }

/** On the thread that is going to wait, and now and then while it does. */
void report(void *, uint64_t, const uint64_t *holders, size_t count) {
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

void LockWaits::begin_to_report() { Engine::watch_locks(&Guarded<report>::call, &Guarded<note_deadlock>::call); }

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
