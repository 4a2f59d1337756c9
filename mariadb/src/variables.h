/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "server.h"

#include <algorithm>
#include <vector>

#include "engine.h"

namespace kingtide {

/** For the plugin's declaration. */
extern st_mysql_sys_var *system_variables[];

/** How long a statement waits for a lock, as Txn::begin takes it. */
int64_t lock_wait_timeout_ms(THD *thd);
bool rollback_on_timeout();
bool ignore_foreign_keys();
bool allow_mariadb_backup();
uint64_t transaction_memory();
size_t sort_memory();
uint64_t online_alter_log_max_size();
Durability commit_durability();
/** Seconds that rows live that the session writes; 0 if their tables say. */
uint64_t session_ttl(THD *thd);
/** The variable that has the default of the table option COMPRESSION. */
st_mysql_sys_var *default_compression();
/** Where the database is: an absolute path. */
std::string database_path();
/** What the database is opened with. */
std::vector<Engine::Option> engine_options();

}  // namespace kingtide
