/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "../codec/table_record.h"
#include "../codec/table_statistics.h"
#include "engine.h"

/**
  What tables there are, in the engine's own default family, so that a table and its definition change together.

      "t" path              the table's record: codec/table_record.h
      "n"                   8 bytes: the number that the next index in family "rows" gets
      "f" slot              the family of a slot: families.h
      "b" number            the number of an index that is being built
      "a" number            8 bytes: no auto-increment value from here on was given out, by the number of the rows' index
      "h" number            8 bytes: no hidden key from here on was given out
      "c" number            8 bytes: rows, as last counted; an estimate after a crash
      "s" number            what ANALYZE TABLE found: codec/table_statistics.h
      "e" number            8 bytes, 1: there may be rows that expire

  `path` is "database/table" in the server's file name encoding. All entries of all indexes of tables without storage options
  are in one family, "rows", each behind its index's number in 4 bytes: ten thousand tables cost ten thousand dictionary
  entries, not memtables, and a table that is dropped is one range delete for each index.
*/
/*
  What changes tables returns when it survives what commits survive (kingtide_flush_log_at_trx_commit), except for temporary
  tables, of which nothing has to survive.
*/
namespace kingtide {

class Dictionary {
 public:
  /** The server's path of a table, beginning with the database. */
  static std::string name_of(const char *path);

  /**
    Records a table with `keys` keys, of which `primary_key` has the rows; none of them if it is not among them. Its first
    auto-increment value is given, or 0, and the slot of its family. The record that the caller
    gives has the table's properties; it gets the numbers.
  */
  static Outcome create(const std::string &name, uint32_t keys, uint32_t primary_key, uint64_t auto_increment,
                        uint8_t slot, TableRecord *record);
  static Outcome find(const std::string &name, TableRecord *record);
  /** Removes a table with all its entries. */
  static Outcome drop(const std::string &name);
  /** Removes the tables of a database. */
  static void drop_database(const std::string &database);
  /** The name of the table, if `name` is of one of its partitions; otherwise `name`. */
  static std::string table_of(const std::string &name);
  /** The name of a partition, without what the server adds to it while ALTER TABLE makes the partition. */
  static std::string without_addition(const std::string &name);
  /** Whether the server uses such names for tables that it makes for a while: a crash may leave them behind, and it uses the names again. */
  static bool is_servers(const std::string &name);
  /** Whether there is a table with exactly this name, and whether it has rows. */
  static Outcome find_orphan(const std::string &name, bool *exists, bool *has_rows);
  /** Whether there is a table with this name, partitioned or not, and whether it has rows. */
  static Outcome find_orphans(const std::string &name, bool *exists, bool *has_rows);
  /** The names of a table's partitions. */
  static Outcome partitions(const std::string &name, std::vector<std::string> *names);
  /** Whether drop_leftovers drops the table: a temporary one, or one that was set aside. */
  static bool is_temporary(const std::string &name);
  /** Gives a table a unique name under which it is dropped later, at the latest by drop_leftovers. */
  static Outcome set_aside(const std::string &name, std::string *aside);
  static Outcome rename(const std::string &from, const std::string &to);

  /**
    The time, counted in tables that got rows or entries (were made, took the place of what they are copies of, got an index), or
    lost all at once.
  */
  static uint64_t now();
  /**
    When a table did, by the number of its primary index, or an index that was added to it: 0 if it was before the server started. A
    snapshot of an earlier time does not have the rows or entries.
  */
  static uint64_t born(uint32_t index);
  /** To be called after the write of the rows or entries that a table gets: snapshots from before the write then have an earlier time. */
  static void note_birth(uint32_t index);
  /** What an ALTER TABLE in place does to a table. */
  struct Alteration {
    std::string name;
    TableRecord after;
    /** Indexes whose entries are removed. */
    std::vector<uint32_t> dropped;
    /** Indexes that were built for it: see begin_indexes. */
    std::vector<uint32_t> built;
    /** The former number of the primary index, if the rows were written again; it is among `dropped`. Otherwise 0. */
    uint32_t rows_from = 0;
    /** The first auto-increment value not yet used, if not 0. */
    uint64_t auto_increment = 0;
  };
  /** Atomic. The result survives a power cut, because the server continues as if it could not be undone. */
  static Outcome alter(const std::vector<Alteration> &changes);
  /** Assigns numbers to indexes that are built before they belong to a table. Unused ones are removed by drop_leftovers. */
  static Outcome begin_indexes(uint8_t slot, size_t count, std::vector<uint32_t> *ids);
  static Outcome abandon_indexes(const std::vector<uint32_t> &ids);
  /** Whether the table, or all of its partitions, were altered to the definition that the server calls so. */
  static Outcome is_altered_to(const std::string &name, Slice definition, bool *altered);
  /** Removes a table's entries and counters. */
  static Outcome truncate(const std::string &name, const TableRecord &record);
  /** Removes temporary tables of earlier runs of the server, and what an unfinished ALTER TABLE left; later if there is no space for that now. */
  static Outcome drop_leftovers();
  /** Tells the families how many tables they have. */
  static Outcome count_tables();

  /** Calls `visit` with each table; unreadable ones are skipped. */
  static void visit(const std::function<void(const std::string &name, const TableRecord &record)> &visit);

  enum class Counter : char { AutoIncrement = 'a', HiddenKey = 'h', Rows = 'c', Expires = 'e' };
  /** 0 if never set. */
  static Outcome counter(Counter which, uint32_t primary, uint64_t *value);
  static Outcome set_counter(Counter which, uint32_t primary, uint64_t value);
  /**
    Keeps the next auto-increment value of a table that is not open, until the table is opened, dropped or the server restarted: for tables that
    go on with another value after a restart.
  */
  static void keep_next_value(uint32_t primary, uint64_t value);
  /** Returns what was kept, and forgets it; 0 if nothing was. */
  static uint64_t take_next_value(uint32_t primary);
  /** Sets those that are not 0, if the table is still the one that is recorded under this name; `next_value` is for keep_next_value. */
  static Outcome set_counters_of(const std::string &name, uint32_t primary, uint64_t auto_increment, uint64_t rows, uint64_t next_value);

  /** None if ANALYZE TABLE was never run, or its result cannot be read. */
  static Outcome statistics(uint32_t primary, TableStatistics *statistics);
  /** Stores them, if the table is still the one that is recorded under this name. */
  static Outcome set_statistics(const std::string &name, uint32_t primary, const TableStatistics &statistics);
};

}  // namespace kingtide
