/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "server.h"

#include <xa.h>

namespace kingtide {

/**
  The engine's name of a transaction in doubt: format (8 bytes, most significant first), lengths of the global and the branch
  part (a byte each), both parts.
*/
std::string pack_xid(const XID *xid);
bool unpack_xid(const std::string &name, XID *xid);

/* For the handlerton. */
int recover_prepared(handlerton *hton, XID *list, uint size);
int commit_by_xid(handlerton *hton, XID *xid);
int rollback_by_xid(handlerton *hton, XID *xid);

}  // namespace kingtide
