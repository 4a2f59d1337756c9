/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/*
  Copies of the database by SET GLOBAL kingtide_backup = 'directory', and the refusal of mariadb-backup. A copy is made where the
  variable is checked and not where it is set, because only a check can fail.
*/
#include "backup.h"

#include <atomic>

#include "dictionary.h"
#include "engine.h"
#include "variables.h"

namespace kingtide {
namespace {

/** Whether a session is between BACKUP STAGE START and END. Only one can be. */
std::atomic<bool> in_backup_stages{false};

}  // namespace

void begin_backup_stages() { in_backup_stages = true; }
void end_backup_stages() { in_backup_stages = false; }

bool refuse_mariadb_backup(THD *thd) {
  // Not for FLUSH LOGS, which also flushes the engines' logs.
  if (!thd || !in_backup_stages || thd_sql_command(thd) != SQLCOM_FLUSH || !(thd->lex->type & REFRESH_ENGINE_LOG)) return false;
  size_t tables = 0;
  Dictionary::visit([&](const std::string &name, const TableRecord &) { tables += name[0] != '/'; });  // temporary tables do not count
  if (tables == 0) return false;
  if (allow_mariadb_backup()) {
    sql_print_warning("KINGTIDE: mariadb-backup does not copy the engine's rows (tables: %zu); SET GLOBAL kingtide_backup does", tables);
    return false;
  }
  my_printf_error(ER_NOT_SUPPORTED_YET,
                  "KINGTIDE: mariadb-backup does not copy the engine's rows (tables: %zu). Copy them with SET GLOBAL kingtide_backup, or "
                  "dump them; kingtide_allow_mariadb_backup=ON lets mariadb-backup copy the rest",
                  MYF(0), tables);
  return true;
}

int make_backup(MYSQL_THD thd, st_mysql_sys_var *, void *save, st_mysql_value *value) {
  char buffer[FN_REFLEN];
  int length = sizeof buffer;
  const char *given = value->val_str(value, buffer, &length);
  *static_cast<const char **>(save) = nullptr;
  if (!given || length == 0) return 0;  // no directory, no copy
  const std::string directory(given, static_cast<size_t>(length));
  if (directory[0] != '/' || directory.find('\0') != std::string::npos) {
    my_printf_error(ER_WRONG_ARGUMENTS, "Incorrect arguments to kingtide_backup: '%s' is not the path of a directory from / on",
                    MYF(0), directory.c_str());
    return 1;
  }
  if (Engine::checkpoint(directory) != Outcome::Ok) {
    my_printf_error(ER_CANT_CREATE_FILE, "KINGTIDE: backup into '%s' failed: %s", MYF(0), directory.c_str(), last_message());
    return 1;
  }
  sql_print_information("KINGTIDE: a backup was made in %s", directory.c_str());
  *static_cast<const char **>(save) = thd_strmake(thd, directory.data(), directory.size());
  return 0;
}

}  // namespace kingtide
