/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/*
  SET GLOBAL kingtide_backup = 'directory'. The work is done where the variable is checked and not where it is set, because only
  a check can fail.
*/
#include "backup.h"

#include "engine.h"

namespace kingtide {

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
    my_printf_error(ER_CANT_CREATE_FILE, "KINGTIDE: no backup in '%s': %s", MYF(0), directory.c_str(), last_message());
    return 1;
  }
  sql_print_information("KINGTIDE: a backup was made in %s", directory.c_str());
  *static_cast<const char **>(save) = thd_strmake(thd, directory.data(), directory.size());
  return 0;
}

}  // namespace kingtide
