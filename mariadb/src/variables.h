/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "server.h"

#include <algorithm>
#include <vector>

#include "engine.h"

namespace kingtide {

/** The system variables, for the plugin's declaration. */
extern st_mysql_sys_var *system_variables[];

/** Returns how long a statement waits for a lock, in the form that Txn::begin expects. */
int64_t lock_wait_timeout_ms(THD *thd);
bool rollback_on_timeout();
bool ignore_foreign_keys();
bool allow_mariadb_backup();
uint64_t transaction_memory();
size_t sort_memory();
uint64_t online_alter_log_max_size();
Durability commit_durability();
/** Returns the lifetime in seconds of rows that the session writes; 0 to use the options of their tables. */
uint64_t session_ttl(THD *thd);
/** Returns the variable that holds the default of the table option COMPRESSION. */
st_mysql_sys_var *default_compression();
/** Returns the absolute path of the database. */
std::string database_path();
/** Returns the options with which to open the database. */
std::vector<Engine::Option> engine_options();

}  // namespace kingtide
