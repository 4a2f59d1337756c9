/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "variables.h"

#include "dictionary.h"
#include "../codec/key_codec.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "families.h"

namespace kingtide {
namespace {

/** Held while numbers are assigned. */
std::mutex numbering;

/**
  Locks a table's record, by the table's name, against changes by others. The holder may wait for row locks, which a transaction
  in doubt can have, so there is a lock for each table.
*/
class Changing {
 public:
  explicit Changing(const std::set<std::string> &names) : names_(names) {
    std::unique_lock<std::mutex> guard(mutex);
    const auto is_free = [](const std::string &name) { return !busy.count(name); };
    const auto all_free = [&] { return std::all_of(names_.begin(), names_.end(), is_free); };
    if (!all_free()) {
      const Waits waits(WaitFor::Lock);
      freed.wait(guard, all_free);
    }
    busy.insert(names_.begin(), names_.end());
  }
  ~Changing() {
    std::lock_guard<std::mutex> guard(mutex);
    for (const std::string &name : names_) busy.erase(name);
    freed.notify_all();
  }
  Changing(const Changing &) = delete;

 private:
  static inline std::mutex mutex;
  static inline std::condition_variable freed;
  static inline std::set<std::string> busy;
  const std::set<std::string> names_;
};

std::string table_key(const std::string &name) { return "t" + name; }

std::string building_key(uint32_t index) {
  std::string key(1, 'b');
  append_be(key, index, 4);
  return key;
}

std::string counter_key(Dictionary::Counter which, uint32_t primary) {
  std::string key(1, static_cast<char>(which));
  append_be(key, primary, 4);
  return key;
}

std::string statistics_key(uint32_t primary) {
  std::string key(1, 's');
  append_be(key, primary, 4);
  return key;
}

/** The range of an index's keys: from the first up to the second. */
std::pair<std::string, std::string> range_of(uint32_t id) {
  std::string from, to;
  append_be(from, id, 4);
  append_be(to, id + uint64_t{1}, 4);
  return {from, to};
}

void erase_index(Batch &batch, uint32_t id) {
  const auto [from, to] = range_of(id);
  batch.erase_range(Space::Rows, from, to);
}

/** Schedules reclaiming the space of erased indexes. */
void give_back(const std::vector<uint32_t> &ids) {
  for (uint32_t id : ids) {
    const auto [from, to] = range_of(id);
    if (Engine::reclaim(from, to) != Outcome::Ok)
      sql_print_warning("KINGTIDE: the space of dropped tables will be reclaimed later: %s", last_message());
  }
}

std::vector<uint32_t> indexes_of(const TableRecord &r) {
  std::vector<uint32_t> ids = r.keys;
  if (std::find(ids.begin(), ids.end(), r.primary) == ids.end()) ids.push_back(r.primary);
  return ids;
}

constexpr Dictionary::Counter COUNTERS[] = {Dictionary::Counter::AutoIncrement, Dictionary::Counter::HiddenKey, Dictionary::Counter::Rows,
                                            Dictionary::Counter::Expires};

void erase_entries(Batch &batch, const TableRecord &r) {
  for (uint32_t id : indexes_of(r)) erase_index(batch, id);
  for (auto c : COUNTERS) batch.erase(Space::Dictionary, counter_key(c, r.primary));
  batch.erase(Space::Dictionary, statistics_key(r.primary));
}

Outcome read_number(Slice key, uint64_t *value) {
  std::string s;
  *value = 0;
  const Outcome o = Engine::get(key, &s);
  if (o == Outcome::NotFound) return Outcome::Ok;
  if (o == Outcome::Ok && s.size() != 8) return Outcome::Corruption;
  if (o == Outcome::Ok) *value = read_be(Slice(s).data, 8);
  return o;
}

std::string number(uint64_t value) {
  std::string s;
  append_be(s, value, 8);
  return s;
}

/** When tables and indexes were created since the server started, by the numbers of primary and of added indexes. */
std::map<uint32_t, uint64_t> births;
std::mutex births_mutex;
std::atomic<uint64_t> time_of_births{0};

/** What keep_next_value keeps. */
std::map<uint32_t, uint64_t> next_values;
std::mutex next_values_mutex;

/** What follows the name of a partition while ALTER TABLE makes it. */
const std::string UNFINISHED = "#TMP#";

/** Whether the server uses this name for a table that it fills with copied rows and then renames. */
bool is_copy(const std::string &name) {
  return name.find("/#sql-") != std::string::npos || name.find(UNFINISHED) != std::string::npos;
}

/** Between the name of a table and that of its partition. */
const std::string PARTITION = "#P#";

/** In the names of temporary tables, and of tables that were set aside. */
const std::string TEMPORARY = "#sql-temptable";

/**
  Writes the change of a table: see the top of the header. It survives a power cut, whatever commits do: the server's definition does, and
  so does the end of the table that was copied.
*/
Outcome write(Batch &batch, const std::string &name) {
  return Engine::write(batch, Dictionary::is_temporary(name) ? Durability::Process : Durability::Power);
}

}  // namespace

std::string Dictionary::name_of(const char *path) {
  if (path[0] == '.' && path[1] == '/') return path + 2;
  // Temporary tables have paths in another directory; the last component is unique.
  return path;
}

bool Dictionary::is_temporary(const std::string &name) { return name[0] == '/' || name.find(TEMPORARY) != std::string::npos; }

Outcome Dictionary::create(const std::string &name, uint32_t keys, uint32_t primary_key, uint64_t auto_increment,
                           uint8_t slot, TableRecord *record) {
  Outcome o = drop(name);  // a leftover: if its definition existed, the server would not create the table
  if (o != Outcome::Ok && o != Outcome::NotFound) return o;
  const Changing guard({name});
  const auto number_guard = Waits::lock(numbering);
  Batch batch;
  uint32_t next;
  const bool hidden = primary_key >= keys;
  if ((o = Families::take_numbers(batch, slot, keys + hidden, &next)) != Outcome::Ok) return o;
  record->keys.clear();
  for (uint32_t k = 0; k < keys; k++) record->keys.push_back(next++);
  record->primary = hidden ? next : record->keys[primary_key];
  batch.put(Space::Dictionary, table_key(name), encode_table_record(*record));
  if (auto_increment != 0)
    batch.put(Space::Dictionary, counter_key(Counter::AutoIncrement, record->primary), number(auto_increment));
  if ((o = write(batch, name)) == Outcome::Ok) note_birth(record->primary);
  return o;
}

uint64_t Dictionary::now() { return time_of_births.load(); }

void Dictionary::note_birth(uint32_t index) {
  std::lock_guard<std::mutex> guard(births_mutex);
  births[index] = time_of_births.load() + 1;
  time_of_births.fetch_add(1);
}

uint64_t Dictionary::born(uint32_t index) {
  std::lock_guard<std::mutex> guard(births_mutex);
  const auto found = births.find(index);
  return found == births.end() ? 0 : found->second;
}

Outcome Dictionary::find(const std::string &name, TableRecord *record) {
  std::string s;
  const Outcome o = Engine::get(table_key(name), &s);
  if (o != Outcome::Ok) return o;
  std::string why;
  return decode_table_record(s, record, &why) ? Outcome::Ok : failed(Outcome::Corruption, name + ": " + why);
}

Outcome Dictionary::drop(const std::string &name) {
  const Changing guard({name});
  TableRecord record;
  Outcome o = find(name, &record);
  if (o != Outcome::Ok) return o;
  Batch batch;
  batch.erase(Space::Dictionary, table_key(name));
  erase_entries(batch, record);
  if ((o = write(batch, name)) != Outcome::Ok) return o;
  {
    std::lock_guard<std::mutex> births_guard(births_mutex);
    for (uint32_t id : indexes_of(record)) births.erase(id);
  }
  take_next_value(record.primary);
  give_back(indexes_of(record));
  Families::release(Families::slot_of(record.primary));
  return o;
}

std::string Dictionary::table_of(const std::string &name) { return name.substr(0, name.find(PARTITION)); }

std::string Dictionary::without_addition(const std::string &name) { return name.substr(0, name.find(UNFINISHED)); }

bool Dictionary::is_servers(const std::string &name) {
  return is_temporary(name) || is_copy(name) || name.find("/#sql") != std::string::npos || name.find("#REN#") != std::string::npos;
}

Outcome Dictionary::find_orphan(const std::string &name, bool *exists, bool *has_rows) {
  *exists = *has_rows = false;
  TableRecord record;
  Outcome o = find(name, &record);
  if (o != Outcome::Ok) return o == Outcome::NotFound ? Outcome::Ok : o;
  *exists = true;
  const auto [from, to] = range_of(record.primary);
  Iter it;
  if ((o = Engine::iterate(Space::Rows, from, to, &it)) != Outcome::Ok) return o;
  *has_rows = it.first();
  return it.status();
}

Outcome Dictionary::find_orphans(const std::string &name, bool *exists, bool *has_rows) {
  std::vector<std::string> names;
  *exists = *has_rows = false;
  Outcome o = partitions(name, &names);
  names.push_back(name);
  for (size_t i = 0; o == Outcome::Ok && !*has_rows && i < names.size(); i++) {
    bool one;
    o = find_orphan(names[i], &one, has_rows);
    *exists |= one;
  }
  return o;
}

Outcome Dictionary::partitions(const std::string &name, std::vector<std::string> *names) {
  const std::string prefix = table_key(name) + PARTITION;
  Iter it;
  const Outcome o = Engine::iterate(Space::Dictionary, prefix, after_prefix(prefix), &it);
  if (o != Outcome::Ok) return o;
  for (bool valid = it.first(); valid; valid = it.next()) names->push_back(it.key().from(1).str());
  return it.status();
}

void Dictionary::drop_database(const std::string &database) {
  std::vector<std::string> names;
  visit([&](const std::string &name, const TableRecord &) {
    if (name.rfind(database + "/", 0) == 0) names.push_back(name);
  });
  for (const std::string &name : names)
    if (drop(name) != Outcome::Ok) sql_print_warning("KINGTIDE: table %s is left of its database: %s", name.c_str(), last_message());
}

Outcome Dictionary::set_aside(const std::string &name, std::string *aside) {
  TableRecord record;
  const Outcome o = find(name, &record);
  if (o != Outcome::Ok) return o;
  *aside = TEMPORARY + "-dropped-" + std::to_string(record.primary);
  return rename(name, *aside);
}

Outcome Dictionary::rename(const std::string &from, const std::string &to) {
  const Changing guard({from, to});
  TableRecord record;
  Outcome o = find(from, &record);
  if (o != Outcome::Ok) return o;
  Batch batch;
  batch.erase(Space::Dictionary, table_key(from));
  batch.put(Space::Dictionary, table_key(to), encode_table_record(record));
  if ((o = write(batch, from)) == Outcome::Ok && is_copy(from)) note_birth(record.primary);
  return o;
}

namespace {

/** Gives a table's counters to its new primary index. Statistics are computed again. */
Outcome move_counters(Batch &batch, uint32_t from, uint32_t to) {
  for (auto c : COUNTERS) {
    uint64_t value;
    if (const Outcome o = Dictionary::counter(c, from, &value); o != Outcome::Ok) return o;
    if (value != 0) batch.put(Space::Dictionary, counter_key(c, to), number(value));
    batch.erase(Space::Dictionary, counter_key(c, from));
  }
  batch.erase(Space::Dictionary, statistics_key(from));
  return Outcome::Ok;
}

}  // namespace

Outcome Dictionary::alter(const std::vector<Alteration> &changes) {
  std::set<std::string> names;
  for (const Alteration &a : changes) names.insert(a.name);
  const Changing guard(names);
  Batch batch;
  for (const Alteration &a : changes) {
    batch.put(Space::Dictionary, table_key(a.name), encode_table_record(a.after));
    for (uint32_t id : a.dropped) erase_index(batch, id);
    for (uint32_t id : a.built) batch.erase(Space::Dictionary, building_key(id));
    if (a.rows_from)
      if (const Outcome o = move_counters(batch, a.rows_from, a.after.primary); o != Outcome::Ok) return o;
    if (a.auto_increment != 0)
      batch.put(Space::Dictionary, counter_key(Counter::AutoIncrement, a.after.primary), number(a.auto_increment));
  }
  const Outcome o = Engine::write(batch, Durability::Power);
  if (o != Outcome::Ok) return o;
  for (const Alteration &a : changes) {
    for (uint32_t id : a.built) note_birth(id);  // older snapshots lack the new entries
    give_back(a.dropped);
  }
  return o;
}

Outcome Dictionary::begin_indexes(uint8_t slot, size_t count, std::vector<uint32_t> *ids) {
  const auto guard = Waits::lock(numbering);
  uint32_t next;
  Batch batch;
  const Outcome o = Families::take_numbers(batch, slot, static_cast<uint32_t>(count), &next);
  if (o != Outcome::Ok) return o;
  ids->clear();
  for (; count > 0; count--) {
    ids->push_back(next++);
    batch.put(Space::Dictionary, building_key(ids->back()), Slice());
  }
  return Engine::write(batch, Durability::Power);
}

Outcome Dictionary::abandon_indexes(const std::vector<uint32_t> &ids) {
  if (ids.empty()) return Outcome::Ok;
  Batch batch;
  for (uint32_t id : ids) {
    erase_index(batch, id);
    batch.erase(Space::Dictionary, building_key(id));
  }
  const Outcome o = Engine::write(batch, Durability::Process);
  if (o == Outcome::Ok) give_back(ids);
  return o;
}

Outcome Dictionary::is_altered_to(const std::string &name, Slice definition, bool *altered) {
  TableRecord record;
  *altered = false;
  Outcome o = find(name, &record);
  if (o == Outcome::Ok) *altered = Slice(record.definition) == definition;
  if (o != Outcome::NotFound) return o;
  // A partitioned table has no record, but its partitions are altered together, so any of them can tell.
  std::vector<std::string> names;
  if ((o = partitions(name, &names)) != Outcome::Ok || names.empty()) return o;
  o = find(names[0], &record);
  if (o == Outcome::Ok) *altered = Slice(record.definition) == definition;
  return o;
}

Outcome Dictionary::truncate(const std::string &name, const TableRecord &record) {
  Batch batch;
  erase_entries(batch, record);
  const Outcome o = write(batch, name);
  if (o != Outcome::Ok) return o;
  note_birth(record.primary);
  give_back(indexes_of(record));
  return o;
}

Outcome Dictionary::drop_leftovers() {
  Iter it;
  std::vector<std::string> names;
  Outcome o = Engine::iterate(Space::Dictionary, Slice(std::string("t")), Slice(std::string("u")), &it);
  if (o != Outcome::Ok) return o;
  for (bool valid = it.first(); valid; valid = it.next()) {
    const std::string name = it.key().from(1).str();
    if (is_temporary(name)) names.push_back(name);
  }
  if ((o = it.status()) != Outcome::Ok) return o;
  std::vector<uint32_t> building;
  o = Engine::iterate(Space::Dictionary, Slice(std::string("b")), Slice(std::string("c")), &it);
  if (o != Outcome::Ok) return o;
  for (bool valid = it.first(); valid; valid = it.next())
    if (it.key().size == 5) building.push_back(static_cast<uint32_t>(read_be(it.key().data + 1, 4)));
  if ((o = it.status()) != Outcome::Ok) return o;
  it.close();
  o = abandon_indexes(building);
  for (size_t i = 0; o == Outcome::Ok && i < names.size(); i++) {
    o = drop(names[i]);
    // A recovered prepared transaction may have locks on the rows: a later start removes them.
    if (o == Outcome::LockTimeout || o == Outcome::LockHeld) o = Outcome::Ok;
  }
  if (o != Outcome::NoSpace) return o;
  // If the plugin did not load, no table could be dropped to make space.
  sql_print_warning("KINGTIDE: leftovers of unfinished statements stay until the next start, because the disk is full: %s", last_message());
  return Outcome::Ok;
}

Outcome Dictionary::count_tables() {
  Iter it;
  Outcome o = Engine::iterate(Space::Dictionary, Slice(std::string("t")), Slice(std::string("u")), &it);
  if (o != Outcome::Ok) return o;
  for (bool valid = it.first(); valid; valid = it.next()) {
    Slice value;
    TableRecord record;
    std::string why;
    if ((o = it.value(&value)) != Outcome::Ok) return o;
    if (decode_table_record(value, &record, &why))
      Families::use(Families::slot_of(record.primary));
    else
      Families::use_all();  // an unreadable record may belong to any of them
  }
  return it.status();
}

void Dictionary::visit(const std::function<void(const std::string &name, const TableRecord &record)> &visit) {
  Iter it;
  if (Engine::iterate(Space::Dictionary, Slice(std::string("t")), Slice(std::string("u")), &it) != Outcome::Ok) return;
  for (bool valid = it.first(); valid; valid = it.next()) {
    Slice value;
    TableRecord record;
    std::string why;
    if (it.value(&value) == Outcome::Ok && decode_table_record(value, &record, &why)) visit(it.key().from(1).str(), record);
  }
}

Outcome Dictionary::counter(Counter which, uint32_t primary, uint64_t *value) {
  return read_number(counter_key(which, primary), value);
}

Outcome Dictionary::set_counter(Counter which, uint32_t primary, uint64_t value) {
  Batch batch;
  batch.put(Space::Dictionary, counter_key(which, primary), number(value));
  return Engine::write(batch, Durability::Process);
}

void Dictionary::keep_next_value(uint32_t primary, uint64_t value) {
  std::lock_guard<std::mutex> guard(next_values_mutex);
  next_values[primary] = value;
}

uint64_t Dictionary::take_next_value(uint32_t primary) {
  std::lock_guard<std::mutex> guard(next_values_mutex);
  const auto kept = next_values.find(primary);
  if (kept == next_values.end()) return 0;
  const uint64_t value = kept->second;
  next_values.erase(kept);
  return value;
}

Outcome Dictionary::set_counters_of(const std::string &name, uint32_t primary, uint64_t auto_increment, uint64_t rows, uint64_t next_value) {
  const Changing guard({name});
  TableRecord record;
  const Outcome o = find(name, &record);
  if (o != Outcome::Ok || record.primary != primary) return o;
  if (next_value != 0) keep_next_value(primary, next_value);
  Batch batch;
  if (auto_increment != 0)
    batch.put(Space::Dictionary, counter_key(Counter::AutoIncrement, primary), number(auto_increment));
  if (rows != 0) batch.put(Space::Dictionary, counter_key(Counter::Rows, primary), number(rows));
  return Engine::write(batch, Durability::Process);
}

Outcome Dictionary::statistics(uint32_t primary, TableStatistics *statistics) {
  std::string s;
  *statistics = TableStatistics();
  const Outcome o = Engine::get(statistics_key(primary), &s);
  if (o == Outcome::NotFound) return Outcome::Ok;
  if (o == Outcome::Ok && !decode_table_statistics(s, statistics)) *statistics = TableStatistics();  // new ones are made soon
  return o;
}

Outcome Dictionary::set_statistics(const std::string &name, uint32_t primary, const TableStatistics &statistics) {
  const Changing guard({name});
  TableRecord record;
  const Outcome o = find(name, &record);
  if (o != Outcome::Ok || record.primary != primary) return o;
  Batch batch;
  batch.put(Space::Dictionary, statistics_key(primary), encode_table_statistics(statistics));
  return Engine::write(batch, Durability::Process);
}

}  // namespace kingtide
