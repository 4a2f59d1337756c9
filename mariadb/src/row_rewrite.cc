/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "row_rewrite.h"

#include <algorithm>

#include "errors.h"
#include "ha_kingtide.h"
#include "slices.h"

namespace kingtide {
namespace {

/** Number of rows after which to check whether the statement was killed. It is also checked after each slice. */
constexpr uint64_t LOOK_UP = 1024;

int killed(THD *thd) { return thd_kill_level(thd) != THD_IS_NOT_KILLED ? HA_ERR_ABORTED_BY_USER : 0; }

}  // namespace

int rewrite_rows(THD *thd, TABLE *altered, const TableShare &share, const TableRecord &after) {
  // Both describe the altered table's record: with another ROW_FORMAT, columns and NULL bits have other places in it than before.
  const TableFormat before(altered, share.record()), newest(altered, after);
  if (!before.fits || !newest.fits) return HA_ERR_TABLE_DEF_CHANGED;
  std::vector<uchar> record(altered->s->reclength);
  std::string key, buffer;
  Slices slices;
  Iter it;
  Outcome o = slices.begin(1);
  if (o == Outcome::Ok) o = Engine::iterate(Space::Rows, before.primary.prefix(), before.primary.end(), &it);
  uint64_t done = 0;
  for (bool valid = o == Outcome::Ok && it.first(); valid && o == Outcome::Ok; valid = it.next()) {
    if (++done % LOOK_UP == 0 || slices.between()) {
      thd_progress_report(thd, done, std::max<uint64_t>(done, share.rows()));
      if (const int error = killed(thd)) return error;
    }
    Slice value;
    if ((o = it.value(&value)) != Outcome::Ok) break;
    if (!before.row.decode(value, record.data(), altered->s->default_values)) {
      o = failed(Outcome::Corruption, "a row of " + share.name() + " is in an unknown format");
      break;
    }
    key = newest.primary.prefix();
    append(key, it.key().from(4));
    o = slices.write([&](Txn &txn) { return put_row(txn, newest.row, key, record.data(), it.expires(), &buffer); });
    if (o == Outcome::Ok) o = slices.row_written();
  }
  if (o == Outcome::Ok) o = it.status();
  if (o == Outcome::Ok) o = slices.end();
  return server_error(thd, o);
}

int end_rewriting(THD *thd) {
  if (const int error = killed(thd)) return error;
  const Outcome o = Engine::sync();
  return o == Outcome::Ok ? killed(thd) : server_error(thd, o);
}

}  // namespace kingtide
