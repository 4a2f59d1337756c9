/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "server.h"

namespace kingtide {

/** Reports to the server which connection waits for which other one, and that a thread waits for the disk. */
class LockWaits {
 public:
  /** Starts to report waits and to note the engine's deadlocks. */
  static void begin_to_report();
  /** A number that grows whenever this thread waits for a lock. */
  static uint64_t of_this_thread();
  /** Called before a connection's transaction takes its first lock. Until `over`, the connection may be reported to the server. */
  static void running(uint64_t transaction, THD *thd);
  static void over(uint64_t transaction);
};

}  // namespace kingtide
