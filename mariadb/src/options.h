/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "server.h"

#include <string>
#include <vector>

#include "engine.h"

/** The table options as written; nullptr for those not given. The server fills it in, and requires this name. */
struct ha_table_option_struct {
  char *compression, *block_size, *value_threshold, *filter_fp;
  char *durability, *ttl, *ttl_column;
};

namespace kingtide {

/** The table options, for the handlerton. */
ha_create_table_option *table_options();

/** The parsed options of a table. */
struct TableOptions {
  /** Options of the engine's family that stores the table. */
  std::vector<Engine::Option> storage;
  /** Durability of commits that changed the table, if the table has this option. */
  bool has_durability = false;
  Durability durability = Durability::Process;
  /** Lifetime of a row in seconds; 0 means that rows do not expire. */
  uint64_t ttl = 0;
  /** Number of the field that has the lifetime of its row in seconds; -1 if there is none. */
  int ttl_field = -1;
};

/** The longest lifetime of a row in seconds: a hundred years. */
constexpr uint64_t LONGEST_LIFE = 3155760000;

/**
  Reads the options of a table with these fields. Invalid options are ignored, and `problem` describes the first one. It is empty if
  all are valid.
*/
TableOptions read_options(const ha_table_option_struct *written, Field *const *fields, std::string *problem);

/**
  Reads the options of a table, or of its partition with this name in the dictionary. While a partition is created, the server
  passes its options in place of the table's, and the table's list of partitions may be outdated.
*/
TableOptions read_options_of(const TABLE *table, const std::string &name, bool creating, std::string *problem);

/**
  Returns why changed options require a copy of the table (its rows are to be stored differently, or the options are invalid, which
  `create` reports), or nullptr if they do not.
*/
const char *why_copy(const TABLE *before, const TABLE *after);

/**
  Reports the problem that read_options found: as an error (returns true), or as a warning if the session ignores bad options.
*/
bool refuse_options(THD *thd, const std::string &problem);

}  // namespace kingtide
