/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "server.h"

#include <vector>

#include "../codec/key_codec.h"
#include "../codec/row_codec.h"
#include "../codec/table_record.h"

/**
  The thin layer between the server's Fields and KEYs and the codecs, which know neither.

  An index entry, behind the 4 bytes of its index's number:

      primary or hidden key   key parts -> row
      unique, no NULL in it   key parts -> varint of the primary key's bytes, these, kept columns
      other                   key parts, primary key's parts -> kept columns

  Kept columns are those that the key's bytes do not give back (text has only its weights there), of the index and then of the
  primary key, in the form that rows have. With them every index covers its own columns and the primary key's.
*/
namespace kingtide {

/** While it lives, a debug server does not object to columns being read for which the statement did not ask. */
class AllColumnsReadable {
 public:
  explicit AllColumnsReadable(TABLE *table) : table_(table), asked_(dbug_tmp_use_all_columns(table, &table->read_set)) {}
  ~AllColumnsReadable() { dbug_tmp_restore_column_map(&table_->read_set, asked_); }

 private:
  TABLE *const table_;
  MY_BITMAP *const asked_;
};

/** Bytes of the key of a table's row that has no primary key. */
constexpr uint HIDDEN_KEY = 8;

struct IndexPart {
  KeyPart codec;
  /** Number of the field in the table. */
  uint field = 0;
  /** Bytes of the column that the index looks at. */
  uint length = 0;
  CHARSET_INFO *charset = nullptr;
  /** In a key tuple of the server, the data have 2 bytes of length in front. */
  bool sized_in_tuple = false;
  /** The image is the bytes themselves. */
  bool raw = false;
  /** The whole column is part of the index, so that entries can give it back: from the key, or kept. */
  bool whole = false;
  Column column;

  bool kept() const { return whole && codec.kind != PartKind::Integer; }
  /** Bytes of a key tuple that have the part, without the one that says whether it is NULL. */
  uint tuple_length() const { return length + (sized_in_tuple ? HA_KEY_BLOB_LENGTH : 0); }
  Slice data_in_tuple(const uchar *tuple) const {
    return sized_in_tuple ? Slice(tuple + HA_KEY_BLOB_LENGTH, uint2korr(tuple)) : Slice(tuple, length);
  }
};

struct Index {
  uint32_t id = 0;
  bool primary = false;
  bool unique = false;
  std::vector<IndexPart> parts;
  /**
    Of an index whose entries end with the primary key: for each part of that, which of `parts` has the same column, or -1. The
    server takes the latter for further parts of the index ("extended keys").
  */
  std::vector<int> tail;
  /** How many parts the server knows: there may be fewer than the entries have. */
  size_t extended_parts = 0;
  /** Parts of it and of the primary key that have only the beginning of a column: entries cannot give these columns back. */
  std::vector<IndexPart> beginnings;
  /** Some of these columns are not stored in the row either, but computed. */
  bool has_virtual_beginnings = false;

  std::string prefix() const;
  /** The least key behind all of the index's. */
  std::string end() const;
};

/** Whether entries of an index look the same in both. */
bool same_form(const Index &a, const Index &b);

/** A table's stored columns, in the order of its fields. */
std::vector<Column> row_columns(const TABLE *table);
/** Gives a table without rows its layout. */
void set_first_layout(const std::vector<Column> &columns, TableRecord *record);

/** A collation of the table's keys that needs another form of keys than the first one; nullptr if there is none. */
CHARSET_INFO *collation_of_key_form(const TABLE *table);
/** Sets the form in which the keys of a table are written whose indexes are empty, or are known to have that form. */
void set_key_form(const TABLE *table, TableRecord *record);

/** What a table's record and indexes look like. Made once for a table, valid for all its openings. */
class TableFormat {
 public:
  TableFormat(const TABLE *table, const TableRecord &record);

  /** Whether the definition and the dictionary's record agree. If not, nothing else here is of use. */
  bool fits = false;
  /** The keys are in an outdated format: nothing but a copy of the rows can be made. */
  bool outdated = false;
  RowFormat row;
  /** Columns of the row by number of field; -1 for those that are not stored. */
  std::vector<int> stored;
  std::vector<Index> indexes;
  /** The index that has the rows: `indexes[primary_key]`, or the hidden one. */
  Index primary;
  bool hidden_primary = false;

  /** Appends the parts of a record's key. Sets `null`, unless it is nullptr, when one of them is NULL. */
  void append_key(const Index &index, TABLE *table, const uchar *record, std::string *out, bool *null) const;
  /** Whether all parts of a key tuple that `map` names are integers, and belong to the index itself and not to an appended primary key. */
  bool sorts_by_integers(const Index &index, key_part_map map) const;
  /** Appends the parts of a key tuple that `map` names, and counts those that are not the primary key's. */
  void append_tuple(const Index &index, TABLE *table, const uchar *tuple, key_part_map map, std::string *out, bool *null,
                    uint *parts) const;

  /**
    A row's position, by which the server finds it again: the columns of its primary key as a key tuple has them, which takes
    far less room than the longest key of these columns could. A hidden key is its own position.
  */
  uint position_length() const;
  void position(const uchar *record, uchar *position) const;
  /** Compares positions as the primary index has their rows: only then can the server intersect what it reads from indexes. */
  int compare_positions(TABLE *table, const uchar *a, const uchar *b) const;

  /** Makes the entry of a record in a secondary index. `row_key` is the primary key, without its prefix. */
  void entry(const Index &index, TABLE *table, const uchar *record, Slice row_key, std::string *key, std::string *value,
             bool *checked) const;
  /** Whether two records with the same key of the row surely have the same entry in a secondary index. */
  bool same_entry(const Index &index, const uchar *a, const uchar *b) const;
  /**
    Whether entries of a secondary index give back all wanted columns that the server may look for in them. It compares records
    with the end of a range by columns of which the index has only the beginning, and asks for the position of rows by such
    columns of the primary key.
  */
  bool covers(const Index &index, Wanted wanted) const;
  /** Whether the primary key's bytes alone give back all that is wanted. */
  bool primary_gives(Wanted wanted) const;
  /** Fills in the columns of a record that these bytes give back. */
  bool restore_primary(Slice key, uchar *record) const;
  /** Finds the primary key's bytes in an entry of a secondary index. */
  bool row_key(const Index &index, Slice key, Slice value, Slice *row_key) const;
  /** Fills in the columns that an entry of a secondary index gives back, if any of them is wanted. */
  bool restore(const Index &index, Slice key, Slice value, uchar *record, Wanted wanted = Wanted()) const;

 private:
  void describe_tail(Index *index) const;
  void find_beginnings(Index *index) const;
  void append_part(const IndexPart &part, TABLE *table, Slice data, std::string *out) const;
  bool gives_back(const Index &index, Wanted wanted) const;
  bool restore_parts(const Index &index, Slice *key, Slice *kept, uchar *record) const;
};

}  // namespace kingtide
