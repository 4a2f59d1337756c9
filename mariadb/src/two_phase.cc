/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/*
  Transactions in doubt. The engine's log has prepared transactions under the names that the server gave them. After a crash the
  server asks for these names, commits those that are in the binary log, and rolls back the others, except those that a user
  prepared (XA).
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
/** Transactions of the server itself that recovery found and the server has not resolved yet. */
std::set<std::string> awaited;

/** Whether recovery has more transactions to resolve: then this result need not be durable yet, as a crash repeats recovery. */
bool recovery_goes_on_behind(const std::string &name) {
  std::lock_guard<std::mutex> guard(awaited_mutex);
  return awaited.erase(name) != 0 && !awaited.empty();
}

int resolved(const std::string &name, Outcome o) {
  const bool later = recovery_goes_on_behind(name);
  // Resolving by name uses the database's default durability, which may be less than the commit requires.
  if (o == Outcome::Ok && !later && commit_durability() == Durability::Power) o = Engine::sync();
  if (o == Outcome::Ok) return XA_OK;
  if (o == Outcome::NotFound) return XAER_NOTA;
  sql_print_error("KINGTIDE: %s", last_message());
  if (o == Outcome::NoSpace)  // at its start, the server then asks for --tc-heuristic-recover
    sql_print_error("KINGTIDE: a prepared transaction cannot be ended for want of space on the disk. It stays prepared. Make space, and if the server "
                    "does not start, start it again, without --tc-heuristic-recover");
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
 * The server calls this repeatedly until it gets fewer than it has room for. Between two calls it resolves those it has, so the list
 * is made at the first call.
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
