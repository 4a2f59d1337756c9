/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <vector>

#include "slice.h"

/**
  Rows as they are stored. Nothing here knows the server: where a record in memory has its columns is described by Columns.

      1 byte     version of this format: 1
      varint     number of columns stored; a table that got columns since has more, which read as their defaults
      n/8 bytes  for the nullable ones among them, in their order, a bit each that says NULL, lowest bit first
      columns    those that are not NULL, in their order:
                 FIXED  their bytes
                 CHAR   varint of the length without padding at the end, and so many bytes
                 VAR    varint of the length, and so many bytes
                 BLOB   varint of the length, and so many bytes
*/
namespace kingtide {

enum class ColumnKind : uint8_t { Fixed, Char, Var, Blob };

/** Where a record has a column, and how. */
struct Column {
  ColumnKind kind = ColumnKind::Fixed;
  uint32_t offset = 0;
  /** Bytes of a FIXED or CHAR column, most bytes of a VAR column. */
  uint32_t length = 0;
  /** Bytes of the length in front of the data of a VAR column, and of the pointer to those of a BLOB. */
  uint8_t length_bytes = 0;
  /** Where its NULL bit is; no bits if it is not nullable. */
  uint32_t null_offset = 0;
  uint8_t null_mask = 0;
  /** What a CHAR column is padded with: the bytes of a space, or a zero byte. */
  std::string pad;

  bool is_null(const uint8_t *record) const { return (record[null_offset] & null_mask) != 0; }
  /** The data of a column that is not NULL. */
  Slice data(const uint8_t *record) const;
  /** Whether two records have the same bytes in it. */
  bool same(const uint8_t *a, const uint8_t *b) const;
};

class RowFormat {
 public:
  std::vector<Column> columns;

  /** Appends a record's row. */
  void encode(const uint8_t *record, std::string *row) const;

  /** Whether two records have the same bytes in all columns: then their rows are the same. */
  bool same(const uint8_t *a, const uint8_t *b) const;

  /**
    Reads a row into a record. Blobs in the record point into the row. Columns that the row does not have get what
    `defaults`, a record, has, and are counted; those that are NULL get its bytes under their NULL bit.

    Returns false for bytes that no encoder made, with the record in an undefined but harmless state.
  */
  bool decode(Slice row, uint8_t *record, const uint8_t *defaults, size_t *missing) const;
};

/** Appends a column's data as rows have them. Index entries keep columns that their keys do not give back in this form. */
void append_column(const Column &c, const uint8_t *record, std::string *out);
/** The reverse, with the same promises as RowFormat::decode. */
bool take_column(const Column &c, Slice &from, uint8_t *record);

}  // namespace kingtide
