/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "catch_up.h"

#include "errors.h"

namespace kingtide {
namespace {

/** Number of rows after which to check whether the statement was killed. */
constexpr uint64_t LOOK_UP = 64;
/** At most this many rows are left to the last round. */
constexpr size_t FEW = 200;
/** After this many rounds without progress comes the last round, which blocks writers. */
constexpr int HOPELESS = 5;
/** Bytes of entries that are written in one batch. */
constexpr size_t BATCH = 256 << 10;

}  // namespace

Outcome CatchUp::begin() {
  snapshots_.emplace_back();
  return snapshots_.back().take();
}

int CatchUp::killed() {
  return seen_++ % LOOK_UP == 0 && thd_kill_level(thd_) != THD_IS_NOT_KILLED ? HA_ERR_ABORTED_BY_USER : 0;
}

bool CatchUp::show(Slice row) {
  return format_.fits && format_.row.decode(row, altered_->record[0], altered_->s->default_values);
}

void CatchUp::show_duplicate(uint key, const std::string &row_key) {
  bool there;
  duplicate_ = key;
  read(base(), row_key, &there);
}

int CatchUp::follow() {
  size_t before = SIZE_MAX;
  for (int hopeless = 0; !log_->is_too_big();) {
    RowKeys keys = log_->take();
    const size_t found = keys.size();
    // Rows that were processed before and changed again are in the log again.
    for (const std::string &key : keys)
      if (looked_at_.count(key) != 0) log_->give_room_back({key});
    keys.merge(again_);
    again_.clear();
    if (const int error = round(keys, false)) return error;
    if (found <= FEW) break;
    if (found >= before && ++hopeless == HOPELESS) break;
    before = found;
  }
  return 0;
}

int CatchUp::finish() {
  RowKeys keys = log_->take_all();
  keys.merge(again_);
  again_.clear();
  return round(keys, true);
}

/** Erases all old entries before writing new ones, so that rows can exchange values of a unique index. */
int CatchUp::round(const RowKeys &keys, bool last) {
  if (keys.empty()) return 0;
  if (const int error = server_error(thd_, begin())) return error;
  for (const std::string &key : keys)
    if (const int error = remove_old(key)) return error;
  if (const int error = flush_if(1)) return error;
  for (const std::string &key : keys)
    if (const int error = put_new(key, last)) return error;
  return flush_if(1);
}

/** Reads the row as of a snapshot into the record. */
int CatchUp::read(const Snapshot &snapshot, const std::string &row_key, bool *there) {
  const Outcome o = snapshot.get(format_.primary.prefix() + row_key, &row_);
  *there = o == Outcome::Ok;
  if (o == Outcome::NotFound) return 0;
  if (o != Outcome::Ok) return server_error(thd_, o);
  if (show(row_)) return 0;
  sql_print_error("KINGTIDE: a row of table %s.%s is in an unknown format", altered_->s->db.str,
                  altered_->s->table_name.str);
  return HA_ERR_CRASHED;
}

/** Builds the index entry of the row in the record. */
void CatchUp::entry(uint k, const std::string &row_key, Entry *e) {
  format_.entry(format_.indexes[k], altered_, altered_->record[0], row_key, &e->key, &e->value, &e->checked);
}

/** Finds the row that now has a given entry of a unique index. */
int CatchUp::owner(const Index &index, const std::string &key, bool *there, std::string *row_key) {
  const auto fresh = fresh_.find(key);
  *there = true;
  if (fresh != fresh_.end()) {
    *row_key = fresh->second;
    return 0;
  }
  const Outcome o = newest_entry(key, &found_);
  *there = o == Outcome::Ok;
  if (o == Outcome::NotFound) return 0;
  if (o != Outcome::Ok) return server_error(thd_, o);
  Slice whose;
  if (!format_.row_key(index, key, found_, &whose)) return HA_ERR_CRASHED;
  assign(*row_key, whose);
  return 0;
}

int CatchUp::remove_old(const std::string &row_key) {
  if (const int error = killed()) return error;
  const auto looked_at = looked_at_.find(row_key);
  const size_t then = looked_at == looked_at_.end() ? 0 : looked_at->second;
  bool there;
  if (const int error = read(snapshots_[then], row_key, &there)) return error;
  if (!there) return 0;
  for (uint k : keys_) {
    entry(k, row_key, &old_);
    if (old_.checked) {
      std::string whose;
      if (const int error = owner(format_.indexes[k], old_.key, &there, &whose)) return error;
      if (!there || whose != row_key) continue;
    }
    if (!batch_) batch_.reset(new Batch);
    batch_->erase(Space::Rows, old_.key);
    batch_bytes_ += old_.key.size();
  }
  return flush_if(BATCH);
}

int CatchUp::put_new(const std::string &row_key, bool last) {
  if (const int error = killed()) return error;
  bool there;
  if (const int error = read(snapshots_.back(), row_key, &there)) return error;
  for (uint k : keys_) {
    if (!there) break;
    entry(k, row_key, &new_);
    if (new_.checked) {
      bool taken;
      std::string whose;
      if (const int error = owner(format_.indexes[k], new_.key, &taken, &whose)) return error;
      if (taken && whose != row_key) {
        duplicate_ = k;
        if (last) return HA_ERR_FOUND_DUPP_KEY;
        again_.insert(row_key);
        continue;
      }
      fresh_[new_.key] = row_key;
    }
    if (!batch_) batch_.reset(new Batch);
    batch_->put(Space::Rows, new_.key, new_.value);
    batch_bytes_ += new_.key.size() + new_.value.size();
  }
  looked_at_[row_key] = snapshots_.size() - 1;
  return flush_if(BATCH);
}

int CatchUp::flush_if(size_t bytes) {
  if (!batch_ || batch_bytes_ < bytes) return 0;
  const Outcome o = Engine::write(*batch_, Durability::Process);
  batch_.reset();
  batch_bytes_ = 0;
  fresh_.clear();
  return server_error(thd_, o);
}

}  // namespace kingtide
