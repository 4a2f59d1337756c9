/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "server.h"

#include "families.h"

#include <cstring>
#include <mutex>
#include <set>

#include "call.h"

namespace kingtide {
namespace {

const char *const ROWS = "rows";
/** Index numbers of a slot from here on are reserved for indexes that are added to its tables. */
constexpr uint32_t LAST_TABLE = 0xf00000, NUMBERS = 0x1000000;
const std::string NEXT_OF_ROWS = "n";

kingtide_db *db;
/** Held while a slot is searched, assigned and released. */
std::mutex finding;
/** Number of tables in each slot, including those that are being created. */
uint32_t users[256];
/** Handles of dropped families, kept because a thread may still be about to use one; it then finds it closed. */
std::vector<kingtide_family *> retired;

std::string slot_key(uint8_t slot) { return "f" + std::string(1, static_cast<char>(slot)); }

std::string slot_record(uint32_t next, const std::string &family) {
  std::string s;
  append_be(s, next, 4);
  return s + family;
}

Outcome read_slot(uint8_t slot, uint32_t *next, std::string *family) {
  std::string s;
  const Outcome o = Engine::get(slot_key(slot), &s);
  if (o != Outcome::Ok) return o;
  if (s.size() < 4) return failed(Outcome::Corruption, "the dictionary's record of a family is too short");
  *next = static_cast<uint32_t>(read_be(Slice(s).data, 4));
  *family = s.substr(4);
  return Outcome::Ok;
}

Outcome write_slot(uint8_t slot, uint32_t next, const std::string &family) {
  Batch batch;
  batch.put(Space::Dictionary, slot_key(slot), slot_record(next, family));
  return Engine::write(batch, Durability::Power);
}

Outcome open_family(const std::string &name, kingtide_family **family) {
  Call call;
  return call.done(kingtide_db_family(db, name.c_str(), family, &call));
}

std::string text_of(kingtide_text *text) {
  std::string s(kingtide_text_data(text), kingtide_text_len(text));
  kingtide_text_free(text);
  return s;
}

/** Drops a family that no slot names any more. If this fails, the next start drops it. */
void drop_family(const std::string &name) {
  Call call;
  const Waits waits(WaitFor::Disk);
  if (call.done(kingtide_db_drop_family(db, name.c_str(), &call)) != Outcome::Ok)
    sql_print_warning("KINGTIDE: family '%s' has no tables, and is kept until the next start: %s", name.c_str(), last_message());
}

/** Creates a family with `options`, and otherwise the options of another family. */
Outcome make_family(const std::string &name, const kingtide_family *as, const std::vector<Engine::Option> &options,
                    kingtide_family **family) {
  Call call;
  const Waits waits(WaitFor::Disk);
  kingtide_options *o = kingtide_options_new();
  kingtide_option_info info = {};
  info.size = sizeof info;
  Outcome outcome = Outcome::Ok;
  for (size_t i = 0; outcome == Outcome::Ok && kingtide_option_get_info(i, &info); i++) {
    kingtide_text *text = nullptr;
    if (!info.is_family) continue;
    outcome = call.done(kingtide_family_get_option(as, info.name, &text, &call));
    if (outcome == Outcome::Ok) outcome = call.done(kingtide_options_set(o, info.name, text_of(text).c_str(), &call));
  }
  for (const Engine::Option &one : options) {
    if (outcome == Outcome::Ok) outcome = call.done(kingtide_options_set(o, one.name, one.value.c_str(), &call));
    // Settings of the other family for single levels would take precedence.
    if (outcome == Outcome::Ok && !strcmp(one.name, "compression"))
      outcome = call.done(kingtide_options_set(o, "compression_per_level", "", &call));
  }
  if (outcome == Outcome::Ok) outcome = call.done(kingtide_db_create_family(db, name.c_str(), o, nullptr, family, &call));
  kingtide_options_free(o);
  return outcome;
}

}  // namespace

std::atomic<kingtide_family *> Families::slots_[SLOTS + 1];

Outcome Families::open(kingtide_db *database, const kingtide_options *options) {
  Call call;
  kingtide_family *family = nullptr;
  db = database;
  Outcome o = open_family(ROWS, &family);
  if (o == Outcome::NotFound) o = call.done(kingtide_db_create_family(db, ROWS, options, nullptr, &family, &call));
  if (o != Outcome::Ok) return o;
  slots_[0] = family;
  for (size_t slot = 1; slot < SLOTS; slot++) {
    uint32_t next;
    std::string name;
    o = read_slot(static_cast<uint8_t>(slot), &next, &name);
    if (o == Outcome::NotFound) break;
    if (o == Outcome::Ok && name.empty()) continue;
    if (o == Outcome::Ok) o = open_family(name, &family);
    if (o != Outcome::Ok) return o;
    slots_[slot] = family;
  }
  return Outcome::Ok;
}

bool Families::is_named(const std::string &family) {
  for (size_t slot = 1; slot < SLOTS; slot++) {
    uint32_t next;
    std::string name;
    if (read_slot(static_cast<uint8_t>(slot), &next, &name) == Outcome::NotFound) break;
    if (name == family) return true;
  }
  return false;
}

void Families::use(uint8_t slot) {
  const auto guard = Waits::lock(finding);
  users[slot]++;
}

void Families::release(uint8_t slot) {
  const auto guard = Waits::lock(finding);
  if (users[slot] == 0 || --users[slot] > 0 || slot == 0) return;
  uint32_t next;
  std::string name;
  // First the slot, durably: a crash then leaves a family that no slot names, and the next start drops it.
  if (read_slot(slot, &next, &name) != Outcome::Ok || name.empty() || write_slot(slot, next, "") != Outcome::Ok) {
    sql_print_warning("KINGTIDE: a family without tables is kept: %s", last_message());
    return;
  }
  if (kingtide_family *family = slots_[slot].exchange(nullptr)) retired.push_back(family);
  if (!is_named(name)) drop_family(name);
}

void Families::use_all() {
  const auto guard = Waits::lock(finding);
  for (uint32_t &n : users) n++;
}

Outcome Families::drop_unused() {
  std::set<std::string> named;
  for (size_t i = 1; i < SLOTS; i++) {
    const uint8_t slot = static_cast<uint8_t>(i);
    uint32_t next;
    std::string name;
    const Outcome o = read_slot(slot, &next, &name);
    if (o == Outcome::NotFound) break;
    if (o != Outcome::Ok) return o;
    if (name.empty()) continue;
    use(slot);
    release(slot);
    if (slots_[slot]) named.insert(name);
  }
  Call call;
  kingtide_strings *names = nullptr;
  const Outcome o = call.done(kingtide_db_families(db, &names, &call));
  if (o != Outcome::Ok) return o;
  for (size_t i = 0; i < kingtide_strings_count(names); i++) {
    size_t length = 0;
    const char *text = kingtide_strings_get(names, i, &length);
    const std::string name(text, length);
    if (name.rfind(std::string(ROWS) + " ", 0) == 0 && !named.count(name)) drop_family(name);
  }
  kingtide_strings_free(names);
  return Outcome::Ok;
}

void Families::close() {
  for (kingtide_family *family : retired) kingtide_family_free(family);
  retired.clear();
  for (auto &slot : slots_)
    if (kingtide_family *family = slot.exchange(nullptr)) kingtide_family_free(family);
}

Outcome Families::normal(const char *option, const std::string &value, std::string *normal) {
  Call call;
  kingtide_text *text = nullptr;
  kingtide_options *o = kingtide_options_new();
  Outcome outcome = call.done(kingtide_options_set(o, option, value.c_str(), &call));
  if (outcome == Outcome::Ok) outcome = call.done(kingtide_options_get(o, option, &text, &call));
  if (outcome == Outcome::Ok) *normal = text_of(text);
  kingtide_options_free(o);
  return outcome;
}

Outcome Families::slot_of(const std::vector<Engine::Option> &options, uint8_t *slot) {
  const auto guard = Waits::lock(finding);
  const kingtide_family *rows = slots_[0];
  std::vector<Engine::Option> different;
  std::string name = ROWS;
  *slot = 0;
  for (const Engine::Option &one : options) {
    Call call;
    kingtide_text *text = nullptr;
    const Outcome o = call.done(kingtide_family_get_option(rows, one.name, &text, &call));
    if (o != Outcome::Ok) return o;
    if (text_of(text) == one.value) continue;
    different.push_back(one);
    name += std::string(" ") + one.name + "=" + one.value;
  }
  if (different.empty()) return Outcome::Ok;
  uint8_t free = SLOTS;
  uint32_t first = 1;
  for (uint8_t i = 1; i < SLOTS; i++) {
    uint32_t next;
    std::string family;
    const Outcome o = read_slot(i, &next, &family);
    if (o == Outcome::NotFound && free == SLOTS) free = i;
    if (o == Outcome::NotFound) break;
    if (o != Outcome::Ok) return o;
    if (next >= LAST_TABLE) continue;
    if (family == name) {
      users[i]++;
      *slot = i;
      return Outcome::Ok;
    }
    if (!family.empty() || free != SLOTS) continue;
    free = i;
    first = next;
  }
  if (free == SLOTS)
    return failed(Outcome::Other, "tables have " + std::to_string(SLOTS - 1) + " different sets of storage options already");
  kingtide_family *family = nullptr;
  Outcome o = open_family(name, &family);  // of a full slot, or created before a crash
  if (o == Outcome::NotFound) o = make_family(name, rows, different, &family);
  if (o != Outcome::Ok) return o;
  o = write_slot(free, first, name);
  if (o != Outcome::Ok) {
    kingtide_family_free(family);
    return o;
  }
  slots_[free].store(family, std::memory_order_release);
  users[free]++;
  *slot = free;
  return Outcome::Ok;
}

std::string Families::name_of(uint32_t index) {
  Call call;
  kingtide_text *text = nullptr;
  const Outcome o = call.done(kingtide_family_name(slots_[slot_of(index)], &text, &call));
  return o == Outcome::Ok ? text_of(text) : "";
}

Outcome Families::take_numbers(Batch &batch, uint8_t slot, uint32_t count, uint32_t *first) {
  uint32_t next = 0;
  std::string name, s;
  if (slot != 0) {
    const Outcome o = read_slot(slot, &next, &name);
    if (o != Outcome::Ok) return o;
    if (next > NUMBERS || count > NUMBERS - next)
      return failed(Outcome::Other, "family '" + name + "' has no free index numbers");
    batch.put(Space::Dictionary, slot_key(slot), slot_record(next + count, name));
    *first = (uint32_t{FIRST} + slot - 1) << 24 | next;
    return Outcome::Ok;
  }
  const Outcome o = Engine::get(NEXT_OF_ROWS, &s);
  if (o != Outcome::Ok && o != Outcome::NotFound) return o;
  if (o == Outcome::Ok && s.size() != 8) return failed(Outcome::Corruption, "the dictionary's next number is not 8 bytes long");
  const uint64_t n = o == Outcome::Ok ? read_be(Slice(s).data, 8) : 1;
  if (n + count > uint64_t{FIRST} << 24) return failed(Outcome::Other, "there are no free index numbers");
  s.clear();
  append_be(s, n + count, 8);
  batch.put(Space::Dictionary, NEXT_OF_ROWS, s);
  *first = static_cast<uint32_t>(n);
  return Outcome::Ok;
}

}  // namespace kingtide
