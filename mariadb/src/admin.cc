/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/* ANALYZE and OPTIMIZE TABLE. CHECK and REPAIR are in check.cc. */
#include "ha_kingtide.h"

namespace kingtide {
namespace {

/** Number of entries after which to check whether the statement was killed. */
constexpr uint64_t LOOK_UP = 1024;
/** Number of places in each index at which ANALYZE samples keys. */
constexpr size_t PLACES = 256;

}  // namespace

int Handler::analyze(THD *thd, HA_CHECK_OPT *) {
  Iter it;
  uint64_t rows = 0;
  const Index &primary = format().primary;
  if (Engine::iterate(Space::Rows, primary.prefix(), primary.end(), &it) != Outcome::Ok) return HA_ADMIN_FAILED;
  it.only_keys();
  for (bool valid = it.first(); valid; valid = it.next(), rows++)
    if (rows % LOOK_UP == 0 && thd_kill_level(thd) != THD_IS_NOT_KILLED) return HA_ADMIN_FAILED;
  if (it.status() != Outcome::Ok) return HA_ADMIN_CORRUPT;
  if (share_->analyze(rows, PLACES) != Outcome::Ok) return HA_ADMIN_FAILED;
  info(HA_STATUS_CONST | HA_STATUS_VARIABLE);
  return HA_ADMIN_OK;
}

int Handler::optimize(THD *thd, HA_CHECK_OPT *options) {
  const TableRecord &r = share_->record();
  std::vector<uint32_t> ids = r.keys;
  if (format().hidden_primary) ids.push_back(r.primary);
  for (uint32_t id : ids) {
    Index index;
    index.id = id;
    if (Engine::compact(index.prefix(), index.end()) != Outcome::Ok) {
      sql_print_error("KINGTIDE: OPTIMIZE TABLE: %s", last_message());
      return HA_ADMIN_FAILED;
    }
  }
  return analyze(thd, options);
}

}  // namespace kingtide
