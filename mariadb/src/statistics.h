/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "server.h"

namespace kingtide {

/** The status variables, for the plugin's declaration. */
extern st_mysql_show_var status_variables[];

/** Executes SHOW ENGINE KINGTIDE STATUS, for the handlerton. */
bool show_status(handlerton *hton, THD *thd, stat_print_fn *print, ha_stat_type what);

}  // namespace kingtide
