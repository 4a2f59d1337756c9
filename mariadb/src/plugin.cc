/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/* The handlerton: what the server calls for connections and transactions. */
#include "backup.h"
#include "families.h"
#include "guarded_handler.h"
#include "information_schema.h"
#include "lock_waits.h"
#include "options.h"
#include "statistics.h"
#include "two_phase.h"
#include "variables.h"

#include <cstring>

namespace kingtide {

handlerton *hton;

namespace {

/** Whether a commit or rollback ends the transaction, and not only one of its statements. */
bool ends_all(THD *thd, bool all) { return all || !thd_test_options(thd, OPTION_NOT_AUTOCOMMIT | OPTION_BEGIN); }

handler *create_handler(handlerton *h, TABLE_SHARE *table, MEM_ROOT *root) { return new (root) GuardedHandler(h, table); }

int rollback(THD *thd, bool all) {
  Session *s = Session::of(thd);
  s->forget_auto_increment_rows();
  s->take_copy_error();
  return ends_all(thd, all) ? s->rollback(thd) : s->rollback_statement(thd);
}

int commit(THD *thd, bool all) {
  Session *s = Session::of(thd);
  if (const int error = s->take_copy_error()) {
    rollback(thd, all);
    return error;
  }
  s->forget_auto_increment_rows();
  return ends_all(thd, all) ? s->commit(thd) : s->commit_statement(thd);
}

int prepare(THD *thd, bool all) {
  if (const int error = Session::of(thd)->take_copy_error()) return error;  // the server then rolls back
  if (!ends_all(thd, all)) return Session::of(thd)->commit_statement(thd);
  MYSQL_XID xid;
  thd_get_xid(thd, &xid);
  return Session::of(thd)->prepare(thd, pack_xid(reinterpret_cast<const XID *>(&xid)));
}

void commit_ordered(THD *thd, bool all) {
  if (ends_all(thd, all)) Session::of(thd)->commit_ordered();
}

/** The binary log is about to drop transactions, so committed ones must be durable here. */
void checkpoint(void *cookie) {
  if (!Session::commit_left_in_doubt()) return;  // recovery will need the log for them
  if (Engine::sync() != Outcome::Ok) {
    sql_print_error("KINGTIDE: %s", last_message());
    return;  // the log must keep them
  }
  commit_checkpoint_notify_ha(cookie);
}

int close_connection(THD *thd) {
  if (Session *s = Session::existing(thd)) {
    if (!s->prepared()) s->rollback(thd);  // a prepared transaction outlives its connection, and is resolved by name
    Session::forget(thd);
  }
  return 0;
}

void kill_query(handlerton *, THD *thd, enum thd_kill_levels) {
  if (Session *s = Session::existing(thd)) s->interrupt();
}

int savepoint_set(THD *thd, void *place) {
  return Session::of(thd)->set_savepoint(thd, static_cast<uint64_t *>(place));
}

int savepoint_rollback(THD *thd, void *place) {
  return Session::of(thd)->rollback_to(thd, *static_cast<uint64_t *>(place));
}

int savepoint_release(THD *thd, void *place) {
  return Session::of(thd)->release(thd, *static_cast<uint64_t *>(place));
}

bool savepoint_keeps_locks(THD *) { return false; }

int start_consistent_snapshot(THD *thd) { return Session::of(thd)->begin_at_once(thd); }

/** Drops the partitions of a table whose definition is lost. */
Outcome drop_partitions(THD *thd, const char *path) {
  std::vector<std::string> names;
  // While the server has the list of partitions, it drops them one by one.
  const bool known = my_access((path + std::string(".par")).c_str(), F_OK) == 0;
  if (!thd || thd_sql_command(thd) != SQLCOM_DROP_TABLE || known) return Outcome::NotFound;
  Outcome o = Dictionary::partitions(Dictionary::name_of(path), &names);
  if (o == Outcome::Ok && names.empty()) return Outcome::NotFound;
  for (size_t i = 0; o == Outcome::Ok && i < names.size(); i++) o = Session::drop(thd, names[i]);
  return o;
}

int drop_table(handlerton *, const char *path) {
  Outcome o = Session::drop(current_thd, Dictionary::name_of(path));
  if (o == Outcome::NotFound) o = drop_partitions(current_thd, path);
  return o == Outcome::NotFound ? HA_ERR_NO_SUCH_TABLE : server_error(nullptr, o);
}

/** After the server has dropped the tables of a database: drops those whose definitions were missing. The path ends with a slash. */
void drop_database(char *path) {
  const std::string name(path, strlen(path) - 1);
  Dictionary::drop_database(name.substr(name.rfind('/') + 1));
}

/** After a crash: whether an in-place ALTER TABLE was committed, which is identified by its new definition. */
int check_version(handlerton *, const char *path, const LEX_CUSTRING *definition, ulonglong) {
  bool altered;
  const Outcome o = Dictionary::is_altered_to(Dictionary::name_of(path), Slice(definition->str, definition->length), &altered);
  if (o != Outcome::Ok) sql_print_error("KINGTIDE: %s", last_message());
  return o == Outcome::Ok && altered ? 0 : 1;
}

bool flush_logs(handlerton *) { return refuse_mariadb_backup(current_thd) || Engine::sync() != Outcome::Ok; }

/** After a clean shutdown, the server does not search its log for transactions to be committed. */
void pre_shutdown() { Session::commit_left_in_doubt(); }

int panic(handlerton *, ha_panic_function) { return 0; }

const char *no_files[] = {nullptr};

/** Wraps a function for the server that returns 0 for success. */
template <auto F>
constexpr auto guarded_call = &Guarded<F, HA_ERR_OUT_OF_MEM, HA_ERR_INTERNAL_ERROR>::call;
/** The same for a callback that only some server versions pass the handlerton. */
template <auto F>
constexpr Callback<guarded_call<F>> guarded_callback;
/** A result code of X/Open. */
template <auto F>
constexpr Callback<&Guarded<F, XAER_RMERR, XAER_RMERR>::call> guarded_xa_callback;

int set_up(void *p) {
  hton = static_cast<handlerton *>(p);
  hton->db_type = DB_TYPE_AUTOASSIGN;
  hton->flags = HTON_CLOSE_CURSORS_AT_COMMIT | HTON_SUPPORTS_EXTENDED_KEYS;
  hton->tablefile_extensions = no_files;
  hton->create = create_handler;
  hton->drop_table = guarded_call<drop_table>;
  hton->drop_database = Callback<&Guarded<drop_database>::call>();
  hton->check_version = guarded_call<check_version>;
  hton->commit = guarded_callback<commit>;
  hton->rollback = guarded_callback<rollback>;
  hton->prepare = guarded_callback<prepare>;
  hton->commit_ordered = guarded_callback<commit_ordered>;
  hton->commit_checkpoint_request = guarded_call<checkpoint>;
  hton->recover = Callback<&Guarded<recover_prepared>::call>();  // on failure: none, and the reason is in the error log
  hton->signal_ddl_recovery_done = guarded_call<end_recovery>;
  hton->commit_by_xid = guarded_xa_callback<commit_by_xid>;
  hton->rollback_by_xid = guarded_xa_callback<rollback_by_xid>;
  hton->close_connection = guarded_callback<close_connection>;
  hton->kill_query = guarded_call<kill_query>;
  hton->savepoint_offset = sizeof(uint64_t);
  hton->savepoint_set = guarded_callback<savepoint_set>;
  hton->savepoint_rollback = guarded_callback<savepoint_rollback>;
  hton->savepoint_release = guarded_callback<savepoint_release>;
  hton->savepoint_rollback_can_release_mdl = Callback<savepoint_keeps_locks>();
  hton->start_consistent_snapshot = guarded_callback<start_consistent_snapshot>;
  hton->flush_logs = guarded_call<flush_logs>;
  hton->prepare_for_backup = begin_backup_stages;
  hton->end_backup = end_backup_stages;
  hton->table_options = table_options();
  hton->show_status = guarded_call<show_status>;
  hton->panic = panic;
  set_costs(hton);
  hton->pre_shutdown = guarded_call<pre_shutdown>;
  Outcome o = Engine::open(database_path(), engine_options());
  if (o == Outcome::Ok) o = Dictionary::drop_leftovers();
  if (o == Outcome::Ok) o = Dictionary::count_tables();
  if (o == Outcome::Ok) o = Families::drop_unused();
  if (o == Outcome::Ok) {
    LockWaits::begin_to_report();
    return 0;
  }
  sql_print_error("KINGTIDE: cannot open %s: %s", database_path().c_str(), last_message());
  Engine::close();
  return 1;
}

int init(void *p) { return guarded(1, 1, [&] { return set_up(p); }); }

int deinit(void *) {
  Engine::close();
  return 0;
}

st_mysql_storage_engine storage_engine = {MYSQL_HANDLERTON_INTERFACE_VERSION};

}  // namespace
}  // namespace kingtide

#define KINGTIDE_SCHEMA_TABLE(name, description, init)                                                           \
  {                                                                                                              \
    MYSQL_INFORMATION_SCHEMA_PLUGIN, &kingtide::information_schema, name, "The Kingtide authors", description,   \
        PLUGIN_LICENSE_GPL, kingtide::init, nullptr, 0x0001, nullptr, nullptr, "0.1",                            \
        MariaDB_PLUGIN_MATURITY_EXPERIMENTAL                                                                     \
  }

maria_declare_plugin(kingtide){
    MYSQL_STORAGE_ENGINE_PLUGIN,
    &kingtide::storage_engine,
    "KINGTIDE",
    "The Kingtide authors",
    "Transactions, row-level and range locks, XA, on a log-structured merge tree",
    PLUGIN_LICENSE_GPL,
    kingtide::init,
    kingtide::deinit,
    0x0001,
    kingtide::status_variables,
    kingtide::system_variables,
    "0.1",
    MariaDB_PLUGIN_MATURITY_EXPERIMENTAL,
},
    KINGTIDE_SCHEMA_TABLE("KINGTIDE_TRX", "Kingtide: transactions", init_schema_trx),
    KINGTIDE_SCHEMA_TABLE("KINGTIDE_LOCKS", "Kingtide: held locks", init_schema_locks),
    KINGTIDE_SCHEMA_TABLE("KINGTIDE_LOCK_WAITS", "Kingtide: lock waits", init_schema_lock_waits),
    KINGTIDE_SCHEMA_TABLE("KINGTIDE_FAMILIES", "Kingtide: families of keys and the shape of their trees", init_schema_families),
    KINGTIDE_SCHEMA_TABLE("KINGTIDE_LEVELS", "Kingtide: levels of the trees", init_schema_levels),
    KINGTIDE_SCHEMA_TABLE("KINGTIDE_TABLES", "Kingtide: tables and their indexes, with estimated sizes",
                          init_schema_tables) maria_declare_plugin_end;
