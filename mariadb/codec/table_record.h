/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <vector>

#include "row_codec.h"

/**
  The dictionary's record of a table. This code does not depend on the server.

      1 byte   version of this format: 2
      fields   each at most once, in ascending order of tags: varint tag, varint length, and that many bytes

  Later versions may add fields. A table must not be used without understanding all of its fields, so unknown tags are refused.
  Version 1, which can still be read, has the first two fields, without tags.
*/
namespace kingtide {

/**
  The form of text in keys. In the first form, the weights of some collations were incomplete, so that different texts had the same
  key. Keys of other collations are the same in both forms. Only tables with keys in such a collation record their form.
*/
constexpr uint32_t KEY_FORM_FIRST = 0, KEY_FORM_WHOLE_WEIGHTS = 1, KEY_FORM_NEWEST = KEY_FORM_WHOLE_WEIGHTS;

struct TableRecord {
  /** Number of the index that stores the rows. */
  uint32_t primary = 0;
  /** Numbers of the indexes, in the order of the table's keys. */
  std::vector<uint32_t> keys;
  /** Layouts of the rows: see row_codec.h. If empty, all rows have the layout of the table's definition. */
  std::vector<RowLayout> layouts;
  /** The id of the next column that is added. */
  uint32_t next_column = 0;
  std::vector<AbsentValue> absent;
  /** The server's version id of the definition, if an in-place ALTER TABLE has changed it. */
  std::string definition;
  uint32_t key_form = KEY_FORM_FIRST;
};

std::string encode_table_record(const TableRecord &record);

/** Decodes a record. Returns false, and the reason in `why`, if encode_table_record cannot have written these bytes. */
bool decode_table_record(Slice bytes, TableRecord *record, std::string *why);

}  // namespace kingtide
