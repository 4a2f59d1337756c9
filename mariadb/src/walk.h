/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "engine.h"
#include "fields.h"
#include "snapshot.h"

namespace kingtide {

/**
  A walk over the entries of an index that a transaction sees, in one direction.

  These are what its iterator shows: the entries of the snapshot, and instead of those with the same keys its own. That is not enough in a
  unique index, where the key of an entry does not have the primary key: if others have taken a unique value from a row after the
  snapshot, the transaction can give it to another row, and then sees both rows with it. InnoDB, whose entries all
  have the primary key, returns both. Therefore such a walk also shows what the snapshot has (`with`), entries with the same key in the
  order of the rows' primary keys. Whether the transaction still sees the row of such an entry must be checked.
*/
class Walk {
 public:
  void close() {
    seen_.close();
    old_.close();
    at_ = &seen_;
    format_ = nullptr;
  }
  bool open() const { return seen_.open(); }
  /** The transaction's iterator, to be opened. */
  Iter *seen() { return &seen_; }
  /** Before the walk begins: adds the entries of the same range that a snapshot has. */
  Outcome with(const Snapshot &snapshot, Slice from, Slice to, const TableFormat &format, const Index &index);
  void only_keys() { seen_.only_keys(); }

  void first() {
    seen_.first();
    if (format_) begin(true);
  }
  void last() {
    seen_.last();
    if (format_) begin(false);
  }
  void next() {
    at_->next();
    if (format_) choose();
  }
  void prev() {
    at_->prev();
    if (format_) choose();
  }
  bool valid() const { return at_->valid(); }
  Slice key() const { return at_->key(); }
  Outcome value(Slice *value) { return at_->value(value); }
  uint64_t expires() const { return at_->expires(); }
  Outcome status();
  /** Whether only the snapshot has the current entry, and not the transaction. */
  bool at_covered() const { return at_ == &old_; }

 private:
  void begin(bool forward);
  void choose();
  int compare();

  Iter seen_, old_;
  /** The one that has the current entry. */
  Iter *at_ = &seen_;
  /** Set if the walk shows the snapshot's entries, too. */
  const TableFormat *format_ = nullptr;
  const Index *index_ = nullptr;
  bool forward_ = true;
};

}  // namespace kingtide
