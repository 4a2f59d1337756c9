/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "server.h"

#include <xa.h>

namespace kingtide {

/** Return codes of the X/Open XA specification. */
constexpr int XA_OK = 0, XAER_RMERR = -3, XAER_NOTA = -4;

/**
  Returns the engine's name for an XA transaction: the format id (8 bytes, most significant first), the lengths of the global and
  the branch part (one byte each), and the two parts.
*/
std::string pack_xid(const XID *xid);
bool unpack_xid(const std::string &name, XID *xid);

/* Callbacks of the handlerton. */
int recover_prepared(XID *list, uint size);
int commit_by_xid(XID *xid);
int rollback_by_xid(XID *xid);
/** Called when recovery is over. Makes its commits and rollbacks durable. */
int end_recovery(handlerton *hton);

}  // namespace kingtide
