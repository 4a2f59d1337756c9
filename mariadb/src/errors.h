/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "server.h"

#include "engine.h"

namespace kingtide {

/**
  The server's number for an outcome. Marks the transaction for rollback where the engine rolled it back, or where InnoDB does,
  and writes to the log what an administrator must know.
*/
int server_error(THD *thd, Outcome outcome);

}  // namespace kingtide
