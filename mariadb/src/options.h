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

/** For the handlerton. */
ha_create_table_option *table_options();

/** The parsed options of a table. */
struct TableOptions {
  /** Options of the family that the table is to be in. */
  std::vector<Engine::Option> storage;
  /** What a commit that changed the table survives, if the table says so. */
  bool has_durability = false;
  Durability durability = Durability::Process;
  /** Lifetime of a row in seconds; 0 for ever. */
  uint64_t ttl = 0;
  /** The field with the lifetime of its row in seconds; -1 if there is none. */
  int ttl_field = -1;
};

/** The longest lifetime of a row in seconds: a hundred years. */
constexpr uint64_t LONGEST_LIFE = 3155760000;

/**
  Reads the options of a table with these fields. The first that is wrong is described in `problem`, and read as if it had
  not been written, as all wrong ones are.
*/
TableOptions read_options(const ha_table_option_struct *written, Field *const *fields, std::string *problem);

/**
  Those of a table, or of that of its partitions that has this name in the dictionary. While one is created, the server puts
  its options in the table's place; the list of partitions may be of before.
*/
TableOptions read_options_of(const TABLE *table, const std::string &name, bool creating, std::string *problem);

/**
  Why the options of an altered table want a copy of it, or nullptr: its rows are to be stored in another way, or create has
  to refuse the options.
*/
const char *why_copy(const TABLE *before, const TABLE *after);

/** Refuses or, where the session ignores bad options, warns of the problem that read_options found. True for refused. */
bool refuse_options(THD *thd, const std::string &problem);

}  // namespace kingtide
