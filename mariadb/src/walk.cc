/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "walk.h"

namespace kingtide {

Outcome Walk::with(const Snapshot &snapshot, Slice from, Slice to, const TableFormat &format, const Index &index) {
  format_ = &format;
  index_ = &index;
  return snapshot.iterate(from, to, &old_);
}

void Walk::begin(bool forward) {
  forward_ = forward;
  if (forward)
    old_.first();
  else
    old_.last();
  choose();
}

/** Moves to the next entry of the two iterators, in the direction of the walk. An entry that both have is the transaction's. */
void Walk::choose() {
  for (at_ = &seen_; old_.valid();) {
    const int order = seen_.valid() ? compare() : 1;
    if (order > 0) at_ = &old_;
    if (order != 0) return;
    if (forward_)
      old_.next();
    else
      old_.prev();
  }
}

/** Compares the entries of the two iterators in the direction of the walk. */
int Walk::compare() {
  int order = seen_.key().compare(old_.key());
  if (order == 0) {
    Slice value, old_value, row, old_row;
    if (seen_.value(&value) != Outcome::Ok || old_.value(&old_value) != Outcome::Ok ||
        !format_->row_key(*index_, seen_.key(), value, &row) || !format_->row_key(*index_, old_.key(), old_value, &old_row))
      return 0;  // a damaged entry: the transaction's is shown, and reported
    order = row.compare(old_row);
  }
  return forward_ ? order : -order;
}

Outcome Walk::status() {
  const Outcome o = seen_.status();
  return o == Outcome::Ok && format_ ? old_.status() : o;
}

}  // namespace kingtide
