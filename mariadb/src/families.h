/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "engine.h"

struct kingtide_options;

/**
  The families that have the entries of indexes. How entries are stored (compression, size of blocks, ...) is a family's
  affair: tables without options of their own are in "rows", and all tables of one set of other options share a family that
  has the options in its name, as "rows compression=zstd". It is made when the first such table is.

  An index's number tells its family, so that a key alone leads to where it is stored:

      below 0xc0000000              "rows"
      0xc0 to 0xfe, then 24 bits    the family of the slot that the first byte names

  A slot is a record of the dictionary, under "f" and the slot's byte: 4 bytes, the number that the slot's next index gets, and
  the family's name, which is empty after the last table was dropped: then the slot is free for another family. Numbers are never
  given out twice; when a slot runs out of them, its family gets another slot.
*/
namespace kingtide {

class Families {
 public:
  /** At startup, once the dictionary exists. A new family "rows" is created with these options. */
  static Outcome open(kingtide_db *db, const kingtide_options *options);
  static void close();

  /** The family of a key; nullptr for a number that was never assigned. */
  static kingtide_family *of(Slice key) {
    return slots_[key.size == 0 || key.data[0] < FIRST ? 0 : key.data[0] - FIRST + 1].load(std::memory_order_acquire);
  }

  /** A value of one of the families' options as the engine writes it; if it is none, last_message says what would be. */
  static Outcome normal(const char *option, const std::string &value, std::string *normal);

  /**
    The slot for a table of these options, each with a normal value; slot 0 is "rows". The table counts as one of the slot's
    tables from then on: if it does not come to be, it is to be released.
  */
  static Outcome slot_of(const std::vector<Engine::Option> &options, uint8_t *slot);
  /** There is a table in a slot, or one whose slot is not known, which may be in any. */
  static void use(uint8_t slot);
  static void use_all();
  /** A table of the slot was dropped. With the last one, the slot becomes free, and its family is dropped. */
  static void release(uint8_t slot);
  /** At startup, once all tables are counted: drops families without tables. */
  static Outcome drop_unused();
  static uint8_t slot_of(uint32_t index) { return index >> 24 < FIRST ? 0 : static_cast<uint8_t>((index >> 24) - FIRST + 1); }

  /** The name of the family that stores the entries of an index. */
  static std::string name_of(uint32_t index);

  /** Takes numbers for `count` indexes in a slot. They are taken when the batch is written. One thread at a time. */
  static Outcome take_numbers(Batch &batch, uint8_t slot, uint32_t count, uint32_t *first);

 private:
  static bool is_named(const std::string &family);
  static constexpr uint8_t FIRST = 0xc0;
  /** "rows", and 0xc0 to 0xfe. The bytes behind are left, so that there is a key behind every index. */
  static constexpr size_t SLOTS = 64;
  static std::atomic<kingtide_family *> slots_[SLOTS + 1];
};

}  // namespace kingtide
