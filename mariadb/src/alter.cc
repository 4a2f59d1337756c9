/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/*
  ALTER TABLE in place. All of its effects are written in a single batch when the server commits it: the table's new record, which
  includes the server's name for the new definition, and the removal of dropped indexes. The server's DDL log records what must
  happen to its own files. After a crash between the batch and these files, the server asks whether the table was altered to that
  name (check_version), and then completes or undoes its part.

  Added indexes are built before that, under numbers that no table uses: index_build.h. The dictionary lists their numbers as
  being built until the batch assigns them; any that are left when the server starts are erased. Other sessions may change rows
  meanwhile: catch_up.h. The statement has exclusive access to the table at its beginning and at its end. Where FORCE is asked for in place, the
  rows are written under such a number, too: row_rewrite.h.
*/
#include "alter_plan.h"
#include "catch_up.h"
#include "families.h"
#include "ha_kingtide.h"
#include "index_build.h"
#include "row_rewrite.h"
#include "variables.h"

#ifdef WITH_PARTITION_STORAGE_ENGINE
#include <ha_partition.h>
#endif

#include <algorithm>

namespace kingtide {
namespace {

/** State from prepare to commit. */
class Altering : public inplace_alter_handler_ctx {
 public:
  Dictionary::Alteration change;
  TableShare *share = nullptr;
  /** Keys whose indexes are being built. */
  std::vector<uint> added;
  /** Whether the rows are written again. */
  bool rewrites = false;
  /** The log of rows that other sessions change meanwhile, and what applies it to the indexes. */
  std::shared_ptr<RowLog> log;
  std::unique_ptr<CatchUp> catch_up;
  /** The next auto-increment value when the statement began. */
  uint64_t next_auto_increment = 0;
  /** The next auto-increment value after the statement, until the server is restarted. */
  uint64_t kept_auto_increment = 0;

  /** Whether this belongs to the whole table or to its last partition. Partitions are altered one after the other. */
  bool is_last_of(const Alter_inplace_info &info) const {
    inplace_alter_handler_ctx **all = info.group_commit_ctx;
    while (all && *all && *all != this) all++;
    return !all || !*all || !all[1];
  }

  ~Altering() override { end_log(); }
  void end_log() {
    if (log) RowLog::end(share->record().primary);
    log.reset();
  }
};

/** Lets no exception reach the server. */
template <class Work>
int guarded(Work work) {
  try {
    return work();
  } catch (const std::bad_alloc &) {
    return HA_ERR_OUT_OF_MEM;
  }
}

/** Why an index cannot be built. */
const char *const ROWS_EXPIRE = "rows may expire";

/** Progress for SHOW PROCESSLIST. For a partitioned table, that of each partition in turn. */
class Progress {
 public:
  Progress(THD *thd, uint stages) : thd_(thd) { thd_progress_init(thd_, stages); }
  ~Progress() { thd_progress_end(thd_); }
  Progress(const Progress &) = delete;
  Progress &operator=(const Progress &) = delete;

 private:
  THD *const thd_;
};

/** Builds the added indexes from a snapshot taken now. */
int build_indexes(THD *thd, TABLE *altered, Altering *altering) {
  altering->catch_up.reset(new CatchUp(thd, altered, altering->change.after, altering->added, altering->log));
  CatchUp &catch_up = *altering->catch_up;
  if (const int error = server_error(thd, catch_up.begin())) return error;
  thd_proc_info(thd, "building indexes");  // from the snapshot; changes from here on are logged
  const uint64_t rows = altering->share->rows();
  IndexBuild build(thd, altered, altering->change.after, altering->added, *altering->log, rows);
  const Index &primary = catch_up.format().primary;
  Iter it;
  int error = server_error(thd, catch_up.base().iterate(primary.prefix(), primary.end(), &it));
  for (bool valid = !error && it.first(); valid && !error; valid = it.next()) {
    Slice row;
    error = server_error(thd, it.value(&row));
    if (!error) error = build.add(it.key().from(4), row);
  }
  if (!error) error = server_error(thd, it.status());
  it.close();
  if (!error) error = build.finish();
  if (error == HA_ERR_FOUND_DUPP_KEY) {
    const auto [key, row_key] = build.duplicate();
    catch_up.show_duplicate(key, row_key);
  }
  return error;
}

/** With exclusive access to the table: applies to the indexes what other sessions changed while they were built. */
int finish_indexes(THD *thd, Altering *altering) {
  if (const int error = wait_for_prepared(thd, altering->share->format().primary)) return error;
  if (altering->log->is_too_big()) return ONLINE_LOG_TOO_BIG;
  if (altering->share->may_expire()) return HA_ERR_UNSUPPORTED;  // it may since the statement began
  return altering->catch_up->finish();
}

/** Beside the marks in the dictionary, a table that is open has the next auto-increment value and the number of rows, which is only an estimate. */
void keep_counters(const TableShare &share, uint32_t primary, uint64_t next_auto_increment) {
  Dictionary::keep_next_value(primary, next_auto_increment);
  Dictionary::set_counter(Dictionary::Counter::Rows, primary, share.rows());
}

}  // namespace

/** The partitions of the table; for a table without partitions, only this. */
std::vector<const Handler *> Handler::partitions() const {
  std::vector<const Handler *> all;
#ifdef WITH_PARTITION_STORAGE_ENGINE
  if (table->part_info)
    for (handler **one = static_cast<ha_partition *>(table->file)->get_child_handlers(); *one; one++)
      all.push_back(static_cast<const Handler *>(*one));
#endif
  if (all.empty()) all.push_back(this);
  return all;
}

/**
  Why the change cannot be made in place in one of the partitions, whose definition is the same. Their records differ in the numbers of layouts and
  values that plans limit, and in the format of keys: so no partition refuses it if those that come first in one of these do not.
*/
const char *Handler::refused_by(const std::vector<const Handler *> &partitions, TABLE *altered, const Alter_inplace_info *info) const {
  const auto first = [&](const auto &measure) {
    return *std::max_element(partitions.begin(), partitions.end(),
                             [&](const Handler *a, const Handler *b) { return measure(*a) < measure(*b); });
  };
  const Handler *const worst[] = {first([](const Handler &one) { return one.share_->record().layouts.size(); }),
                                  first([](const Handler &one) { return absent_bytes(one.share_->record()); }),
                                  first([](const Handler &one) { return one.format().outdated; })};
  for (const Handler *one : worst) {
    if (one == this) continue;
    if (const char *why = plan_alter(table, altered, info, one->share_->record()).refused) return why;
  }
  return nullptr;
}

enum_alter_inplace_result Handler::check_if_supported_inplace_alter(TABLE *altered, Alter_inplace_info *info) {
  // A copy is refused with an error that says why.
  if (GeneratedBlobs::under_hash(altered) && !GeneratedBlobs::under_hash(table)) return HA_ALTER_INPLACE_NOT_SUPPORTED;
  AlterPlan plan = plan_alter(table, altered, info, share_->record());
  // The server asks each partition, and alters all in place if one of them can be: so each partition must refuse if any of them does.
  const std::vector<const Handler *> all = partitions();
  const auto rows_expire = [](const Handler *one) { return one->share_->may_expire(); };
  if (!plan.added.empty() && std::any_of(all.begin(), all.end(), rows_expire)) {  // the build does not know when entries expire
    info->unsupported_reason = ROWS_EXPIRE;
    return HA_ALTER_INPLACE_NOT_SUPPORTED;
  }
  if (!plan.refused) plan.refused = refused_by(all, altered, info);
  if (!plan.refused && plan.rewrites) return HA_ALTER_INPLACE_COPY_LOCK;
  if (!plan.refused) return plan.added.empty() ? HA_ALTER_INPLACE_INSTANT : HA_ALTER_INPLACE_NOCOPY_NO_LOCK;
  if (*plan.refused) info->unsupported_reason = plan.refused;
  return HA_ALTER_INPLACE_NOT_SUPPORTED;
}

bool Handler::prepare_inplace_alter_table(TABLE *altered, Alter_inplace_info *info) {
  const AlterPlan plan = plan_alter(table, altered, info, share_->record());
  if (plan.refused || (!plan.added.empty() && share_->may_expire())) {  // this changed after the server asked
    my_error(ER_ALTER_OPERATION_NOT_SUPPORTED, MYF(0), "ALGORITHM=INPLACE", "ALGORITHM=COPY");
    return true;
  }
  auto *altering = new Altering;
  info->handler_ctx = altering;
  altering->share = share_;
  altering->change.name = share_->name();
  altering->change.after = plan.after;
  altering->change.dropped = plan.dropped;
  const LEX_CUSTRING &definition = altered->s->tabledef_version;
  altering->change.after.definition = Slice(definition.str, definition.length).str();
  altering->added = plan.added;
  altering->rewrites = plan.rewrites;
  altering->next_auto_increment = share_->next_auto_increment();
  if (const int error = number_new_indexes(&altering->change, plan)) {
    print_error(error, MYF(0));
    return true;
  }
  if (!plan.added.empty()) altering->log = RowLog::begin(share_->record().primary, online_alter_log_max_size());
  if (!(info->create_info->used_fields & HA_CREATE_USED_AUTO) || !altered->found_next_number_field) return false;
  uint64_t greatest;
  if (const int error = fail(share_->greatest_auto_increment(&greatest))) {
    print_error(error, MYF(0));
    return true;
  }
  const uint64_t wanted = std::max<uint64_t>(info->create_info->auto_increment_value, 1);
  const bool free = wanted >= altering->next_auto_increment || wanted > greatest;
  altering->change.auto_increment = free ? wanted : series(*table->found_next_number_field).after(greatest, 1);
  return false;
}

/** Assigns numbers to the indexes to be built, and waits for transactions that could change rows unseen by the server. */
int Handler::number_new_indexes(Dictionary::Alteration *change, const AlterPlan &plan) {
  const std::vector<uint> &added = plan.added;
  if (added.empty() && !plan.rewrites) return 0;
  if (const int error = wait_for_prepared()) return error;
  TableRecord &after = change->after;
  const uint8_t slot = Families::slot_of(after.primary);
  if (const int error = fail(Dictionary::begin_indexes(slot, added.size() + plan.rewrites, &change->built))) return error;
  for (size_t i = 0; i < added.size(); i++) after.keys[added[i]] = change->built[i];
  if (!plan.rewrites) return 0;
  change->rows_from = after.primary;
  after.primary = change->built.back();
  std::replace(after.keys.begin(), after.keys.end(), change->rows_from, after.primary);
  return 0;
}

/** Says why an index cannot be built. */
void Handler::print_build_error(int error, TABLE *altered, inplace_alter_handler_ctx *context) {
  const auto *altering = static_cast<Altering *>(context);
  const KEY *keys = altered->key_info;
  if (error == HA_ERR_FOUND_DUPP_KEY)
    print_keydup_error(altered, &altered->key_info[altering->catch_up->duplicate()], MYF(0));
  else if (error == ONLINE_LOG_TOO_BIG)
    my_printf_error(ER_INNODB_ONLINE_LOG_TOO_BIG,
                    "Creating index '%-.192s' required more than 'kingtide_online_alter_log_max_size' bytes for the keys of rows "
                    "that were changed meanwhile. Please try again",
                    MYF(0), keys[altering->added[0]].name.str);
  else if (error == HA_ERR_UNSUPPORTED)
    my_error(ER_ALTER_OPERATION_NOT_SUPPORTED_REASON, MYF(0), "ALGORITHM=INPLACE", ROWS_EXPIRE, "ALGORITHM=COPY");
  else
    print_error(error, MYF(0));
}

bool Handler::inplace_alter_table(TABLE *altered, Alter_inplace_info *info) {
  auto *altering = static_cast<Altering *>(info->handler_ctx);
  if (altering->added.empty() && !altering->rewrites) return false;
  const Progress progress(ha_thd(), altering->rewrites ? 1 : IndexBuild::STAGES);
  int error = guarded([&] {
    return altering->rewrites ? rewrite_rows(ha_thd(), altered, *share_, altering->change.after) : build_indexes(ha_thd(), altered, altering);
  });
  if (!error && altering->rewrites && altering->is_last_of(*info)) error = end_rewriting(ha_thd());
  if (error) {
    print_build_error(error, altered, altering);
    return true;
  }
  // For a partitioned table, this is called for one partition after the other; those that were built earlier must catch up, too.
  inplace_alter_handler_ctx *single[] = {altering, nullptr};
  for (auto **all = info->group_commit_ctx ? info->group_commit_ctx : single; *all; all++) {
    auto *one = static_cast<Altering *>(*all);
    if (!one->catch_up) break;
    error = guarded([&] { return one->catch_up->follow(); });
    if (!error && one->log->is_too_big()) error = ONLINE_LOG_TOO_BIG;
    if (!error) continue;
    print_build_error(error, altered, one);
    return true;
  }
  return false;
}

bool Handler::commit_inplace_alter_table(TABLE *altered, Alter_inplace_info *info, bool commit) {
  if (!commit) {
    auto *altering = static_cast<Altering *>(info->handler_ctx);
    if (altering) altering->end_log();
    if (altering && Dictionary::abandon_indexes(altering->change.built) != Outcome::Ok)
      sql_print_warning("KINGTIDE: entries of an unfinished index will be removed at the next start: %s",
                        last_message());
    return false;
  }
  std::vector<Dictionary::Alteration> changes;
  std::vector<Altering *> parts;
  inplace_alter_handler_ctx *single[] = {info->handler_ctx, nullptr};
  // For a partitioned table, the server asks only the first partition to commit, and that commits all of them.
  for (auto **all = info->group_commit_ctx ? info->group_commit_ctx : single; *all; all++) {
    auto *part = static_cast<Altering *>(*all);
    if (part->catch_up) {
      if (const int error = guarded([&] { return finish_indexes(ha_thd(), part); })) {
        print_build_error(error, altered, part);
        return true;
      }
    }
    uint64_t &next = part->change.auto_increment;
    const uint64_t now = part->share->next_auto_increment();
    if (next != 0 && now != part->next_auto_increment) next = std::max(next, now);  // other sessions took values meanwhile
    part->kept_auto_increment = next != 0 ? next : now;
    if (part->rewrites && next == 0) next = part->share->unused_auto_increment();
    parts.push_back(part);
    changes.push_back(part->change);
  }
  iter_.close();
  if (const int error = fail(Dictionary::alter(changes))) {
    print_error(error, MYF(0));
    return true;
  }
  info->group_commit_ctx = nullptr;
  for (Altering *part : parts) {
    part->end_log();
    if (part->rewrites)
      keep_counters(*part->share, part->change.after.primary, part->kept_auto_increment);
    else if (part->change.auto_increment != 0)
      part->share->set_auto_increment(part->change.auto_increment);
  }
  return false;
}

bool Handler::can_convert_nocopy(const Field &field, const Column_definition &type) const {
  return converts_in_place(field, type);
}

/** A key contains the actual text, whatever its maximum length, so a column that is indexed as a whole can become longer. */
Compare_keys Handler::compare_key_parts(const Field &old_field, const Column_definition &new_field, const KEY_PART_INFO &old_part,
                                        const KEY_PART_INFO &new_part) const {
  if (old_field.is_equal(new_field)) return old_part.length == new_part.length ? Compare_keys::Equal : Compare_keys::NotEqual;
  if (!converts_in_place(old_field, new_field) || old_field.charset() != new_field.charset) return Compare_keys::NotEqual;
  if (old_part.length == new_part.length) return Compare_keys::Equal;
  const bool whole = old_part.length == old_field.key_length() && new_part.length == new_field.length;
  return whole ? Compare_keys::EqualButKeyPartLength : Compare_keys::NotEqual;
}

/**
  An ALTER TABLE that copies writes into a hidden table, which is dropped if anything fails or when the server restarts. Therefore
  the copy need not be a single transaction, nor fit into the memory of one. The same holds for CREATE TEMPORARY TABLE ... SELECT,
  whose rows stay in the table when the transaction is rolled back, unless the statement ignores or replaces duplicates or is in
  a function or trigger: InnoDB writes no undo log for exactly those that the server announces without IGNORE. CREATE TABLE ...
  SELECT of other tables belongs to the session's transaction, which the server commits with its definition.
*/
int Handler::begin_copy(bool ignores) {
  const bool creates = thd_sql_command(ha_thd()) == SQLCOM_CREATE_TABLE;
  if (creates && (ignores || table->s->tmp_table == NO_TMP_TABLE)) return 0;
  // The server checks these for duplicates with a separate handler, which would not see the uncommitted slice.
  if (table->s->long_unique_table || table->s->period.unique_keys) return 0;
  uint writers = 1;
#ifdef WITH_PARTITION_STORAGE_ENGINE
  if (table->part_info) writers = table->part_info->get_tot_partitions();
#endif
  return fail(copying_.begin(writers));
}

/** A row was written: commits the slice if it is large enough. */
int Handler::copied() {
  if (!copying_.open()) return 0;
  iter_.close();
  return fail(copying_.row_written());
}

/**
  Commits the rest. Where the server copies some partitions of a table into others, it takes no notice of what this returns, and would drop the
  partitions that it copied from: therefore the statement's commit returns an error, too.
*/
int Handler::end_copy() {
  if (!copying_.open()) return 0;
  Outcome o = copying_.end();
  const bool temporary = Dictionary::is_temporary(share_->name());
  if (temporary) share_->rows_copied();
  if (o == Outcome::Ok && !temporary) o = Engine::sync();
  const int error = fail(o);
  if (error) session()->copy_failed(error);
  return error;
}

/** The server knows that the copy failed. */
void Handler::abort_copy() {
  copying_.close();
  session()->take_copy_error();
}

}  // namespace kingtide
