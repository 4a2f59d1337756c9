/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/*
  Table options. To the server, all of them are strings: it would read "abc" as the number 0, and would not say which values it
  accepts. They are parsed by the engine's rules instead, and refused with the engine's messages.
*/
#include "options.h"

#include <deque>

#include <create_options.h>
#include <partition_info.h>

#include "families.h"
#include "server_version.h"
#include "variables.h"

namespace kingtide {
namespace {

/** Table options that are options of the engine's families, by the engine's names. */
const struct {
  const char *name;
  char *ha_table_option_struct::*written;
} STORAGE[] = {
    {"compression", &ha_table_option_struct::compression},
    {"block_size", &ha_table_option_struct::block_size},
    {"value_threshold", &ha_table_option_struct::value_threshold},
    {"filter_fp", &ha_table_option_struct::filter_fp},
};

/** Sets `problem` unless an earlier one is set. */
void note(std::string *problem, const std::string &what) {
  if (problem->empty()) *problem = what;
}

bool read_seconds(const char *text, uint64_t *seconds) {
  int error = 0;
  char *end = const_cast<char *>(text) + strlen(text);
  const longlong n = my_strtoll10(text, &end, &error);
  *seconds = static_cast<uint64_t>(n);
  return *text >= '0' && *text <= '9' && error == 0 && *end == 0 && *seconds <= LONGEST_LIFE;
}

/** Returns the number of the integer column with this name. If there is none, notes the problem and returns -1. */
int find_ttl_column(const char *name, Field *const *fields, std::string *problem) {
  for (Field *const *f = fields; *f; f++) {
    if (!same_name((*f)->field_name.str, name)) continue;
    const enum_field_types type = (*f)->type();
    const bool is_integer = type == MYSQL_TYPE_TINY || type == MYSQL_TYPE_SHORT || type == MYSQL_TYPE_INT24 ||
                            type == MYSQL_TYPE_LONG || type == MYSQL_TYPE_LONGLONG;
    if (is_integer && (*f)->stored_in_db()) return (*f)->field_index;
    note(problem, std::string("option ttl_column: '") + name + "' is not a stored column of an integer type");
    return -1;
  }
  note(problem, std::string("option ttl_column: there is no column '") + name + "'");
  return -1;
}

/** Whether `part`, the rest of a path from a partition's name on, begins with the name of this partition. */
bool is_named(const partition_element *partition, const std::string &part) {
  char name[FN_REFLEN];
  const uint length = tablename_to_filename(text_of(partition->partition_name), name, sizeof name);
  if (part.size() < length || (part.size() > length && part[length] != '#')) return false;
  return same_name(part.substr(0, length).c_str(), name);
}

/** Returns the partition or subpartition with this name in the dictionary, or nullptr if there is none. */
const partition_element *partition_of(const TABLE *table, const std::string &name) {
  const size_t at = name.rfind("#P#"), sub_at = name.rfind("#SP#");
  if (!table->part_info || at == std::string::npos) return nullptr;
  List_iterator_fast<partition_element> partitions(table->part_info->partitions);
  while (partition_element *p = partitions++) {
    if (!is_named(p, name.substr(at + 3))) continue;
    if (sub_at == std::string::npos) return p;
    List_iterator_fast<partition_element> parts(p->subpartitions);
    while (partition_element *sub = parts++)
      if (is_named(sub, name.substr(sub_at + 4))) return sub;
  }
  return nullptr;
}

/** Whether a partition with named subpartitions has options: the server does not keep these in the table's definition. */
bool forgets_options(partition_info *partitions) {
  if (!partitions || !partitions->is_sub_partitioned() || partitions->use_default_subpartitions) return false;
  List_iterator_fast<partition_element> it(partitions->partitions);
  while (const partition_element *p = it++)
    if (p->option_list) return true;
  return false;
}

char *ha_table_option_struct::*const ALL[] = {
    &ha_table_option_struct::compression, &ha_table_option_struct::block_size, &ha_table_option_struct::value_threshold,
    &ha_table_option_struct::filter_fp,   &ha_table_option_struct::durability, &ha_table_option_struct::ttl,
    &ha_table_option_struct::ttl_column};

/** Overrides the table's options with those of a partition. */
void add_written(const engine_option_value *list, std::deque<std::string> *texts, ha_table_option_struct *written) {
  const ha_create_table_option *rules = table_options();
  for (; list; list = list->next)
    for (size_t i = 0; i < array_elements(ALL); i++) {
      if (!same_name(rules[i].name, std::string(list->name.str, list->name.length).c_str()) || !list->value.str) continue;
      texts->emplace_back(list->value.str, list->value.length);
      written->*ALL[i] = &texts->back()[0];
    }
}

}  // namespace

TableOptions read_options_of(const TABLE *table, const std::string &name, bool creating, std::string *problem) {
  const partition_element *part = partition_of(table, name);
  if (creating && forgets_options(table->part_info)) {
    *problem = "options of a partition that has named subpartitions are not kept by the server: "
               "write them for the table, or give the number of subpartitions without names";
    return TableOptions();
  }
  if (!part) return read_options(table->s->option_struct, table->field, problem);
  if (part->option_struct)
    return read_options(creating ? table->s->option_struct : part->option_struct, table->field, problem);
  // A subpartition without a name in the statement. The server creates it after it has parsed the options, and gives it the
  // unparsed options of its partition.
  ha_table_option_struct written = {};
  std::deque<std::string> texts;
  if (table->s->option_struct) written = *table->s->option_struct;
  add_written(part->option_list, &texts, &written);
  return read_options(&written, table->field, problem);
}

ha_create_table_option *table_options() {
  static ha_create_table_option all[] = {
      HA_TOPTION_STRING("COMPRESSION", compression),
      HA_TOPTION_STRING("BLOCK_SIZE", block_size),
      HA_TOPTION_STRING("VALUE_THRESHOLD", value_threshold),
      HA_TOPTION_STRING("FILTER_FP", filter_fp),
      HA_TOPTION_STRING("DURABILITY", durability),
      HA_TOPTION_STRING("TTL", ttl),
      HA_TOPTION_STRING("TTL_COLUMN", ttl_column),
      HA_TOPTION_END,
  };
  all[0].type = HA_OPTION_TYPE_STRING;  // the server sets it to the variable's type when the plugin is uninstalled
  all[0].var = default_compression();
  return all;
}

TableOptions read_options(const ha_table_option_struct *written, Field *const *fields, std::string *problem) {
  TableOptions options;
  problem->clear();
  if (!written) return options;
  for (const auto &one : STORAGE) {
    const char *value = written->*one.written;
    std::string normal;
    if (!value || same_name(value, "default")) continue;
    if (Families::normal(one.name, value, &normal) == Outcome::Ok)
      options.storage.push_back({one.name, normal});
    else
      note(problem, last_message());
  }
  if (const char *value = written->durability) {
    options.has_durability = same_name(value, "power") || same_name(value, "process");
    if (same_name(value, "power")) options.durability = Durability::Power;
    if (!options.has_durability && !same_name(value, "default"))
      note(problem, std::string("option durability: '") + value + "' is not one of power, process and default");
  }
  if (const char *value = written->ttl) {
    if (!same_name(value, "default") && !read_seconds(value, &options.ttl)) {
      options.ttl = 0;
      note(problem, std::string("option ttl: '") + value + "' is not a number of seconds from 0, which is for ever, to " +
                        std::to_string(LONGEST_LIFE));
    }
  }
  if (written->ttl_column && *written->ttl_column)
    options.ttl_field = find_ttl_column(written->ttl_column, fields, problem);
  return options;
}

const char *why_copy(const TABLE *before, const TABLE *after) {
  std::string problem;
  const TableOptions old = read_options(before->s->option_struct, before->field, &problem);
  const TableOptions now = read_options(after->s->option_struct, after->field, &problem);
  if (!problem.empty()) return "a table option is invalid";
  return old.storage == now.storage ? nullptr : "rows must be stored differently";
}

bool refuse_options(THD *thd, const std::string &problem) {
  if (problem.empty()) return false;
  if (!(thd->variables.sql_mode & MODE_IGNORE_BAD_TABLE_OPTIONS) && !thd->slave_thread) {
    my_printf_error(ER_BAD_OPTION_VALUE, "KINGTIDE: %s", MYF(0), problem.c_str());
    return true;
  }
  push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_BAD_OPTION_VALUE, "KINGTIDE: %s", problem.c_str());
  return false;
}

}  // namespace kingtide
