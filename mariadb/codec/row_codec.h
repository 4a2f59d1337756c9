/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include <vector>

#include "slice.h"

/**
  The stored form of rows. This code does not depend on the server: a Column describes where a record in memory has a column.

      1 byte     version of this format: 2
      varint     number of the row's layout
      n/8 bytes  one bit for each nullable column of the layout, set if it is NULL; in the layout's order, lowest bit first
      columns    the columns that are not NULL, in the layout's order:
                 FIXED  the bytes
                 CHAR   varint of the length without trailing padding, and that many bytes
                 VAR    varint of the length, and that many bytes
                 BLOB   varint of the length, and that many bytes

  A layout defines which columns a row has, in which order. ALTER TABLE gives the table a new layout and does not change its rows,
  so rows of older layouts can be read as long as they exist. A column that they lack gets the default that was given when the
  column was added, and columns that have been dropped are skipped. Rows are always written in the newest layout.

  Version 1, which can still be read, has the number of columns in place of the layout's number; its layout is 0.
*/
namespace kingtide {

enum class ColumnKind : uint8_t { Fixed, Char, Var, Blob };

/** Where and how a record has a column. */
struct Column {
  ColumnKind kind = ColumnKind::Fixed;
  uint32_t offset = 0;
  /** Length of a FIXED or CHAR column, or maximum length of a VAR column, in bytes. */
  uint32_t length = 0;
  /** Size of the length that precedes the data of a VAR column, or the pointer to the data of a BLOB, in bytes. */
  uint8_t length_bytes = 0;
  /** Place of the NULL bit. The mask is 0 if the column is not nullable. */
  uint32_t null_offset = 0;
  uint8_t null_mask = 0;
  /** Padding of a CHAR column: the bytes of a space, or a zero byte. */
  std::string pad;
  /** The column's bit in a Wanted. */
  uint32_t number = 0;

  bool is_null(const uint8_t *record) const { return (record[null_offset] & null_mask) != 0; }
  /** Returns the data of the column, which must not be NULL. */
  Slice data(const uint8_t *record) const;
  /** Whether two records have the same bytes in this column. */
  bool same(const uint8_t *a, const uint8_t *b) const;
};

/** A set of columns of a record: one bit for each column number. */
class Wanted {
 public:
  /** All columns. */
  Wanted() = default;
  explicit Wanted(const unsigned long long *bits) : bits_(bits) {}
  bool all() const { return !bits_; }
  bool has(const Column &c) const { return has(c.number); }
  bool has(uint32_t number) const { return !bits_ || (bits_[number / 64] >> number % 64 & 1) != 0; }

 private:
  const unsigned long long *bits_ = nullptr;
};

/** How the rows of a layout store a column. */
struct StoredColumn {
  /** Identifies the column in all layouts of its table. */
  uint32_t id = 0;
  bool nullable = false;
  /** Whether a length precedes the bytes. Otherwise there are always `length` bytes. */
  bool sized = false;
  uint32_t length = 0;
};

using RowLayout = std::vector<StoredColumn>;

/** The value of a column in rows whose layout lacks it. */
struct AbsentValue {
  uint32_t id = 0;
  bool null = false;
  /** If it is not NULL: the value, as a row would store it. */
  std::string value;
};

/** Returns how rows store a column of a record. */
StoredColumn stored_form(const Column &c, uint32_t id);

/** A row that is read in pieces, because most of it may be columns that are not wanted. */
class RowPieces {
 public:
  virtual ~RowPieces() = default;
  virtual uint64_t size() const = 0;
  /** Minimum number of bytes to read at a time. */
  virtual size_t least() const { return 4096; }
  /** Reads `size` bytes from `offset` on, or up to the end of the row. `piece` is valid until the next call. */
  virtual bool read(uint64_t offset, size_t size, Slice *piece) = 0;
};

/** Takes a row in pieces, in their order. */
class RowSink {
 public:
  virtual ~RowSink() = default;
  /** False if it takes no more. The piece is valid during the call. */
  virtual bool take(Slice piece) = 0;
};

class RowFormat {
 public:
  /** The columns of a record, in the order of the newest layout. */
  std::vector<Column> columns;

  /**
    Sets the layouts of the rows, the newest last; there must be at least one. Returns false if the newest is not that of `columns`,
    or if a layout or an absent value is inconsistent.
  */
  bool set_layouts(const std::vector<RowLayout> &layouts, const std::vector<AbsentValue> &absent);

  /** Appends a record's row. */
  void encode(const uint8_t *record, std::string *row) const;
  /** The same row in pieces: long blobs are given as they are in memory. False if the sink takes no more. */
  bool encode(const uint8_t *record, RowSink &sink) const;
  /** Bytes of the blobs of a record. */
  uint64_t blob_bytes(const uint8_t *record) const;

  /** Whether two records have the same bytes in all columns, and so the same row. */
  bool same(const uint8_t *a, const uint8_t *b) const;

  /**
    Decodes a row into a record. Blobs of the record point into the row, or into this object. Columns that are NULL get the bytes
    of the record `defaults`. Columns that are not wanted may be left unchanged.

    Returns false if no encoder can have written these bytes. The record is then in an undefined but harmless state.
  */
  bool decode(Slice row, uint8_t *record, const uint8_t *defaults, Wanted wanted = Wanted()) const;
  /** Like the above for a row that is read in pieces: long columns that are not wanted are not read. No blob may be wanted. */
  bool decode(RowPieces &pieces, uint8_t *record, const uint8_t *defaults, Wanted wanted) const;

 private:
  class Input;
  /** A column of a layout, its index in `columns` (-1 if it was dropped), and its number (then 0). */
  struct Slot {
    StoredColumn stored;
    int column;
    uint32_t number;
  };
  struct Layout {
    std::vector<Slot> slots;
    size_t nullable = 0;
    /** Indexes in `columns` of those that the layout lacks. */
    std::vector<size_t> absent;
  };

  void encode_head(const uint8_t *record, std::string *row) const;
  const Layout *take_layout(Slice &row) const;
  bool read_slots(const Layout &layout, Slice row, uint8_t *record, const uint8_t *defaults, Wanted wanted) const;
  bool read_slots(const Layout &layout, Input &row, uint8_t *record, const uint8_t *defaults, Wanted wanted) const;
  void fill_absent(const Layout &layout, uint8_t *record, const uint8_t *defaults, Wanted wanted) const;

  std::vector<Layout> layouts_;
  /** The number of the newest layout if it takes one byte in a row, otherwise -1. */
  int newest_ = -1;
  /** By index in `columns`: the column's value in rows that were written before it was added. */
  std::vector<AbsentValue> absent_;
};

/** Appends a column's data as rows store it. Index entries use this form for columns that cannot be restored from their keys. */
void append_column(const Column &c, const uint8_t *record, std::string *out);
/** Decodes what append_column wrote, with the same guarantees as RowFormat::decode. */
bool take_column(const Column &c, Slice &from, uint8_t *record);

}  // namespace kingtide
