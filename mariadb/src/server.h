/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

/* The server's headers, in an order in which they compile. Include this before the plugin's own headers. */
#define MYSQL_SERVER 1
#include <my_global.h>

#include "sql_priv.h"
#include "sql_class.h"
#include "set_var.h"
#include "sql_base.h"
#include "sql_parse.h"
#include "sql_show.h"
#include "sql_table.h"
#include "handler.h"
#include "table.h"
#include "field.h"
#include "key.h"
#include "log.h"
#include "item.h"
#include <mysql/plugin.h>
