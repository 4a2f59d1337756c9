/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/*
  Transactions in doubt. Prepared ones are in the engine's log under the server's name for them. After a crash the server asks
  for their names, and commits those that the binary log has; the others it rolls back, unless a user prepared them (XA).
*/
#include "two_phase.h"

#include <mutex>
#include <set>

#include "engine.h"
#include "errors.h"
#include "session.h"
#include "variables.h"

namespace kingtide {
namespace {

constexpr size_t HEAD = 10;


std::mutex awaited_mutex;
/** The server's own transactions that recovery found, and that the server has not resolved yet. */
std::set<std::string> awaited;

/** Whether recovery goes on behind a transaction: then what became of it need not be durable yet. Before, it is done again. */
bool recovery_goes_on_behind(const std::string &name) {
  std::lock_guard<std::mutex> guard(awaited_mutex);
  return awaited.erase(name) != 0 && !awaited.empty();
}

int resolved(const std::string &name, Outcome o) {
  const bool later = recovery_goes_on_behind(name);
  // By name it is resolved as durably as the database is by default, which is less than a commit may have to survive.
  if (o == Outcome::Ok && !later && commit_durability() == Durability::Power) o = Engine::sync();
  if (o == Outcome::Ok) return XA_OK;
  if (o == Outcome::NotFound) return XAER_NOTA;
  sql_print_error("KINGTIDE: %s", last_message());
  return XAER_RMERR;
}

}  // namespace

std::string pack_xid(const XID *xid) {
  std::string name;
  append_be(name, static_cast<uint64_t>(xid->formatID), 8);
  append_be(name, static_cast<uint64_t>(xid->gtrid_length), 1);
  append_be(name, static_cast<uint64_t>(xid->bqual_length), 1);
  name.append(xid->data, xid->gtrid_length + xid->bqual_length);
  return name;
}

bool unpack_xid(const std::string &name, XID *xid) {
  const Slice s(name);
  if (s.size < HEAD) return false;
  const uint8_t gtrid = s.data[8], bqual = s.data[9];
  if (gtrid > MAXGTRIDSIZE || bqual > MAXBQUALSIZE || s.size != HEAD + gtrid + bqual) return false;
  xid->set(static_cast<long>(read_be(s.data, 8)), name.data() + HEAD, gtrid, name.data() + HEAD + gtrid, bqual);
  return true;
}

/**
 * The server asks again until it gets fewer than it has room for. Between two questions it ends those that it has, so
 * the list is taken at the first.
 */
int recover_prepared(XID *list, uint size) {
  static std::vector<std::string> names;
  static size_t handed_out = 0;
  std::lock_guard<std::mutex> guard(awaited_mutex);
  if (!handed_out) names = Engine::prepared();
  uint n = 0;
  for (; n < size && handed_out < names.size(); handed_out++) {
    if (!unpack_xid(names[handed_out], &list[n])) continue;
    if (list[n].get_my_xid()) awaited.insert(names[handed_out]);
    n++;
  }
  if (n < size) {
    handed_out = 0;
    names.clear();
  }
  return static_cast<int>(n);
}

int commit_by_xid(XID *xid) {
  const std::string name = pack_xid(xid);
  const int result = resolved(name, Engine::commit_prepared(name));
  if (result == XA_OK) Session::prepared_ended(name);
  if (result == XA_OK) RowLog::prepared_ended(name, true);
  return result;
}

int rollback_by_xid(XID *xid) {
  const std::string name = pack_xid(xid);
  const int result = resolved(name, Engine::rollback_prepared(name));
  if (result == XA_OK) Session::prepared_ended(name);
  if (result == XA_OK) RowLog::prepared_ended(name, false);
  return result;
}

int end_recovery(handlerton *) {
  std::lock_guard<std::mutex> guard(awaited_mutex);
  const bool left = !awaited.empty();
  awaited.clear();
  return left && Engine::sync() != Outcome::Ok ? 1 : 0;
}

}  // namespace kingtide
