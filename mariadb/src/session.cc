/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "session.h"

#include <algorithm>
#include <map>

#include "dictionary.h"
#include "errors.h"
#include "lock_waits.h"
#include "table_share.h"
#include "variables.h"

namespace kingtide {
namespace {

/** Name of the savepoint that is set at the beginning of each statement that writes. */
const char *const STATEMENT = "statement";

void name_of(uint64_t savepoint, char *name, size_t size) {
  snprintf(name, size, "s%llu", static_cast<unsigned long long>(savepoint));
}

std::mutex left_mutex;
/** Names of prepared transactions whose commit failed. */
std::vector<std::string> left_in_doubt;

/** Tables that were dropped by prepared transactions that no longer have a session, by the names of the transactions. */
std::map<std::string, std::vector<std::string>> dropped_by_prepared;

void drop_all(const std::vector<std::string> &tables) {
  for (const std::string &name : tables)
    if (Dictionary::drop(name) != Outcome::Ok)
      sql_print_warning("KINGTIDE: the rows of a dropped table will be removed at the next start: %s", last_message());
}

std::mutex sessions_mutex;
/** All sessions; used by all_running. */
std::vector<Session *> sessions;

/** Maximum length of a statement that is shown to others, in bytes. */
constexpr size_t SHOWN_QUERY = 1024;

bool in_transaction(THD *thd) { return thd_test_options(thd, OPTION_NOT_AUTOCOMMIT | OPTION_BEGIN); }

/** A transaction that wrote more bytes does not keep its object, which would hold their memory until the session's next transaction. */
constexpr uint64_t MOST_KEPT = 1 << 20;

}  // namespace

Session::Session(THD *thd) : thd_(thd) {
  std::lock_guard<std::mutex> guard(sessions_mutex);
  sessions.push_back(this);
}

Session::~Session() {
  end();
  std::lock_guard<std::mutex> guard(sessions_mutex);
  sessions.erase(std::find(sessions.begin(), sessions.end(), this));
}

std::vector<Session::Shown> Session::all_running() {
  std::vector<Shown> all;
  char query[SHOWN_QUERY];
  std::lock_guard<std::mutex> guard(sessions_mutex);  // a connection lives at least as long as its session
  for (const Session *s : sessions) {
    Shown shown;
    shown.transaction = s->shown_transaction_.load(std::memory_order_acquire);
    if (shown.transaction == 0) continue;
    shown.thread = thd_get_thread_id(s->thd_);
    shown.started = s->started_;
    shown.isolation = s->isolation_;
    shown.rows_changed = s->rows_changed_;
    shown.written_bytes = s->txn_.written_bytes();
    shown.query.assign(query, thd_query_safe(s->thd_, query, sizeof query));
    all.push_back(shown);
  }
  return all;
}

Session *Session::existing(THD *thd) { return static_cast<Session *>(thd_get_ha_data(thd, hton)); }

Session *Session::of(THD *thd) {
  Session *s = existing(thd);
  if (!s) {
    s = new Session(thd);
    thd_set_ha_data(thd, hton, s);
  }
  return s;
}

void Session::forget(THD *thd) {
  Session *s = existing(thd);
  thd_set_ha_data(thd, hton, nullptr);
  delete s;
}

int Session::begin(THD *thd) {
  isolation_.store(thd_tx_isolation(thd), std::memory_order_relaxed);
  lock_timeout_ = lock_wait_timeout_ms(thd);
  const Level level = isolation_ == ISO_READ_UNCOMMITTED ? Level::ReadUncommitted : Level::RepeatableRead;
  time_ = Dictionary::now();
  durability_ = commit_durability();
  wrote_ = false;
  const Outcome o = txn_.begin(level, lock_timeout_, durability_);
  if (o != Outcome::Ok) return server_error(thd, o);
  running_ = true;
  started_.store(my_time(0), std::memory_order_relaxed);
  rows_changed_.store(0, std::memory_order_relaxed);
  shown_transaction_.store(txn_.id(), std::memory_order_release);
  savepoints_ = newest_savepoint_ = 0;
  prepared_ = ordered_ = statement_savepoint_ = snapshot_ = false;
  return 0;
}

int Session::use(THD *thd, bool writes) {
  const bool fresh = !running_;
  if (fresh)
    if (const int error = begin(thd)) return error;
  // Statements of a function or trigger are part of the statement that called it: they use its snapshot and its lock timeout.
  const bool begins = (tables_ == 0 || statement_ != thd->query_id) && !thd->in_sub_stmt;
  tables_++;
  if (fresh || begins) {
    statement_ = thd->query_id;
    copies_rows_ = false;
  }
  if (begins && !fresh) {
    if (reported_) expect_interrupts(thd);
    set_lock_timeout(lock_wait_timeout_ms(thd));
    // Each statement reads from its own snapshot. A new transaction takes its snapshot with its first read.
    if (isolation_ == ISO_READ_COMMITTED) {
      time_ = Dictionary::now();
      txn_.refresh_snapshot();
      snapshot_ = false;
      forget_overwritten();
    }
  }
  trans_register_ha(thd, false, hton, 0);
  if (!in_transaction(thd)) return 0;
  trans_register_ha(thd, true, hton, 0);
  if (!writes || statement_savepoint_) return 0;
  const Outcome o = txn_.set_savepoint(STATEMENT);
  statement_savepoint_ = o == Outcome::Ok;
  return server_error(thd, o);
}

/** Called when a statement that may wait for locks begins. Forgets interrupts of earlier statements. */
void Session::expect_interrupts(THD *thd) {
  txn_.clear_interrupt();
  // KILL first marks the connection, and then interrupts. If it interrupted before the line above, or could not, the mark is set by now.
  if (thd_kill_level(thd) != THD_IS_NOT_KILLED) txn_.interrupt();
}

int Session::takes_locks(THD *thd) {
  if (reported_) return 0;
  {
    std::lock_guard<std::mutex> guard(exchange_);
    if (const int error = server_error(thd, txn_.allow_interrupts())) return error;
  }
  reported_ = txn_.id();
  LockWaits::running(reported_, thd);
  expect_interrupts(thd);
  return 0;
}

void Session::needs(Durability durability) {
  const bool stronger = !wrote_ || (durability_ == Durability::Process && durability == Durability::Power);
  wrote_ = true;
  if (!stronger || durability == durability_) return;
  txn_.set_durability(durability);
  durability_ = durability;
}

int Session::begin_at_once(THD *thd) {
  if (!running_)
    if (const int error = begin(thd)) return error;
  trans_register_ha(thd, true, hton, 0);
  snapshot_ = false;
  return take_snapshot();
}

int Session::take_snapshot() {
  if (snapshot_ || isolation_ == ISO_READ_UNCOMMITTED) return 0;
  snapshot_ = true;
  // The statement's snapshot is from its beginning: see `use`. But if this is the first such read, in a function or trigger, then the statement may
  // have changed rows already, over versions that it waited for and that are newer. They were not noted, so this snapshot must have them.
  if (isolation_ == ISO_READ_COMMITTED && !thd_->in_sub_stmt) return 0;
  time_ = Dictionary::now();
  return server_error(thd_, txn_.refresh_snapshot());
}

void Session::forget_overwritten() {
  overwritten_.clear();
  covered_.clear();
  without_own_writes_.release();
}

Outcome Session::without_own_writes(const Snapshot **snapshot) {
  *snapshot = &without_own_writes_;
  return without_own_writes_.taken() ? Outcome::Ok : without_own_writes_.take_at(txn_.snapshot_sequence());
}

bool Session::sees(const TableShare &table) const { return sees(table.born()); }

bool Session::sees(uint64_t born) const { return !running_ || !snapshot_ || isolation_ < ISO_REPEATABLE_READ || born <= time_; }

bool Session::precedes_copy(const TableShare &table) const { return running_ && table.copied_at() > time_; }

void Session::set_lock_timeout(int64_t ms) {
  if (ms == lock_timeout_) return;
  txn_.set_lock_timeout(ms);
  lock_timeout_ = ms;
}

void Session::count_row(TableShare *table, int64_t change) {
  rows_changed_.store(rows_changed_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  for (Count &c : statement_counts_) {
    if (c.table != table) continue;
    c.change += change;
    c.changed++;
    return;
  }
  table->retain();
  statement_counts_.push_back({table, change, 1});
}

int64_t Session::uncommitted_rows(const TableShare *table) const {
  int64_t rows = 0;
  for (const auto *counts : {&counts_, &statement_counts_})
    for (const Count &c : *counts)
      if (c.table == table) rows += c.change;
  return rows;
}

void Session::note_counts_at(uint64_t savepoint) {
  CountsAt now = {savepoint, {}};
  for (const auto *counts : {&counts_, &statement_counts_})
    for (const Count &c : *counts) now.rows.emplace_back(c.table, c.change);
  counts_at_.push_back(std::move(now));
}

/** Takes back what was counted after a savepoint. A statement that does so in a trigger or function has set the savepoint itself. */
void Session::return_to_counts_at(uint64_t savepoint) {
  const auto at = std::find_if(counts_at_.begin(), counts_at_.end(), [=](const CountsAt &c) { return c.savepoint == savepoint; });
  if (at == counts_at_.end()) return;
  for (auto *counts : {&statement_counts_, &counts_}) {
    for (Count &c : *counts) {
      int64_t before = 0;
      for (const auto &[table, rows] : at->rows)
        if (table == c.table) before += rows;
      c.change -= uncommitted_rows(c.table) - before;
    }
  }
  counts_at_.erase(at + 1, counts_at_.end());
}

void Session::forget_counts_from(uint64_t savepoint) {
  const auto later = [=](const CountsAt &c) { return c.savepoint >= savepoint; };
  counts_at_.erase(std::find_if(counts_at_.begin(), counts_at_.end(), later), counts_at_.end());
}

bool Session::uses_name_first(const std::string &name) {
  if (used_name_in_ == thd_->query_id && used_name_ == name) return false;
  used_name_in_ = thd_->query_id;
  used_name_ = name;
  return true;
}

void Session::keep(const std::string &name) {
  if (kept_in_ != thd_->query_id) kept_.clear();
  kept_in_ = thd_->query_id;
  kept_.push_back(name);
}

/** Adds what the statement counted to what its transaction has. */
void Session::keep_statement_counts() {
  for (Count &c : statement_counts_) {
    const auto same = [&](const Count &kept) { return kept.table == c.table; };
    const auto kept = std::find_if(counts_.begin(), counts_.end(), same);
    if (kept == counts_.end()) {
      counts_.push_back(c);
      continue;
    }
    kept->change += c.change;
    kept->changed += c.changed;
    c.table->release();
  }
  statement_counts_.clear();
}

void Session::publish_counts() {
  for (Count &c : counts_) c.table->count_changes(c.change, c.changed);
}

void Session::end() {
  if (reported_) LockWaits::over(reported_);
  reported_ = 0;
  if (txn_.allows_interrupts()) {
    std::lock_guard<std::mutex> guard(exchange_);
    txn_.refuse_interrupts();
  }
  if (txn_.open() && txn_.written_bytes() > MOST_KEPT) txn_.close();
  for (auto *counts : {&counts_, &statement_counts_}) {
    for (Count &c : *counts) c.table->release();
    counts->clear();
  }
  counts_at_.clear();
  changed_rows_.forget();
  forget_overwritten();
  running_ = false;
  shown_transaction_.store(0, std::memory_order_relaxed);
  tables_ = 0;
  if (prepared_ && !dropped_.empty()) {  // the transaction keeps its locks
    std::lock_guard<std::mutex> guard(left_mutex);
    dropped_by_prepared[xid_] = dropped_;
  } else {
    drop_all(dropped_);
  }
  dropped_.clear();
}

void Session::prepared_ended(const std::string &xid) {
  std::vector<std::string> tables;
  {
    std::lock_guard<std::mutex> guard(left_mutex);
    const auto found = dropped_by_prepared.find(xid);
    if (found == dropped_by_prepared.end()) return;
    tables.swap(found->second);
    dropped_by_prepared.erase(found);
  }
  drop_all(tables);
}

Outcome Session::drop(THD *thd, const std::string &table) {
  Session *s = thd ? existing(thd) : nullptr;
  if (s && s->kept_in_ == thd->query_id && std::find(s->kept_.begin(), s->kept_.end(), table) != s->kept_.end()) return Outcome::NotFound;
  if (!s || !s->running_) return Dictionary::drop(table);
  std::string aside;
  const Outcome o = Dictionary::set_aside(table, &aside);
  if (o == Outcome::Ok) s->dropped_.push_back(aside);
  return o;
}

int Session::commit_statement(THD *thd) {
  keep_statement_counts();
  tables_ = 0;
  if (!statement_savepoint_) return 0;
  statement_savepoint_ = false;
  return server_error(thd, txn_.release_savepoint(STATEMENT));
}

int Session::rollback_statement(THD *thd) {
  for (Count &c : statement_counts_) c.table->release();
  statement_counts_.clear();
  tables_ = 0;
  if (!statement_savepoint_) return 0;
  statement_savepoint_ = false;
  Outcome o = txn_.rollback_to_savepoint(STATEMENT);
  if (o == Outcome::Ok) o = txn_.release_savepoint(STATEMENT);
  if (o == Outcome::Ended) return 0;  // the entire transaction was rolled back
  return server_error(thd, o);
}

int Session::commit(THD *thd) {
  if (!running_) return 0;
  keep_statement_counts();
  Outcome o;
  if (ordered_) {
    // The transaction is visible. Either the binary log has it, or recovery will find it prepared: see commit_checkpoint_request.
    o = ordered_outcome_;
  } else {
    o = txn_.commit();
  }
  if (o == Outcome::Ok) {
    publish_counts();
    changed_rows_.committed();
    prepared_ = false;
  }
  const int error = server_error(thd, o);
  if (o != Outcome::Ok && !prepared_) {
    txn_.rollback();
    changed_rows_.rolled_back();
  } else if (o != Outcome::Ok) {
    // The binary log, and so replicas, may have the transaction. Only an administrator can decide to roll it back.
    sql_print_error("KINGTIDE: a prepared transaction could not be committed. It stays in doubt, with its locks, and is "
                    "committed when the binary log is rotated, or the server stops or starts again");
    if (!ordered_) leave_in_doubt();
    std::lock_guard<std::mutex> guard(exchange_);
    txn_.close();
  }
  end();
  return error;
}

void Session::leave_in_doubt() {
  std::lock_guard<std::mutex> guard(left_mutex);
  left_in_doubt.push_back(xid_);
}

bool Session::commit_left_in_doubt() {
  std::lock_guard<std::mutex> guard(left_mutex);
  const auto resolved = [](const std::string &xid) {
    const Outcome o = Engine::commit_prepared(xid);
    if (o != Outcome::Ok && o != Outcome::NotFound)
      sql_print_error("KINGTIDE: a prepared transaction still cannot be committed: %s", last_message());
    return o == Outcome::Ok || o == Outcome::NotFound;
  };
  left_in_doubt.erase(std::remove_if(left_in_doubt.begin(), left_in_doubt.end(), resolved), left_in_doubt.end());
  return left_in_doubt.empty();
}

int Session::rollback(THD *thd) {
  if (!running_) return 0;
  const Outcome o = txn_.rollback();
  if (o == Outcome::Ok) {
    changed_rows_.rolled_back();
    prepared_ = false;
  }
  end();
  return server_error(thd, o);
}

int Session::prepare(THD *thd, Slice xid) {
  if (!running_) return 0;
  xid_ = xid.str();
  changed_rows_.prepared(xid_);  // before other connections can end it by its name
  const Outcome o = txn_.prepare(xid);
  prepared_ = o == Outcome::Ok;
  return server_error(thd, o);
}

void Session::commit_ordered() {
  if (!running_) return;
  ordered_outcome_ = txn_.commit_ordered();
  ordered_ = true;
  if (ordered_outcome_ == Outcome::Ok) return;
  // Logged here, not in commit: another thread may call this for a group of commits, and the message belongs to that thread.
  sql_print_error("KINGTIDE: a commit failed: %s", last_message());
  if (prepared_) leave_in_doubt();
}

int Session::set_savepoint(THD *thd, uint64_t *place) {
  char name[24];
  *place = newest_savepoint_ = ++savepoints_;
  name_of(*place, name, sizeof name);
  if (running_) note_counts_at(*place);
  return running_ ? server_error(thd, txn_.set_savepoint(name)) : 0;
}

int Session::rollback_to(THD *thd, uint64_t place) {
  char name[24];
  name_of(place, name, sizeof name);
  newest_savepoint_ = place;
  // The statement's own savepoint stays valid: if there is one, a trigger or function calls this, and its savepoint is later.
  if (!running_) return 0;
  const Outcome o = txn_.rollback_to_savepoint(name);
  if (o == Outcome::Ok) return_to_counts_at(place);
  return server_error(thd, o);
}

int Session::release(THD *thd, uint64_t place) {
  char name[24];
  // SAVEPOINT with an existing name moves that savepoint and keeps those that were set after it. The engine would release them too.
  if (thd_sql_command(thd) == SQLCOM_SAVEPOINT && place != newest_savepoint_) return 0;
  forget_counts_from(place);
  name_of(place, name, sizeof name);
  return running_ ? server_error(thd, txn_.release_savepoint(name)) : 0;
}

void Session::interrupt() {
  std::lock_guard<std::mutex> guard(exchange_);
  txn_.interrupt();
}

}  // namespace kingtide
