/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "variables.h"

#include "backup.h"
#include "guard.h"
#include "options.h"

/** Tells the server that a directory is not a database. A function of the server that no header declares. */
bool ignore_db_dirs_append(const char *directory);

namespace kingtide {
namespace {

MYSQL_THDVAR_ULONG(lock_wait_timeout, PLUGIN_VAR_RQCMDARG,
                   "Seconds that a statement waits for a row lock before it fails with ER_LOCK_WAIT_TIMEOUT; 0 means no wait",
                   nullptr, nullptr, 50, 0, 1024 * 1024 * 1024, 0);

my_bool rollback_on_timeout_value;
MYSQL_SYSVAR_BOOL(rollback_on_timeout, rollback_on_timeout_value, PLUGIN_VAR_OPCMDARG | PLUGIN_VAR_READONLY,
                  "Roll back the whole transaction, not only the statement, when a wait for a lock times out", nullptr,
                  nullptr, FALSE);

uint flush_log_value;
MYSQL_SYSVAR_UINT(flush_log_at_trx_commit, flush_log_value, PLUGIN_VAR_RQCMDARG,
                  "What a commit survives: 1 a power cut, 0 or 2 a crash of the server", nullptr, nullptr, 1,
                  0, 2, 0);

char *directory_value;
MYSQL_SYSVAR_STR(data_dir, directory_value, PLUGIN_VAR_READONLY | PLUGIN_VAR_RQCMDARG,
                 "Directory of the engine's database, absolute or below the server's data directory", nullptr, nullptr,
                 "#kingtide");

ulonglong cache_value;
MYSQL_SYSVAR_ULONGLONG(cache_size, cache_value, PLUGIN_VAR_READONLY | PLUGIN_VAR_RQCMDARG,
                       "Size of the block cache in bytes", nullptr, nullptr, 128ULL << 20, 1ULL << 20,
                       ULLONG_MAX, 0);

ulonglong transaction_memory_value;
MYSQL_SYSVAR_ULONGLONG(transaction_memory, transaction_memory_value, PLUGIN_VAR_READONLY | PLUGIN_VAR_RQCMDARG,
                       "Bytes of uncommitted writes that transactions may hold in memory; a statement that needs more fails with "
                       "ER_LOCK_TABLE_FULL",
                       nullptr, nullptr, 1ULL << 30, 1ULL << 20, ULLONG_MAX, 0);

ulonglong sort_memory_value;
MYSQL_SYSVAR_ULONGLONG(sort_memory, sort_memory_value, PLUGIN_VAR_RQCMDARG,
                       "Bytes of memory for sorting the entries of a new index before files in tmpdir are used", nullptr,
                       nullptr, 64ULL << 20, 64ULL << 10, 1ULL << 40, 0);

ulonglong online_alter_log_value;
MYSQL_SYSVAR_ULONGLONG(online_alter_log_max_size, online_alter_log_value, PLUGIN_VAR_RQCMDARG,
                       "Limit in bytes for the keys of rows that others change while an index is added; beyond it the ALTER "
                       "TABLE fails with ER_INNODB_ONLINE_LOG_TOO_BIG",
                       nullptr, nullptr, 128ULL << 20, 64ULL << 10, 1ULL << 40, 0);

my_bool ignore_foreign_keys_value;
MYSQL_SYSVAR_BOOL(ignore_foreign_keys, ignore_foreign_keys_value, PLUGIN_VAR_OPCMDARG,
                  "Ignore FOREIGN KEY clauses instead of refusing them", nullptr,
                  nullptr, FALSE);

my_bool allow_mariadb_backup_value;
MYSQL_SYSVAR_BOOL(allow_mariadb_backup, allow_mariadb_backup_value, PLUGIN_VAR_OPCMDARG,
                  "Let mariadb-backup copy a server that has tables of this engine, without their rows, instead of refusing it",
                  nullptr, nullptr, FALSE);

const char *compressions[] = {"default", "none", "lz4", "lz4-fast", "zstd", "snappy", nullptr};
TYPELIB compression_names = [] {  // newer servers have more members than these
  TYPELIB names{};
  names.count = array_elements(compressions) - 1, names.name = "", names.type_names = compressions;
  return names;
}();
MYSQL_THDVAR_ENUM(default_compression, PLUGIN_VAR_RQCMDARG,
                  "COMPRESSION of new tables without that option: none, lz4, lz4-fast, zstd, snappy, or default for that of the "
                  "engine's family \"rows\"",
                  nullptr, nullptr, 0, &compression_names);

MYSQL_THDVAR_ULONGLONG(ttl, PLUGIN_VAR_RQCMDARG,
                       "Lifetime in seconds of the rows that the session writes; 0 to use the options of their tables", nullptr,
                       nullptr, 0, 0, LONGEST_LIFE, 0);

char *options_value;
MYSQL_SYSVAR_STR(options, options_value, PLUGIN_VAR_READONLY | PLUGIN_VAR_RQCMDARG,
                 "Further options of the engine, as name=value;name=value", nullptr, nullptr, "");

char *backup_value;
MYSQL_SYSVAR_STR(backup, backup_value, PLUGIN_VAR_RQCMDARG | PLUGIN_VAR_NOCMDOPT | PLUGIN_VAR_MEMALLOC,
                 "Path of an empty or absent directory, in which setting it makes a copy of the engine's database as of "
                 "one moment; shows the last one",
                 (&Guarded<make_backup, 1, 1>::call), nullptr, nullptr);

/**
  Whether the statement has WAIT n or NOWAIT. The server turns both into variables of the statement: lock_wait_timeout, which is for
  metadata locks, and InnoDB's variable for row locks if InnoDB is there. SET STATEMENT lock_wait_timeout sets the first only, and
  so is no request for rows, but without InnoDB it cannot be told from WAIT n.
*/
bool statement_has_wait(THD *thd) {
  bool own = false, rows = false;
  List_iterator_fast<set_var_base> variables(thd->lex->stmt_var_list);
  while (const set_var_base *one = variables++) {  // the list has only system variables
    const char *name = static_cast<const set_var *>(one)->var->name.str;
    own |= !strcmp(name, "lock_wait_timeout");
    rows |= !strcmp(name, "innodb_lock_wait_timeout");
  }
  if (!own || rows) return own;
  const LEX_CSTRING innodb = {STRING_WITH_LEN("InnoDB")};
  return !plugin_is_ready(&innodb, MYSQL_STORAGE_ENGINE_PLUGIN);
}

std::vector<std::string> option_names;  // the engine's options keep pointers to them

}  // namespace

st_mysql_sys_var *system_variables[] = {MYSQL_SYSVAR(lock_wait_timeout),
                                        MYSQL_SYSVAR(rollback_on_timeout),
                                        MYSQL_SYSVAR(flush_log_at_trx_commit),
                                        MYSQL_SYSVAR(data_dir),
                                        MYSQL_SYSVAR(cache_size),
                                        MYSQL_SYSVAR(transaction_memory),
                                        MYSQL_SYSVAR(sort_memory),
                                        MYSQL_SYSVAR(online_alter_log_max_size),
                                        MYSQL_SYSVAR(ignore_foreign_keys),
                                        MYSQL_SYSVAR(allow_mariadb_backup),
                                        MYSQL_SYSVAR(default_compression),
                                        MYSQL_SYSVAR(ttl),
                                        MYSQL_SYSVAR(options),
                                        MYSQL_SYSVAR(backup),
                                        nullptr};

int64_t lock_wait_timeout_ms(THD *thd) {
  const ulong seconds = statement_has_wait(thd) ? thd->variables.lock_wait_timeout : THDVAR(thd, lock_wait_timeout);
  return seconds == 0 ? NO_WAIT : static_cast<int64_t>(seconds) * 1000;
}

size_t sort_memory() { return sort_memory_value; }

uint64_t online_alter_log_max_size() { return online_alter_log_value; }

uint64_t transaction_memory() { return transaction_memory_value; }

uint64_t session_ttl(THD *thd) { return THDVAR(thd, ttl); }

st_mysql_sys_var *default_compression() { return MYSQL_SYSVAR(default_compression); }

bool ignore_foreign_keys() { return ignore_foreign_keys_value; }

bool allow_mariadb_backup() { return allow_mariadb_backup_value; }

bool rollback_on_timeout() { return rollback_on_timeout_value; }

Durability commit_durability() { return flush_log_value == 1 ? Durability::Power : Durability::Process; }

std::string database_path() {
  const char *dir = directory_value && *directory_value ? directory_value : "#kingtide";
  if (dir[0] != '/') ignore_db_dirs_append(dir);
  return dir[0] == '/' ? dir : std::string(mysql_real_data_home) + "/" + dir;
}

std::vector<Engine::Option> engine_options() {
  std::vector<Engine::Option> all = {{"block_cache_size", std::to_string(cache_value)},
                                     {"transaction_memory", std::to_string(transaction_memory_value)},
                                     // Rows are mostly short texts and numbers: zstd halves them, lz4 saves almost nothing.
                                     {"compression", "zstd"},
                                     // A little more than twice the size of the memtable, so as not to fill the disk with old log.
                                     {"max_wal_size", std::to_string(160ULL << 20)},
                                     // A transaction of SQL ends only when its session ends it.
                                     {"transaction_timeout_ms", "0"}};
  const std::string text = options_value ? options_value : "";
  option_names.clear();
  option_names.reserve(std::count(text.begin(), text.end(), ';') + 1);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(';', at), text.size());
    const std::string one = text.substr(at, end - at);
    const size_t equals = std::min(one.find('='), one.size());
    if (!one.empty()) {  // one without '=' has no value that the engine takes
      option_names.push_back(one.substr(0, equals));
      all.push_back({option_names.back().c_str(), one.substr(std::min(equals + 1, one.size()))});
    }
    at = end + 1;
  }
  return all;
}

}  // namespace kingtide
