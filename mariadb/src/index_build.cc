/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "index_build.h"

#include <unistd.h>

#include <algorithm>

#include "errors.h"
#include "variables.h"

namespace kingtide {
namespace {

/** Number of entries after which to check whether the statement was killed. */
constexpr uint64_t LOOK_UP = 1024;

/** Opens a nameless file in the server's temporary directory. */
FILE *nameless_file() {
  std::string path = std::string(mysql_tmpdir) + "/kingtide-sort-XXXXXX";
  const int fd = mkstemp(&path[0]);
  if (fd < 0) return nullptr;
  unlink(path.c_str());
  FILE *f = fdopen(fd, "w+");
  if (!f) close(fd);
  return f;
}

int file_error() {
  const int cause = errno;  // writing the log may change it
  sql_print_error("KINGTIDE: entries of an index cannot be sorted in %s: %s", mysql_tmpdir, strerror(cause));
  return cause == ENOSPC ? HA_ERR_RECORD_FILE_FULL : HA_ERR_INTERNAL_ERROR;
}

}  // namespace

IndexBuild::IndexBuild(THD *thd, TABLE *altered, const TableRecord &record, const std::vector<uint> &keys,
                       const RowLog &log, uint64_t rows)
    : thd_(thd),
      altered_(altered),
      format_(altered, record),
      keys_(keys),
      log_(log),
      sort_(sort_memory(), nameless_file),
      expected_(rows) {}

int IndexBuild::look_up() {
  if (++done_ % LOOK_UP != 0) return 0;
  thd_progress_report(thd_, done_, std::max(done_, expected_));
  if (log_.is_too_big()) return ONLINE_LOG_TOO_BIG;
  return thd_kill_level(thd_) != THD_IS_NOT_KILLED ? HA_ERR_ABORTED_BY_USER : 0;
}

bool IndexBuild::show(Slice row) {
  return format_.fits && format_.row.decode(row, altered_->record[0], altered_->s->default_values);
}

int IndexBuild::add(Slice row_key, Slice row) {
  if (const int error = look_up()) return error;
  if (!show(row)) {
    sql_print_error("KINGTIDE: a row of table %s.%s is in an unknown format", altered_->s->db.str,
                    altered_->s->table_name.str);
    return HA_ERR_CRASHED;
  }
  for (uint k : keys_) {
    bool checked;
    format_.entry(format_.indexes[k], altered_, altered_->record[0], row_key, &key_, &value_, &checked);
    if (!sort_.add(key_, value_)) return file_error();
    entries_++;
  }
  return 0;
}

int IndexBuild::finish() {
  if (!sort_.finish()) return file_error();
  done_ = 0;
  expected_ = entries_;
  thd_progress_next_stage(thd_);
  // One file holds all indexes; the entries of each begin with its number.
  SortedFile file(std::string(mysql_tmpdir) + "/kingtide-index-" + std::to_string(getpid()) + "-" +
                  std::to_string(format_.indexes[keys_[0]].id));
  Slice key, value;
  key_.clear();
  while (sort_.next(&key, &value)) {
    if (const int error = look_up()) return error;
    if (key == Slice(key_)) {
      Slice row_key;
      for (uint k : keys_) {
        if (!key.starts_with(format_.indexes[k].prefix()) || !format_.row_key(format_.indexes[k], key, value, &row_key)) continue;
        duplicate_key_ = k;
        duplicate_row_ = row_key.str();
      }
      return HA_ERR_FOUND_DUPP_KEY;
    }
    assign(key_, key);
    if (const int error = server_error(thd_, file.put(key, value))) return error;
  }
  if (sort_.failed()) return file_error();
  return server_error(thd_, file.ingest());
}

}  // namespace kingtide
