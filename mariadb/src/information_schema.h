/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "server.h"

namespace kingtide {

/** For the plugins' declaration. */
extern st_mysql_information_schema information_schema;

/* What makes each table of INFORMATION_SCHEMA; their columns are described where these are defined. */
int init_schema_trx(void *table);
int init_schema_locks(void *table);
int init_schema_lock_waits(void *table);
int init_schema_families(void *table);
int init_schema_levels(void *table);
int init_schema_tables(void *table);

}  // namespace kingtide
