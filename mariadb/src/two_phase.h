/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "server.h"

#include <xa.h>

namespace kingtide {

/** What the X/Open specification calls them. */
constexpr int XA_OK = 0, XAER_RMERR = -3, XAER_NOTA = -4;

/**
  The engine's name of a transaction in doubt: format (8 bytes, most significant first), lengths of the global and the branch
  part (a byte each), both parts.
*/
std::string pack_xid(const XID *xid);
bool unpack_xid(const std::string &name, XID *xid);

/* For the handlerton. */
int recover_prepared(XID *list, uint size);
int commit_by_xid(XID *xid);
int rollback_by_xid(XID *xid);
/** Recovery is over: what became of transactions is durable from now on. */
int end_recovery(handlerton *hton);

}  // namespace kingtide
