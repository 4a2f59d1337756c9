/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "server.h"

namespace kingtide {

/** For the variable kingtide_backup: makes a copy of the database in the directory that it is set to. */
int make_backup(MYSQL_THD thd, st_mysql_sys_var *variable, void *save, st_mysql_value *value);

/** For the handlerton: a session executed BACKUP STAGE START or BACKUP STAGE END. */
void begin_backup_stages();
void end_backup_stages();

/**
  mariadb-backup copies the definitions of the engine's tables and not their rows. What it is known by is FLUSH ENGINE LOGS in the
  middle of another session's backup stages. True, with an error, if it must not go on.
*/
bool refuse_mariadb_backup(THD *thd);

}  // namespace kingtide
