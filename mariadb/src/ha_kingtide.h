/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#pragma once

#include "server_version.h"

#include "errors.h"
#include "generated.h"
#include "session.h"
#include "slices.h"
#include "table_share.h"
#include "walk.h"

namespace kingtide {

struct AlterPlan;

/** Whether the statement copies the table; its rows keep their expiry. */
bool copies_table(THD *thd);
/** Whether a row event is being applied to a table, by a replica or a BINLOG statement. */
bool applies_rows_to(THD *thd, const TABLE *table);
/** Whether a replica applies an event before transactions that it may depend on, and repeats its transaction after any error. */
bool applies_speculatively(THD *thd);

/**
  Waits until no prepared transaction has changed rows of the table. The caller must keep other statements from changing rows of it.
*/
int wait_for_prepared(THD *thd, const Index &primary);
/**
  Writes a row. One with long blobs goes to the engine in pieces, straight from the record: neither the buffer nor the transaction holds it.
  Otherwise, the buffer has the row.
*/
Outcome put_row(Txn &txn, const RowFormat &format, const std::string &key, const uchar *record, uint64_t expires, std::string *buffer);

/** How a statement reads rows: from a snapshot, or with a shared or an exclusive lock on each. */
enum class Access { Consistent, Share, Update };

/**
  An open table. Its methods are in several files: handler.cc (capabilities, opening, statistics), ddl.cc, alter.cc, dml.cc,
  ttl.cc, scan.cc, locks.cc, admin.cc and check.cc. The server is given a GuardedHandler.
*/
class Handler : public CostingHandler {
 public:
  Handler(handlerton *hton, TABLE_SHARE *share);
  ~Handler() override;

  // Capabilities.
  Table_flags table_flags() const override;
  ulong index_flags(uint index, uint part, bool all_parts) const override;
  const char *index_type(uint) override { return "LSM"; }
  uint max_supported_keys() const override { return MAX_KEY; }
  uint max_supported_key_length() const override { return 3072; }
  uint max_supported_key_part_length() const override { return 3072; }
  uint8 table_cache_type() override { return HA_CACHE_TBL_NOCACHE; }
  const key_map *keys_to_use_for_scanning() override { return &key_map_full; }

  // Opening and statistics.
  int open(const char *name, int mode, uint test_if_locked) override;
  int close() override;
  handler *clone(const char *name, MEM_ROOT *root) override;
  int info(uint what) override;
  int extra(ha_extra_function operation) override;
  int reset() override;
  ha_rows records_in_range(uint index, const key_range *min, const key_range *max, page_range *pages) override;
  ha_rows estimate_rows_upper_bound() override { return HA_POS_ERROR; }
  int analyze(THD *thd, HA_CHECK_OPT *options) override;
  int optimize(THD *thd, HA_CHECK_OPT *options) override;
  int check(THD *thd, HA_CHECK_OPT *options) override;
  int repair(THD *thd, HA_CHECK_OPT *options) override;
  int check_for_upgrade(HA_CHECK_OPT *options) override;

  // Definition.
  int create(const char *name, TABLE *form, HA_CREATE_INFO *info) override;
  int delete_table(const char *name) override;
  int rename_table(const char *from, const char *to) override;
  int truncate() override;
  int reset_auto_increment(ulonglong value) override;
  void update_create_info(HA_CREATE_INFO *info) override;
  bool check_if_incompatible_data(HA_CREATE_INFO *info, uint changes) override;

  // In-place ALTER TABLE.
  enum_alter_inplace_result check_if_supported_inplace_alter(TABLE *altered, Alter_inplace_info *info) override;
  bool prepare_inplace_alter_table(TABLE *altered, Alter_inplace_info *info) override;
  bool inplace_alter_table(TABLE *altered, Alter_inplace_info *info) override;
  bool commit_inplace_alter_table(TABLE *altered, Alter_inplace_info *info, bool commit) override;
  bool can_convert_nocopy(const Field &field, const Column_definition &type) const override;
  Compare_keys compare_key_parts(const Field &old_field, const Column_definition &new_field, const KEY_PART_INFO &old_part,
                                 const KEY_PART_INFO &new_part) const override;

  // Changes.
  int write_row(const uchar *record) override;
  int update_row(const uchar *before, const uchar *after) override;
  int delete_row(const uchar *record) override;
  void get_auto_increment(ulonglong offset, ulonglong increment, ulonglong wanted, ulonglong *first,
                          ulonglong *reserved) override;

  // Reading.
  int index_init(uint index, bool sorted) override;
  int index_end() override;
  int index_read_map(uchar *record, const uchar *key, key_part_map parts, ha_rkey_function flag) override;
  int index_next(uchar *record) override;
  int index_prev(uchar *record) override;
  int index_first(uchar *record) override;
  int index_last(uchar *record) override;
  int index_next_same(uchar *record, const uchar *key, uint key_length) override;
  int rnd_init(bool scan) override;
  int rnd_end() override;
  int rnd_next(uchar *record) override;
  int rnd_pos(uchar *record, uchar *position) override;
  void position(const uchar *record) override;
  int cmp_ref(const uchar *a, const uchar *b) override;
  void unlock_row() override;
  void try_semi_consistent_read(bool yes) override { semi_consistent_ = yes; }
  bool was_semi_consistent_read() override;
  Item *idx_cond_push(uint index, Item *condition) override;

  int multi_range_read_init(RANGE_SEQ_IF *seq, void *param, uint ranges, uint mode, HANDLER_BUFFER *buffer) override;
  int multi_range_read_next(range_id_t *range) override;
  ha_rows multi_range_read_info(uint index, uint ranges, uint keys, uint parts, uint *buffer, uint *flags,
                                Cost_estimate *cost) override;
  int multi_range_read_explain_info(uint mode, char *text, size_t size) override;

  // Locks.
  uint lock_count() const override { return 0; }
  THR_LOCK_DATA **store_lock(THD *thd, THR_LOCK_DATA **to, thr_lock_type type) override;
  int external_lock(THD *thd, int type) override;
  int start_stmt(THD *thd, thr_lock_type type) override;

 private:
  friend class Inspection;
  ha_rows row_count() const override;
  int64_t uncommitted_rows() const;
  uint64_t count_own(uint64_t rows, uint64_t own, const std::string &from, const std::string &to) const;
  /** Direction of a scan. */
  enum class Way { Forward, Backward };

  Session *session() const { return Session::of(ha_thd()); }
  Txn &txn() const { return copying_.open() ? copying_.txn() : session()->txn(); }
  const TableFormat &format() const { return share_->format(); }
  int fail(Outcome o) const { return o == Outcome::Ok ? 0 : server_error(ha_thd(), o); }
  bool locking() const { return access_ != Access::Consistent; }
  LockMode lock_mode() const { return access_ == Access::Update ? LockMode::Exclusive : LockMode::Shared; }
  /**
    Whether rows may change between the beginning of a walk and the change of them, although no other session sees them: a function that
    the statement calls may change a temporary table, and no other.
  */
  bool changes_below() const { return access_ == Access::Update && table->s->tmp_table != NO_TMP_TABLE; }
  /**
    Whether a locking statement locks only the rows that it uses. A row event names the rows that it changes, so other transactions may change
    rows that its search passed, and insert rows that it did not find. Locks on those could wait for a prepared XA transaction that ends later
    in the binary log.
  */
  bool locks_only_rows() const { return event_locks_rows_ || session()->reads_committed(); }
  /** Whether keys that a locking statement did not find must stay absent. */
  bool locks_gaps() const { return locking() && !skip_locked_ && !changes_below() && (checks_unique_ || !locks_only_rows()); }

  bool can_see(THD *thd) const;
  bool can_see_index(uint index) const;
  int refuse_outdated(THD *thd) const;
  /** Called when a statement begins to use the table. */
  int use(THD *thd, bool writes);
  bool isolation_allows_statements() const;
  void show_rows_per_key();
  void give_memory_back();

  // ddl.cc
  std::string last_name(const std::string &name) const;
  int refuse_lost_partition(const std::string &name) const;
  int refuse_lost(const std::string &name) const;
  Outcome find_lost(const std::string &from, const std::string &to, bool *exists) const;

  // alter.cc
  int number_new_indexes(Dictionary::Alteration *change, const AlterPlan &plan);
  std::vector<const Handler *> partitions() const;
  const char *refused_by(const std::vector<const Handler *> &partitions, TABLE *altered, const Alter_inplace_info *info) const;
  void print_build_error(int error, TABLE *altered, inplace_alter_handler_ctx *context);
  int begin_copy(bool ignores);
  int end_copy();
  void abort_copy();
  int copied();

  // locks.cc
  int wait_for_prepared();
  Access access_of_statement(THD *thd, thr_lock_type type) const;

  // dml.cc
  void renew_generated(const uchar *record, bool was_read) {
    if (generated_blobs_) generated_blobs_->renew(record, was_read);
  }
  int still_same(Slice row_key);
  int as_stored(Slice row_key, const uchar **before, const uchar **after);
  int note_overwritten(const std::string &key, bool *newer);
  int note_covered(const Index &index, Slice key);
  int insert_row(const uchar *record);
  Series series(const Field &number) const;
  int saw_number(const Field &number);
  int generate_number();
  int number_written(int error);
  int row_key_of(const uchar *record, std::string *key);
  int changed_row_key(const uchar *before, std::string *key);
  int check_unique(uint number, Slice key);
  int check_all_unique(const uchar *record);
  int insert_entries(const uchar *record, Slice row_key);
  int move_entry(const Index &index, const uchar *before, const uchar *after, Slice old_row, Slice new_row, bool always);

  /** Calls a function with the transaction that gets the row, again if it returns Busy and the rows are written in slices. */
  template <class Write>
  Outcome write(const Write &write) {
    return copying_.open() ? copying_.write(write) : write(session()->txn());
  }
  Outcome put(Slice key, Slice value) {
    return write([&](Txn &txn) { return txn.put(key, value, expires_); });
  }
  Outcome put_row(const std::string &key, const uchar *record);
  void count_row(int64_t change);

  // ttl.cc
  int decide_expiry(const uchar *record);
  int or_expired(uchar *record, int error) {
    unknown_row_ = false;
    return error == HA_ERR_KEY_NOT_FOUND || error == HA_ERR_END_OF_FILE ? or_renewed(record, error) : error;
  }
  int or_renewed(uchar *record, int error);
  bool logs_rows_only() const;

  // scan.cc
  int start(Slice from, Slice to, Way way);
  std::string upper_of_range() const;
  int start_range(Slice from);
  int step(uchar *record, Way way);
  int advance();
  int see_changes();
  /** Which entries a walk may miss: none, some ahead of its position, or also some behind it. */
  enum class Missed { Nothing, Ahead, Behind };
  /**
    Whether the walk locks rows but not its range, so that other transactions may change what the range holds. In a temporary table only
    functions that the statement calls can do so. These may move rows ahead without end, so the walk does not follow them.
  */
  bool locks_single_rows() const { return locking() && !locks_gaps() && !changes_below(); }
  void note_changed_row();
  void note_delivered();
  bool was_delivered(Slice row_key) const;
  bool needs_order() const;
  bool locks_by_steps() const;
  int lock_ahead();
  int iter_error();
  int deliver(uchar *record);
  int deliver_row(uchar *record, bool *pass);
  int deliver_entry(uchar *record, bool *pass);
  int from_entry(Slice key, Slice value, uchar *record, bool *pass);
  int pass_outdated(const uchar *record, bool *pass);
  /** Whether a row's entry may have changed before the row was read. Otherwise it is locked, or read_unique_row checks it. */
  bool rechecks_entries() const { return !locks_gaps() && (!locking() || iter_.open()); }
  int pass_overwritten(Slice key, Slice row_key, bool *pass);
  int pass_covered(Slice row_key, bool *pass);
  bool sees_covered() const {
    return !locking() && index_->unique && !index_->primary && session()->has_covered(index_->id);
  }
  bool serves_handler_read() const { return thd_sql_command(ha_thd()) == SQLCOM_HA_READ; }
  bool reads_uncommitted() const { return !locking() && session()->reads_uncommitted(); }
  /**
    Whether to read the newest rows without locks, as no other session has them: of a temporary table that got rows after the
    transaction's snapshot, by a copy that a ROLLBACK does not take back.
  */
  bool reads_newest() const { return table->s->tmp_table != NO_TMP_TABLE && session()->precedes_copy(*share_); }
  template <class Read>
  Outcome read_locked(bool waits, const Read &read);
  bool may_look_first() const;
  Outcome get_row_locked(Slice *row);
  Outcome get_row(Slice *row);
  Slice read_value(Value *read);
  bool reads_keys_only() const;
  bool gives_all(const uchar *record) const;
  bool needs_all() const;
  bool lacks_key_columns() const;
  bool only_deletes() const;
  bool only_selects() const;
  bool has_long_rows() const;
  bool reads_pieces(const uchar *record) const;
  int read_key_alone(uchar *record, bool *pass);
  int read_row_in_pieces(uchar *record, bool *pass);
  bool passes(Outcome o, bool *pass);
  int read_row(Slice key, uchar *record, bool *pass);
  int read_whole_key(uchar *record, bool *pass);
  int read_unique(uchar *record);
  int read_first_of_key(uchar *record);
  int read_unique_row(uchar *record, bool *pass);
  bool has_last_row(Slice key) const;
  int decode_row(Slice row, uchar *record);
  int unknown_row() const;
  void compute_beginnings(uchar *record);
  Wanted wanted(const uchar *record) const;
  int damaged();

  TableShare *share_ = nullptr;
  Access access_ = Access::Consistent;
  /** What `access_` was when the table was locked: see access_of_statement. */
  Access locked_for_ = Access::Consistent;
  bool skip_locked_ = false;
  /** Whether the server uses the scanned index to check that a value is unique or that periods do not overlap. */
  bool checks_unique_ = false;
  bool key_read_ = false;
  /** Version of the statistics that the server was given last. */
  uint64_t statistics_version_ = 0;
  THR_LOCK_DATA lock_;
  /** A buffer of this handler's own, for multi-range reads of a partition. */
  std::unique_ptr<uchar[]> mrr_memory_;
  HANDLER_BUFFER mrr_buffer_ = {};

  /** While the server copies a table into this one, which no other statement sees. */
  mutable Slices copying_;

  // The scan.
  const Index *index_ = nullptr;
  Walk iter_;
  Way way_ = Way::Forward;
  /** Bounds of the walk. */
  std::string from_, to_;
  /** Whether the range is locked in steps during the walk; the part that is not locked yet; number of entries of the next step. */
  bool by_steps_ = false;
  std::string rest_from_, rest_to_;
  uint step_ = 1;
  /** Where others may have written to the index since `iter_` was opened, and the number of this thread's waits for locks at that time. */
  Missed missed_ = Missed::Nothing;
  uint64_t waits_ = 0;
  /**
    Hashes of the keys of the rows that a walk has delivered, if it locks rows one by one, and how many of them are sorted: those that it
    must not deliver again, because it reads its range once more.
  */
  std::vector<size_t> delivered_;
  size_t sorted_delivered_ = 0;
  /** The number of entries that the walk has passed since it last went back; what it was at the last delivered row. */
  size_t visited_ = 0, visited_at_delivered_ = 0;
  /** The number of entries that it went back over, in all. */
  size_t passed_again_ = 0;
  /** The entry of the last of those rows; empty if there is none. */
  std::string last_delivered_;
  bool cloned_ = false;
  /** Value of Txn::lock_calls after the last row was locked; 0 if that row must stay locked. */
  uint64_t row_lock_ = 0;
  /** The row that was read last, in `row_` or `value_`; value of Txn::lock_calls after it was locked, or 0. */
  Slice last_row_;
  uint64_t last_row_lock_ = 0;
  /**
    Whether an UPDATE may read a locked row before it waits for it; whether it did so with the last row; whether to read the same
    row again, with a lock.
  */
  bool semi_consistent_ = false, did_semi_consistent_ = false, again_ = false;
  /** Whether the statement is a row event of a binary log, and whether that event locks single rows. */
  bool applies_rows_ = false, event_locks_rows_ = false;
  /** Position of the scan: the key of the entry that was delivered last or, if `at_end_` is set, an end of the range. */
  std::string position_;
  /** Whether the walk has ended, and `position_` is a bound of the range and not an entry. The walk may turn around there. */
  bool at_end_ = false;
  /**
    The row of the entry at `position_`. Set in unique indexes, and only if a walk may see two entries with the same key, or may do so
    later: HANDLER continues in another statement.
  */
  std::string position_row_;
  /** The record into which the walk's first row was read; null before. */
  const uchar *first_record_ = nullptr;
  /** If not empty, a walk that continues from here passes the entries with this key up to that row. */
  std::string passed_key_, passed_row_;
  /** Prefix of the keys of all entries that index_next_same returns. */
  std::string same_;
  /** Whether the walk is bounded to the keys with the prefix `same_`. */
  bool only_same_ = false;

  /** Whether to decode all columns of the row, even those that the statement does not read. */
  bool whole_row_ = false;
  /** Whether the rows are read to be copied into a new version of the table. */
  bool for_copy_ = false;

  /** The row that was read last, a copy or the engine's memory: the record's blobs point into it. */
  std::string row_;
  Value value_;
  /** Whether the walk reads a value only when it is asked for. */
  bool only_keys_ = false;
  /** Primary key of the last row, without the index number. A consistent walk sets it only if the key is hidden. */
  std::string row_key_;
  std::string whole_key_;
  /** Whether the last row had expired here, while a row event is to change it that does not have all of its columns. */
  bool unknown_row_ = false;

  std::string key_buffer_, entry_buffer_, second_key_, second_value_;
  /** When the row that is being written expires, in milliseconds since 1970; 0 for never. */
  uint64_t expires_ = 0;
  /** The series of the last auto-increment value that was generated here; explicit values raise the table's counter in its steps. */
  uint64_t auto_offset_ = 0, auto_increment_ = 1;
  /** The value behind those that the statement reserved last; 0 if it reserved none. */
  uint64_t auto_reserved_end_ = 0;
  /** Why the last value could not be reserved, until the row's write returns it. */
  int number_error_ = 0;
  /** Null in most tables. */
  std::unique_ptr<GeneratedBlobs> generated_blobs_;
  std::unique_ptr<VirtualColumns> virtual_columns_;
  std::unique_ptr<StoredColumns> stored_columns_;
  /** Number of the key that had a duplicate. */
  uint duplicate_ = 0;
};

}  // namespace kingtide
