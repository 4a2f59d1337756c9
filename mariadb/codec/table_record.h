/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <vector>

#include "row_codec.h"

/**
  What the dictionary says of a table. Nothing here knows the server.

      1 byte   version of this form: 2
      fields   each once, in ascending order of its tag: varint tag, varint length, and so many bytes

  Later versions of this program may know more fields, and a table that has one may not be touched without understanding it:
  so a tag that is not known here is refused. Version 1, which is still read, had the first two fields and no tags.
*/
namespace kingtide {

/**
  In which form keys have text. In the first form the weights of some collations were not complete, so that different text had
  the same key; keys of other collations are the same in both. Only tables that have keys of such a collation say which form they have.
*/
constexpr uint32_t KEY_FORM_FIRST = 0, KEY_FORM_WHOLE_WEIGHTS = 1, KEY_FORM_NEWEST = KEY_FORM_WHOLE_WEIGHTS;

struct TableRecord {
  /** Number of the index that has the rows. */
  uint32_t primary = 0;
  /** The number of each key's index. */
  std::vector<uint32_t> keys;
  /** What layouts the rows have: see row_codec.h. None: the only one there ever was is that of the table's definition. */
  std::vector<RowLayout> layouts;
  /** The number that the next column gets. */
  uint32_t next_column = 0;
  std::vector<AbsentValue> absent;
  /** What the server calls the definition, if an ALTER TABLE changed it in place. */
  std::string definition;
  uint32_t key_form = KEY_FORM_FIRST;
};

std::string encode_table_record(const TableRecord &record);

/** Reads a record. False for bytes that encode_table_record did not make, with the reason in `why`. */
bool decode_table_record(Slice bytes, TableRecord *record, std::string *why);

}  // namespace kingtide
