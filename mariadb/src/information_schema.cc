/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/*
  The INFORMATION_SCHEMA tables for transactions, locks, lock waits, trees and indexes. As with InnoDB's, they are empty for users
  without the PROCESS privilege. Each table shows one moment, but two tables may show different moments.
*/
#include "information_schema.h"

#include <algorithm>
#include <map>

#include "dictionary.h"
#include "guard.h"
#include "inspect.h"
#include "lock_places.h"
#include "session.h"
#include "table_share.h"

/** Adds the record to a table of INFORMATION_SCHEMA. A function of the server, which declares it only for its own engine. */
bool schema_table_store_record(THD *thd, TABLE *table);

namespace kingtide {
namespace {

using Show::CEnd;
using Show::Column;
using Show::Datetime;
using Show::ULonglong;
using Show::Varchar;

constexpr uint NAME_LENGTH = NAME_CHAR_LEN, QUERY_LENGTH = 1024, KEY_LENGTH = 1024;

/** Writes the rows of an INFORMATION_SCHEMA table, column by column. */
class Rows {
 public:
  Rows(THD *thd, TABLE_LIST *list) : thd_(thd), table_(list->table) {}

  Rows &number(uint64_t value) {
    field()->store(static_cast<longlong>(value), true);
    return *this;
  }
  Rows &text(const std::string &value) {
    // Text that is too long or invalid is cut off.
    field()->store(value.data(), value.size(), system_charset_info);
    return *this;
  }
  Rows &time(time_t value) {
    MYSQL_TIME t = {};
    struct tm local;
    localtime_r(&value, &local);
    localtime_to_TIME(&t, &local);
    t.time_type = MYSQL_TIMESTAMP_DATETIME;
    field()->store_time(&t);
    return *this;
  }
  Rows &null() {
    table_->field[column_++]->set_null();
    return *this;
  }
  /** Ends the row. Returns 1 if the server could not store it. */
  int end() {
    column_ = 0;
    return schema_table_store_record(thd_, table_);
  }

 private:
  Field *field() {
    Field *f = table_->field[column_++];
    f->set_notnull();
    return f;
  }

  THD *thd_;
  TABLE *table_;
  uint column_ = 0;
};

bool may_see(THD *thd) { return !check_global_access(thd, PROCESS_ACL, true); }

/** Stores six columns: database, table, index, mode, type, and key. */
void store_keys(Rows *rows, TableNames *names, const LockedKeys &keys) {
  const LockPlace place = names->place_of(keys);
  if (place.table.empty()) {
    rows->null().null().null();
  } else {
    rows->text(place.database).text(place.table);
    if (place.index.empty())
      rows->null();
    else
      rows->text(place.index);
  }
  rows->text(keys.exclusive ? "X" : "S").text(keys.range ? "RANGE" : "ROW").text(place.keys);
}

const char *isolation_name(int isolation) {
  switch (isolation) {
    case ISO_READ_UNCOMMITTED:
      return "READ UNCOMMITTED";
    case ISO_READ_COMMITTED:
      return "READ COMMITTED";
    case ISO_REPEATABLE_READ:
      return "REPEATABLE READ";
    default:
      return "SERIALIZABLE";
  }
}

ST_FIELD_INFO trx_columns[] = {
    Column("TRX_ID", ULonglong(), NOT_NULL),
    // NULL for a prepared transaction that no longer has a connection.
    Column("THREAD_ID", ULonglong(), NULLABLE),
    Column("STATE", Varchar(16), NOT_NULL),
    Column("STARTED", Datetime(0), NULLABLE),
    Column("ISOLATION_LEVEL", Varchar(16), NULLABLE),
    Column("LOCKS_HELD", ULonglong(), NOT_NULL),
    Column("ENTRIES_WRITTEN", ULonglong(), NOT_NULL),
    Column("BYTES_WRITTEN", ULonglong(), NULLABLE),
    Column("ROWS_CHANGED", ULonglong(), NULLABLE),
    // One of the transactions that it waits for.
    Column("WAITING_FOR", ULonglong(), NULLABLE),
    Column("QUERY", Varchar(QUERY_LENGTH), NULLABLE),
    CEnd(),
};

int fill_trx(THD *thd, TABLE_LIST *tables, COND *) {
  if (!may_see(thd)) return 0;
  Rows rows(thd, tables);
  std::map<uint64_t, Session::Shown> sessions;
  std::map<uint64_t, uint64_t> locks, waiting_for;
  for (Session::Shown &s : Session::all_running()) sessions[s.transaction] = s;
  for (const LockHeld &lock : list_locks()) locks[lock.transaction]++;
  for (const LockWanted &wait : list_lock_waits())
    if (!wait.holders.empty()) waiting_for[wait.waiter] = wait.holders[0];
  for (const TransactionSeen &t : list_transactions()) {
    const auto session = sessions.find(t.id);
    const bool known = session != sessions.end(), waits = waiting_for.count(t.id);
    rows.number(t.id);
    known ? rows.number(session->second.thread) : rows.null();
    rows.text(t.prepared ? "PREPARED" : waits ? "LOCK WAIT" : "RUNNING");
    known ? rows.time(session->second.started) : rows.null();
    known ? rows.text(isolation_name(session->second.isolation)) : rows.null();
    rows.number(locks[t.id]).number(t.writes);
    known ? rows.number(session->second.written_bytes).number(session->second.rows_changed) : rows.null().null();
    waits ? rows.number(waiting_for[t.id]) : rows.null();
    known && !session->second.query.empty() ? rows.text(session->second.query) : rows.null();
    if (rows.end()) return 1;
  }
  return 0;
}

ST_FIELD_INFO lock_columns[] = {
    Column("TRX_ID", ULonglong(), NOT_NULL),
    Column("TABLE_SCHEMA", Varchar(NAME_LENGTH), NULLABLE),
    Column("TABLE_NAME", Varchar(NAME_LENGTH), NULLABLE),
    // NULL while the table is not open; the key is then shown in hexadecimal.
    Column("INDEX_NAME", Varchar(NAME_LENGTH), NULLABLE),
    Column("LOCK_MODE", Varchar(1), NOT_NULL),
    Column("LOCK_TYPE", Varchar(5), NOT_NULL),
    Column("LOCK_KEY", Varchar(KEY_LENGTH), NOT_NULL),
    CEnd(),
};

int fill_locks(THD *thd, TABLE_LIST *tables, COND *) {
  if (!may_see(thd)) return 0;
  Rows rows(thd, tables);
  TableNames names;
  for (const LockHeld &lock : list_locks()) {
    rows.number(lock.transaction);
    store_keys(&rows, &names, lock);
    if (rows.end()) return 1;
  }
  return 0;
}

ST_FIELD_INFO wait_columns[] = {
    // 0 if the waiter is not a transaction but a change of a table's definition.
    Column("WAITING_TRX_ID", ULonglong(), NOT_NULL),
    Column("BLOCKING_TRX_ID", ULonglong(), NULLABLE),
    Column("TABLE_SCHEMA", Varchar(NAME_LENGTH), NULLABLE),
    Column("TABLE_NAME", Varchar(NAME_LENGTH), NULLABLE),
    Column("INDEX_NAME", Varchar(NAME_LENGTH), NULLABLE),
    Column("LOCK_MODE", Varchar(1), NOT_NULL),
    Column("LOCK_TYPE", Varchar(5), NOT_NULL),
    Column("LOCK_KEY", Varchar(KEY_LENGTH), NOT_NULL),
    Column("WAITED_MS", ULonglong(), NOT_NULL),
    CEnd(),
};

int fill_lock_waits(THD *thd, TABLE_LIST *tables, COND *) {
  if (!may_see(thd)) return 0;
  Rows rows(thd, tables);
  TableNames names;
  for (const LockWanted &wait : list_lock_waits()) {
    for (size_t i = 0; i == 0 || i < wait.holders.size(); i++) {
      rows.number(wait.waiter);
      i < wait.holders.size() ? rows.number(wait.holders[i]) : rows.null();
      store_keys(&rows, &names, wait);
      rows.number(wait.microseconds / 1000);
      if (rows.end()) return 1;
    }
  }
  return 0;
}

ST_FIELD_INFO family_columns[] = {
    Column("FAMILY_NAME", Varchar(NAME_LENGTH), NOT_NULL),
    Column("LEVELS", ULonglong(), NOT_NULL),
    Column("RUNS", ULonglong(), NOT_NULL),
    Column("FILES", ULonglong(), NOT_NULL),
    Column("FILE_BYTES", ULonglong(), NOT_NULL),
    Column("ENTRIES", ULonglong(), NOT_NULL),
    Column("ACTIVE_MEMTABLE_BYTES", ULonglong(), NOT_NULL),
    Column("IMMUTABLE_MEMTABLES", ULonglong(), NOT_NULL),
    Column("MEMTABLE_ENTRIES", ULonglong(), NOT_NULL),
    Column("VALUE_LOG_BYTES", ULonglong(), NOT_NULL),
    Column("VALUE_LOG_DEAD_BYTES", ULonglong(), NOT_NULL),
    CEnd(),
};

int fill_families(THD *thd, TABLE_LIST *tables, COND *) {
  if (!may_see(thd)) return 0;
  Rows rows(thd, tables);
  for (const FamilyShape &f : list_families()) {
    LevelShape all;
    for (const LevelShape &l : f.levels) {
      all.runs += l.runs;
      all.files += l.files;
      all.bytes += l.bytes;
      all.entries += l.entries;
    }
    rows.text(f.name).number(f.levels.size()).number(all.runs).number(all.files).number(all.bytes).number(all.entries);
    rows.number(f.active_bytes).number(f.immutable_memtables).number(f.memtable_entries);
    if (rows.number(f.value_log_bytes).number(f.value_log_dead_bytes).end()) return 1;
  }
  return 0;
}

ST_FIELD_INFO level_columns[] = {
    Column("FAMILY_NAME", Varchar(NAME_LENGTH), NOT_NULL),
    Column("LEVEL", ULonglong(), NOT_NULL),
    Column("RUNS", ULonglong(), NOT_NULL),
    Column("FILES", ULonglong(), NOT_NULL),
    Column("FILE_BYTES", ULonglong(), NOT_NULL),
    Column("ENTRIES", ULonglong(), NOT_NULL),
    Column("TOMBSTONES", ULonglong(), NOT_NULL),
    CEnd(),
};

int fill_levels(THD *thd, TABLE_LIST *tables, COND *) {
  if (!may_see(thd)) return 0;
  Rows rows(thd, tables);
  for (const FamilyShape &f : list_families())
    for (const LevelShape &l : f.levels) {
      rows.text(f.name).number(l.level).number(l.runs).number(l.files).number(l.bytes);
      if (rows.number(l.entries).number(l.tombstones).end()) return 1;
    }
  return 0;
}

ST_FIELD_INFO table_columns[] = {
    Column("TABLE_SCHEMA", Varchar(NAME_LENGTH), NOT_NULL),
    Column("TABLE_NAME", Varchar(NAME_LENGTH), NOT_NULL),
    // NULL while the table is not open.
    Column("INDEX_NAME", Varchar(NAME_LENGTH), NULLABLE),
    Column("INDEX_NUMBER", ULonglong(), NOT_NULL),
    // Whether the entries of the index are the rows.
    Column("HAS_ROWS", Varchar(3), NOT_NULL),
    Column("ENTRIES", ULonglong(), NOT_NULL),
    Column("BYTES", ULonglong(), NOT_NULL),
    CEnd(),
};

int fill_tables(THD *thd, TABLE_LIST *tables, COND *) {
  if (!may_see(thd)) return 0;
  Rows rows(thd, tables);
  std::vector<std::pair<std::string, TableRecord>> all;
  Dictionary::visit([&](const std::string &name, const TableRecord &record) { all.emplace_back(name, record); });
  for (auto &[name, record] : all) {
    if (thd_kill_level(thd) != THD_IS_NOT_KILLED) return 1;
    std::string database, table;
    split_name(name, &database, &table);
    std::vector<uint32_t> ids = record.keys;
    if (std::find(ids.begin(), ids.end(), record.primary) == ids.end()) ids.insert(ids.begin(), record.primary);
    for (uint32_t id : ids) {
      Index index;
      index.id = id;
      std::string index_name;
      if (ids.size() > record.keys.size() && id == record.primary) index_name = "(hidden)";
      TableShare::find(id, [&](const TableShare &share) { index_of(share, id, &index_name); });
      rows.text(database).text(table);
      index_name.empty() ? rows.null() : rows.text(index_name);
      rows.number(id).text(id == record.primary ? "YES" : "NO");
      rows.number(Engine::estimate_rows(index.prefix(), index.end()));
      if (rows.number(Engine::estimate_bytes(index.prefix(), index.end())).end()) return 1;
    }
  }
  return 0;
}

int describe(void *table, ST_FIELD_INFO *columns, int (*fill)(THD *, TABLE_LIST *, COND *)) {
  auto *schema = static_cast<ST_SCHEMA_TABLE *>(table);
  schema->fields_info = columns;
  schema->fill_table = fill;
  return 0;
}

}  // namespace

st_mysql_information_schema information_schema = {MYSQL_INFORMATION_SCHEMA_INTERFACE_VERSION};

int init_schema_trx(void *table) { return describe(table, trx_columns, &Guarded<fill_trx, 1, 1>::call); }
int init_schema_locks(void *table) { return describe(table, lock_columns, &Guarded<fill_locks, 1, 1>::call); }
int init_schema_lock_waits(void *table) { return describe(table, wait_columns, &Guarded<fill_lock_waits, 1, 1>::call); }
int init_schema_families(void *table) { return describe(table, family_columns, &Guarded<fill_families, 1, 1>::call); }
int init_schema_levels(void *table) { return describe(table, level_columns, &Guarded<fill_levels, 1, 1>::call); }
int init_schema_tables(void *table) { return describe(table, table_columns, &Guarded<fill_tables, 1, 1>::call); }

}  // namespace kingtide
