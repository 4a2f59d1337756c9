/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/* Status variables and SHOW ENGINE KINGTIDE STATUS: the engine's statistics, under the engine's names. */
#include "statistics.h"

#include "deadlocks.h"
#include "engine.h"
#include "guard.h"
#include "inspect.h"

namespace kingtide {
namespace {

int show_all(MYSQL_THD thd, st_mysql_show_var *variable, void *, system_status_var *, enum_var_type) {
  const std::vector<Engine::Statistic> all = Engine::statistics();
  auto *shown = static_cast<st_mysql_show_var *>(thd_calloc(thd, (all.size() + 1) * sizeof(st_mysql_show_var)));
  auto *values = static_cast<ulonglong *>(thd_calloc(thd, (all.size() + 1) * sizeof(ulonglong)));
  if (!shown || !values) return 1;
  for (size_t i = 0; i < all.size(); i++) {
    values[i] = all[i].value;
    shown[i].name = all[i].name;
    shown[i].value = &values[i];
    shown[i].type = SHOW_LONGLONG;
  }
  variable->type = SHOW_ARRAY;
  variable->value = shown;
  return 0;
}

}  // namespace

st_mysql_show_var status_variables[] = {
    {"Kingtide", reinterpret_cast<void *>(&Guarded<show_all, 1, 1>::call), SHOW_FUNC},
    {nullptr, nullptr, SHOW_UNDEF},
};

bool show_status(handlerton *hton, THD *thd, stat_print_fn *print, ha_stat_type what) {
  if (what != HA_ENGINE_STATUS) return false;
  std::string text = Engine::report();
  if (const std::string deadlock = latest_deadlock(); !deadlock.empty()) text += "\n" + deadlock;
  const std::vector<LockWanted> waits = list_lock_waits();
  text += "\nwaits for locks: " + std::to_string(waits.size()) + "\n";
  for (const LockWanted &w : waits) {
    char key[2 * 40 + 1] = "";
    const size_t shown = std::min<size_t>(w.lower.size(), 40);
    for (size_t i = 0; i < shown; i++) snprintf(key + 2 * i, 3, "%02X", static_cast<uchar>(w.lower[i]));
    text += "  transaction " + std::to_string(w.waiter) + " waits for transaction " +
            std::to_string(w.holders.empty() ? 0 : w.holders[0]) + ", " + std::to_string(w.microseconds / 1000) + " ms, " +
            (w.exclusive ? "exclusive" : "shared") + ", key " + key + "\n";
  }
  return print(thd, STRING_WITH_LEN("KINGTIDE"), "", 0, text.data(), text.size());
}

}  // namespace kingtide
