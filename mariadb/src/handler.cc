/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/* Capabilities of the handler; opening and closing; what the optimizer asks for. */
#include "ha_kingtide.h"

#include <cmath>

#include <sys/stat.h>

#include "variables.h"

namespace kingtide {
namespace {

/** Up to this many entries, records_in_range counts instead of estimating. */
constexpr uint64_t COUNTED_ENTRIES = 16;
/** Up to this many entries, those of the transaction itself are counted. */
constexpr uint64_t COUNTED_OWN_ENTRIES = 256;
/** Bytes that a buffer may keep after a statement. */
constexpr size_t MOST_KEPT = 1 << 20;

/**
  When the table got its present definition: the time of the last change of status (st_ctime) of its .frm, as InnoDB shows. 0 if it has none, as
  for temporary tables.
*/
time_t defined_at(const TABLE_SHARE *share) {
  const std::string path = std::string(share->normalized_path.str, share->normalized_path.length) + reg_ext;
  struct stat found;
  return ::stat(path.c_str(), &found) == 0 ? found.st_ctime : 0;
}

}  // namespace

Handler::Handler(handlerton *hton, TABLE_SHARE *share) : CostingHandler(hton, share) {}

Handler::~Handler() = default;

handler::Table_flags Handler::table_flags() const {
  return HA_NULL_IN_KEY | HA_CAN_INDEX_BLOBS | HA_CAN_SQL_HANDLER | HA_REQUIRES_KEY_COLUMNS_FOR_DELETE |
         HA_PRIMARY_KEY_REQUIRED_FOR_POSITION | HA_PRIMARY_KEY_IN_READ_INDEX | HA_TABLE_SCAN_ON_INDEX | HA_REC_NOT_IN_SEQ |
         HA_BINLOG_ROW_CAPABLE | (isolation_allows_statements() && !logs_rows_only() ? HA_BINLOG_STMT_CAPABLE : 0) |
         HA_CAN_GEOMETRY | HA_CAN_VIRTUAL_COLUMNS | HA_CRASH_SAFE | HA_CAN_SKIP_LOCKED | HA_CAN_REPAIR |
         HA_CAN_ONLINE_BACKUPS | VERSION_TABLE_FLAGS;
}

/** Replaying a statement from the binary log gives the same result only if all that it read was locked. */
bool Handler::isolation_allows_statements() const {
  THD *thd = current_thd;
  return !thd || thd_tx_isolation(thd) > ISO_READ_COMMITTED;
}

ulong Handler::index_flags(uint index, uint part, bool all_parts) const {
  const ulong flags = HA_READ_NEXT | HA_READ_PREV | HA_READ_ORDER | HA_READ_RANGE | HA_KEYREAD_ONLY;
  if (index == table_share->primary_key) return flags | HA_CLUSTERED_INDEX;
  return flags | HA_DO_INDEX_COND_PUSHDOWN;
}

int Handler::open(const char *name, int mode, uint test_if_locked) {
  int error;
  share_ = TableShare::of(table, this, name, &error);
  if (!share_) return error;
  ref_length = format().position_length();
  // A table scan follows this key. If an UPDATE changes it, the server must collect the rows first; otherwise the scan would meet
  // moved rows again.
  key_used_on_scan = table_share->primary_key;
  generated_blobs_ = GeneratedBlobs::of(table);
  virtual_columns_ = VirtualColumns::of(table);
  stored_columns_ = StoredColumns::of(table);
  thr_lock_data_init(nullptr, &lock_, nullptr);
  return info(HA_STATUS_NO_LOCK | HA_STATUS_VARIABLE | HA_STATUS_CONST);
}

int Handler::close() {
  iter_.close();
  copying_.close();
  generated_blobs_.reset();
  virtual_columns_.reset();
  stored_columns_.reset();
  share_ = nullptr;
  return 0;
}

/** The clone reads for the same statement, but the server does not tell it which locks to take: it takes the same as this one. */
handler *Handler::clone(const char *name, MEM_ROOT *root) {
  auto *other = static_cast<Handler *>(handler::clone(name, root));
  if (!other) return nullptr;
  other->access_ = access_;
  other->skip_locked_ = skip_locked_;
  other->cloned_ = true;
  return other;
}

int Handler::info(uint what) {
  if (what & HA_STATUS_VARIABLE) {
    stats.records = row_count();
    // The optimizer relies on a count of 0, which other sessions' commits can make wrong. With HA_STATUS_OPEN the server asks
    // whether a history partition is in use, and needs the real number.
    if (stats.records == 0 && !(what & (HA_STATUS_TIME | HA_STATUS_OPEN))) stats.records = 1;
    stats.deleted = 0;
    const uint64_t bytes = share_->bytes(what & HA_STATUS_TIME);
    const uint64_t average = bytes / std::max<uint64_t>(share_->rows(), 1);  // of what is committed, as the bytes are
    stats.mean_rec_length = static_cast<ulong>(std::max<uint64_t>(average, table->s->reclength / 4 + 8));
    stats.data_file_length = std::max<uint64_t>(bytes, stats.records * stats.mean_rec_length);
    stats.index_file_length = 0;
    stats.delete_length = 0;
    stats.block_size = 16384;
  }
  // The server asks for HA_STATUS_CONST when it opens a table, but later the optimizer asks only for HA_STATUS_VARIABLE, and the
  // table may have grown in between.
  if (what & HA_STATUS_VARIABLE) share_->sample_if_changed();
  if (what & HA_STATUS_CONST) stats.create_time = defined_at(table_share);
  if ((what & HA_STATUS_CONST) || statistics_version_ != share_->statistics_version()) show_rows_per_key();
  if (what & HA_STATUS_AUTO) stats.auto_increment_value = share_->next_auto_increment();
  if (what & HA_STATUS_ERRKEY) errkey = duplicate_;
  return 0;
}

/** By how many the session's running transaction has raised the number of rows. */
int64_t Handler::uncommitted_rows() const {
  THD *thd = table->in_use ? table->in_use : current_thd;
  const Session *s = thd ? Session::existing(thd) : nullptr;
  return s && s->running() ? s->uncommitted_rows(share_) : 0;
}

/** The number of rows that the session sees, roughly. As with InnoDB, its own changes count before they are committed. */
ha_rows Handler::row_count() const {
  const int64_t rows = static_cast<int64_t>(share_->rows()) + uncommitted_rows();
  return rows > 0 ? static_cast<ha_rows>(rows) : 0;
}

/** Gives the optimizer the statistics: how many rows have the same values in the first columns of a key. */
void Handler::show_rows_per_key() {
  statistics_version_ = share_->statistics_version();
  const TableStatistics statistics = share_->statistics();
  for (uint k = 0; k < table->s->keys; k++) {
    KEY &key = table->key_info[k];
    const auto known = statistics.rows_per_key.find(format().indexes[k].id);
    for (uint i = 0; i < key.ext_key_parts; i++) {
      const bool one = (key.flags & HA_NOSAME) && i + 1 >= key.user_defined_key_parts;
      ulong rows = one ? 1 : 0;  // 0 means unknown
      if (!one && known != statistics.rows_per_key.end() && i < known->second.size()) rows = known->second[i];
      key.rec_per_key[i] = rows;
    }
  }
}

int Handler::extra(ha_extra_function operation) {
  if (Copy::begins(operation)) return begin_copy(Copy::ignores(operation));
  if (Copy::ends(operation)) return end_copy();
  if (Copy::aborts(operation)) abort_copy();
  switch (operation) {
    case HA_EXTRA_KEYREAD:
      key_read_ = true;
      break;
    case HA_EXTRA_NO_KEYREAD:
      key_read_ = false;
      break;
    default:
      break;
  }
  return 0;
}

/** Frees the memory of long rows: the server may keep the handler open for a long time. */
void Handler::give_memory_back() {
  for (std::string *buffer : {&row_, &second_value_, &entry_buffer_})
    if (buffer->capacity() > MOST_KEPT) std::string().swap(*buffer);
  value_.clear();
  if (generated_blobs_) generated_blobs_->give_memory_back(MOST_KEPT);
  if (virtual_columns_) virtual_columns_->give_memory_back(MOST_KEPT);
  if (stored_columns_) stored_columns_->give_memory_back(MOST_KEPT);
}

int Handler::reset() {
  key_read_ = semi_consistent_ = again_ = false;
  auto_reserved_end_ = last_row_lock_ = 0;
  number_error_ = 0;
  iter_.close();
  give_memory_back();
  mrr_.dsmrr_close();
  mrr_memory_.reset();
  return 0;
}

ha_rows Handler::records_in_range(uint number, const key_range *min, const key_range *max, page_range *) {
  if (!can_see_index(number)) return HA_POS_ERROR;  // a range of another index may do
  const Index &index = format().indexes[number];
  std::string from = index.prefix(), to = index.end();
  bool null = false;
  uint parts;
  if (min) {
    format().append_tuple(index, table, min->key, min->keypart_map, &from, &null, &parts);
    if (min->flag == HA_READ_AFTER_KEY) from = after_prefix(from);
  }
  if (max) {
    to = index.prefix();
    format().append_tuple(index, table, max->key, max->keypart_map, &to, &null, &parts);
    if (max->flag == HA_READ_AFTER_KEY) to = after_prefix(to);
  }
  if (Slice(from).compare(to) >= 0) return 1;
  uint64_t rows = Engine::count(from, to, COUNTED_ENTRIES);
  const int64_t own = uncommitted_rows();
  if (own > 0 && static_cast<uint64_t>(own) > rows) rows = count_own(rows, own, from, to);
  return rows ? rows : 1;  // the optimizer would rely on 0
}

/**
  The number of entries of a range, of which `rows` are committed, with those of the transaction, which has added `own` rows to the table.
  The engine has no estimate for these: they are counted, and if they are too many, their number is somewhere between those that were
  counted and all. The geometric mean of the two is wrong by the least factor.
*/
uint64_t Handler::count_own(uint64_t rows, uint64_t own, const std::string &from, const std::string &to) const {
  Iter it;
  if (session()->txn().iterate(from, to, true, &it) != Outcome::Ok) return rows;
  it.only_keys();
  uint64_t counted = 0;
  for (bool valid = it.first(); valid && counted < COUNTED_OWN_ENTRIES; valid = it.next()) counted++;
  if (counted < COUNTED_OWN_ENTRIES || own <= counted) return std::max(rows, counted);
  return std::max(rows, static_cast<uint64_t>(std::sqrt(static_cast<double>(counted) * static_cast<double>(own))));
}

}  // namespace kingtide
