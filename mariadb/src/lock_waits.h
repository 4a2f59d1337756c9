/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "server.h"

namespace kingtide {

/** Tells the server which connection waits for which other one. */
class LockWaits {
 public:
  /** From now on the engine's waits are reported, and its deadlocks noted. */
  static void begin_to_report();
  /** A connection's transaction begins to take locks, and is over. Between the two, its connection may be named to the server. */
  static void running(uint64_t transaction, THD *thd);
  static void over(uint64_t transaction);
};

}  // namespace kingtide
