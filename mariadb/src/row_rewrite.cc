/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "row_rewrite.h"

#include <algorithm>

#include "errors.h"
#include "ha_kingtide.h"
#include "variables.h"

namespace kingtide {
namespace {

/** Number of rows after which to check whether the statement was killed. It is also checked after each slice. */
constexpr uint64_t LOOK_UP = 1024;
/** Bytes of rows in one slice; fewer if the memory limit of transactions is low. */
constexpr size_t SLICE = 16 << 20;

/** Writes rows in transactions of limited size. */
class Slices {
 public:
  /** Writes a row whose stored form had `size` bytes before. */
  Outcome put(const RowFormat &format, const std::string &key, const uchar *record, uint64_t size, uint64_t expires) {
    Outcome o = txn_.open() ? Outcome::Ok : txn_.begin(Level::ReadUncommitted, NO_WAIT, Durability::Process);
    if (o == Outcome::Ok) o = put_row(txn_, format, key, record, expires, &row_);
    bytes_ += key.size() + std::max<uint64_t>(size, row_.size());
    return o == Outcome::Ok && bytes_ >= most_ ? end() : o;
  }
  Outcome end() {
    bytes_ = 0;
    if (!txn_.open()) return Outcome::Ok;
    const Outcome o = txn_.commit();
    txn_.close();
    return o;
  }
  /** Whether none has begun since the last one ended. */
  bool between() const { return bytes_ == 0; }

 private:
  Txn txn_;
  std::string row_;
  const size_t most_ = std::min<uint64_t>(SLICE, transaction_memory() / 8);
  size_t bytes_ = 0;
};

}  // namespace

int rewrite_rows(THD *thd, TABLE *altered, const TableShare &share, const TableRecord &after) {
  // Both describe the altered table's record: with another ROW_FORMAT, columns and NULL bits have other places in it than before.
  const TableFormat before(altered, share.record()), newest(altered, after);
  if (!before.fits || !newest.fits) return HA_ERR_TABLE_DEF_CHANGED;
  std::vector<uchar> record(altered->s->reclength);
  std::string key;
  Slices slices;
  Iter it;
  Outcome o = Engine::iterate(Space::Rows, before.primary.prefix(), before.primary.end(), &it);
  uint64_t done = 0;
  for (bool valid = o == Outcome::Ok && it.first(); valid && o == Outcome::Ok; valid = it.next()) {
    if (++done % LOOK_UP == 0 || slices.between()) {
      thd_progress_report(thd, done, std::max<uint64_t>(done, share.rows()));
      if (thd_kill_level(thd) != THD_IS_NOT_KILLED) return HA_ERR_ABORTED_BY_USER;
    }
    Slice value;
    if ((o = it.value(&value)) != Outcome::Ok) break;
    if (!before.row.decode(value, record.data(), altered->s->default_values)) {
      o = failed(Outcome::Corruption, "a row of " + share.name() + " is in an unknown format");
      break;
    }
    key = newest.primary.prefix();
    append(key, it.key().from(4));
    o = slices.put(newest.row, key, record.data(), value.size, it.expires());
  }
  if (o == Outcome::Ok) o = it.status();
  if (o == Outcome::Ok) o = slices.end();
  return server_error(thd, o);
}

}  // namespace kingtide
