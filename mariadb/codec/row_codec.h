/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <vector>

#include "slice.h"

/**
  Rows as they are stored. Nothing here knows the server: where a record in memory has its columns is described by Columns.

      1 byte     version of this format: 2
      varint     number of the layout that it is written in
      n/8 bytes  for the nullable ones among the layout's columns, in their order, a bit each that says NULL, lowest bit first
      columns    those that are not NULL, in their order:
                 FIXED  their bytes
                 CHAR   varint of the length without padding at the end, and so many bytes
                 VAR    varint of the length, and so many bytes
                 BLOB   varint of the length, and so many bytes

  A layout says which columns rows have, in which order. ALTER TABLE gives a table a new one and leaves the rows as they are:
  those of older layouts are read for as long as there are any. Columns that they do not have get the value that the ALTER
  said; what they have of columns that were dropped is passed over. A row is written in the newest layout.

  Version 1, which is still read, has the number of columns in the layout's place, and is of layout 0.
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
  /** By which a Wanted names it. */
  uint32_t number = 0;

  bool is_null(const uint8_t *record) const { return (record[null_offset] & null_mask) != 0; }
  /** The data of a column that is not NULL. */
  Slice data(const uint8_t *record) const;
  /** Whether two records have the same bytes in it. */
  bool same(const uint8_t *a, const uint8_t *b) const;
};

/** Some of a record's columns, by their numbers: a bit each. */
class Wanted {
 public:
  /** All of them. */
  Wanted() = default;
  explicit Wanted(const unsigned long long *bits) : bits_(bits) {}
  bool all() const { return !bits_; }
  bool has(const Column &c) const { return !bits_ || (bits_[c.number / 64] >> c.number % 64 & 1) != 0; }

 private:
  const unsigned long long *bits_ = nullptr;
};

/** How rows of a layout have a column. */
struct StoredColumn {
  /** Of this column in all layouts of its table, and of no other there. */
  uint32_t id = 0;
  bool nullable = false;
  /** A length is in front of the bytes. Otherwise there are always `length`. */
  bool sized = false;
  uint32_t length = 0;
};

using RowLayout = std::vector<StoredColumn>;

/** What rows have in a column that their layout does not have. */
struct AbsentValue {
  uint32_t id = 0;
  bool null = false;
  /** Otherwise: as a row would have it. */
  std::string value;
};

/** How rows have a column of a record. */
StoredColumn stored_form(const Column &c, uint32_t id);

/** A row that is read in pieces: most of it can be columns that are not wanted. */
class RowPieces {
 public:
  virtual ~RowPieces() = default;
  virtual uint64_t size() const = 0;
  /** How many bytes are read at a time at least. */
  virtual size_t least() const { return 4096; }
  /** Reads `size` bytes from `offset` on, or up to the end of the row. The piece is valid until the next call. */
  virtual bool read(uint64_t offset, size_t size, Slice *piece) = 0;
};

class RowFormat {
 public:
  /** The columns of a record, in the order of the newest layout. */
  std::vector<Column> columns;

  /**
    Learns what layouts the rows have, the newest last; there is one at least. False if the newest is not that of `columns`, or
    something is said of a column that cannot be.
  */
  bool set_layouts(const std::vector<RowLayout> &layouts, const std::vector<AbsentValue> &absent);

  /** Appends a record's row. */
  void encode(const uint8_t *record, std::string *row) const;

  /** Whether two records have the same bytes in all columns: then their rows are the same. */
  bool same(const uint8_t *a, const uint8_t *b) const;

  /**
    Reads a row into a record. Blobs in the record point into the row, or into this object. Columns that are NULL get the
    bytes of `defaults`, a record, under their NULL bit. Columns that are not wanted may stay as they are.

    Returns false for bytes that no encoder made, with the record in an undefined but harmless state.
  */
  bool decode(Slice row, uint8_t *record, const uint8_t *defaults, Wanted wanted = Wanted()) const;
  /** The same for a row that is read in pieces: only what is in front of wanted columns is. No blob may be wanted. */
  bool decode(RowPieces &pieces, uint8_t *record, const uint8_t *defaults, Wanted wanted) const;

 private:
  class Input;
  /** A column of a layout, and which of `columns` it is: -1 if it was dropped. */
  struct Slot {
    StoredColumn stored;
    int column;
  };
  struct Layout {
    std::vector<Slot> slots;
    size_t nullable = 0;
    /** Columns that it does not have, by their place in `columns`. */
    std::vector<size_t> absent;
  };

  bool decode(Input &row, uint8_t *record, const uint8_t *defaults, Wanted wanted) const;
  bool read_slots(const Layout &layout, Input &row, uint8_t *record, const uint8_t *defaults, Wanted wanted) const;
  void fill_absent(const Layout &layout, uint8_t *record, const uint8_t *defaults, Wanted wanted) const;

  std::vector<Layout> layouts_;
  /** By place in `columns`: what rows have that were written before the column was. */
  std::vector<AbsentValue> absent_;
};

/** Appends a column's data as rows have them. Index entries keep columns that their keys do not give back in this form. */
void append_column(const Column &c, const uint8_t *record, std::string *out);
/** The reverse, with the same promises as RowFormat::decode. */
bool take_column(const Column &c, Slice &from, uint8_t *record);

}  // namespace kingtide
