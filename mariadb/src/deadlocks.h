/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <string>

struct kingtide_deadlock;

/** The latest deadlock, for SHOW ENGINE KINGTIDE STATUS. */
namespace kingtide {

/** For the engine: stores the text of a deadlock, replacing the previous one. */
void note_deadlock(void *, const kingtide_deadlock *deadlock);

/** The latest deadlock, in a section like InnoDB's. Empty if there was none since the server started. */
std::string latest_deadlock();

}  // namespace kingtide
