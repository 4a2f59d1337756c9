/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "server.h"

#include <memory>
#include <string>
#include <vector>

#include "fields.h"

namespace kingtide {

/** While it lives, the expressions of generated columns read a record, and what they give can be stored in it. */
class Generating {
 public:
  Generating(TABLE *table, const uchar *record);
  ~Generating();
  Generating(const Generating &) = delete;
  Generating &operator=(const Generating &) = delete;

  void compute(Field *field);

 private:
  void move(my_ptrdiff_t offset);

  TABLE *const table_;
  const my_ptrdiff_t offset_;
  AllColumnsReadable readable_;
  MY_BITMAP *const written_;
  /** Warnings were given when the server computed the columns. */
  Dummy_error_handler ignore_;
  Query_arena before_;
};

/**
  The generated TEXT and BLOB columns of a table with system versioning.

  A record only points to the value of such a column, which belongs to the column: it has two, for a row that was read and for the one that
  is written, and exchanges them whenever the server computes it for a row that was read. For rows of these tables the server computes
  it more often than for others: fill_record calls TABLE::vers_update_fields, which exchanges the two, and then computes the column again,
  so that UPDATE overwrites the old value; and TABLE::delete_row computes it for the historical row, so that REPLACE overwrites the new one.
  If the memory of the value was too small, the record even points to memory that was freed. Therefore the pointers that the server
  leaves in records are not used.
*/
class GeneratedBlobs {
 public:
  /** The columns that matter to the engine; null if there are none. */
  static std::unique_ptr<GeneratedBlobs> of(TABLE *table);
  /** A column of which a unique key has only the hash, or null. There the server itself compares the overwritten values. */
  static const Field *under_hash(const TABLE *table);

  /**
    Computes them anew from the other columns of a record, and makes it point to values here. Those that are stored are left as they are in
    the record of a row that was read. The server may copy the record: values stay for the next few records.
  */
  void renew(const uchar *record, bool was_read);
  void give_memory_back(size_t most_kept);

 private:
  explicit GeneratedBlobs(TABLE *table) : table_(table) {}

  /** An UPDATE has three records, of the old row, the new one and the historical one, and uses the first two after the last. */
  static constexpr size_t RECORDS = 6;

  TABLE *const table_;
  std::vector<Field_blob *> columns_;
  /** For each of these records the values of all columns. `new String[]` would take memory of the statement. */
  std::vector<String> values_;
  size_t record_ = 0;
};

/** A copy of a record in which virtual columns are computed again. */
struct RecordCopy {
  std::vector<uchar> record;
  /** The values of the virtual columns that are blobs. */
  std::vector<String> values;

  void make_room(const TABLE *table, size_t virtual_columns);
  /** Computes `columns` from the other columns of the copy. `columns` must have the size that was given to `make_room`. */
  void compute(TABLE *table, const std::vector<Field *> &columns);
  void give_memory_back(size_t most_kept);
};

/**
  The virtual columns of a table that has some in its secondary keys.

  For a row event, the server computes only the virtual columns that the event has, and in new rows before a BEFORE trigger changes others. So
  those that MINIMAL or NOBLOB images leave out, and those that only the replica has, have any value in the records of the old and the new row,
  but the keys need them.
*/
class VirtualColumns {
 public:
  /** Null if the table has none in its keys. */
  static std::unique_ptr<VirtualColumns> of(TABLE *table);
  /** Makes the records of the old row and, if `after` is not null, the new row point to copies in which the columns are computed. */
  void compute(const uchar **before, const uchar **after);
  void give_memory_back(size_t most_kept);

 private:
  VirtualColumns(TABLE *table, std::vector<Field *> columns);

  TABLE *const table_;
  const std::vector<Field *> columns_;
  RecordCopy before_, after_;
};

/**
  The STORED generated columns of a table that has generated columns in its secondary keys.

  DELETE, REPLACE, ON DUPLICATE KEY UPDATE and, with system versioning, UPDATE compute these columns again in the record of the old row.
  The result can differ from the value that is stored, and that the entries of the row have: TIME(ts) depends on the session's time zone.
*/
class StoredColumns {
 public:
  /** Null if the table has none that matter to its entries. */
  static std::unique_ptr<StoredColumns> of(TABLE *table);

  /** Where the row may be read. */
  std::string row;
  /**
    If these columns differ, makes the records of the old row and, if there is one, the new row point to copies in which they are as they are
    in `row`. In the new row, those are that have the same values in both records: the statement does not change them. Blobs of the copies
    point into `row`. Returns false if `row` cannot be decoded.
  */
  bool restore(const RowFormat &format, Slice row, const uchar **before, const uchar **after);
  void give_memory_back(size_t most_kept);

 private:
  using Columns = std::vector<unsigned long long>;

  explicit StoredColumns(TABLE *table);
  bool restore(const RowFormat &format, Slice row, const Columns &columns, RecordCopy *copy, const uchar **record);
  bool differ(const RowFormat &format, const uchar *a, const uchar *b) const;

  TABLE *const table_;
  Columns stored_;
  /** The virtual columns, which may depend on the stored ones, if keys have any. */
  std::vector<Field *> virtual_;
  RecordCopy before_, after_;
};

}  // namespace kingtide
