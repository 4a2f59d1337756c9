/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "server.h"

namespace kingtide {

/** For the variable kingtide_backup: makes a copy of the database in the directory that it is set to. */
int make_backup(MYSQL_THD thd, st_mysql_sys_var *variable, void *save, st_mysql_value *value);

}  // namespace kingtide
