/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "table_share.h"

#include <map>

#include "errors.h"

namespace kingtide {
namespace {

/** Values that the dictionary's mark runs ahead of what was given out. After a crash so many may be left out. */
constexpr uint64_t AUTO_INCREMENT_BLOCK = 1000, HIDDEN_BLOCK = 65536;
/** A table that has fewer rows is counted when it is opened. */
constexpr uint64_t COUNTED_ROWS = 2000;

/** All shares there are: those of opened tables, and those that are still counted. */
std::multimap<uint32_t, const TableShare *> opened;  // by the numbers of their indexes
std::mutex opened_mutex;

class ServersShare : public Handler_share {
 public:
  explicit ServersShare(TableShare *s) : share(s) {}
  ~ServersShare() override { share->release(); }
  TableShare *share;
};

/** Places of an index at which its keys are looked at when a table is opened. */
constexpr size_t PLACES_AT_OPEN = 8;

size_t first_difference(void *context, Slice a, Slice b) {
  const auto &parts = static_cast<const Index *>(context)->parts;
  a = a.from(4);
  b = b.from(4);
  for (size_t p = 0; p < parts.size(); p++) {
    PartValue va, vb;
    if (!parse_part(parts[p].codec, a, &va) || !parse_part(parts[p].codec, b, &vb)) return p;
    if (!(a.first(va.size) == b.first(vb.size))) return p;
    a = a.from(va.size);
    b = b.from(vb.size);
  }
  return parts.size();
}

/** Gives a handler's protected members to the function below. */
class Opened : public handler {
 public:
  static Handler_share *share(handler *h) { return static_cast<Opened *>(h)->get_ha_share_ptr(); }
  static void set_share(handler *h, Handler_share *s) { static_cast<Opened *>(h)->set_ha_share_ptr(s); }
  static void lock(handler *h) { static_cast<Opened *>(h)->lock_shared_ha_data(); }
  static void unlock(handler *h) { static_cast<Opened *>(h)->unlock_shared_ha_data(); }
};

}  // namespace

TableShare *TableShare::of(TABLE *table, handler *handler, const char *path, int *error) {
  Opened::lock(handler);
  auto *found = static_cast<ServersShare *>(Opened::share(handler));
  *error = 0;
  if (!found) {
    TableRecord record;
    const std::string name = Dictionary::name_of(path);
    Outcome o = Dictionary::find(name, &record);
    if (o == Outcome::NotFound)
      *error = HA_ERR_NO_SUCH_TABLE;
    else
      *error = server_error(nullptr, o);
    if (!*error) {
      TableShare *share = new TableShare(table, name, record);
      *error = share->format().fits ? server_error(nullptr, share->load()) : HA_ERR_TABLE_DEF_CHANGED;
      found = new ServersShare(share);
      if (*error) {
        delete found;
        found = nullptr;
      } else {
        Opened::set_share(handler, found);
      }
    }
  }
  Opened::unlock(handler);
  return found ? found->share : nullptr;
}

TableShare::TableShare(const TABLE *table, const std::string &name, const TableRecord &record)
    : name_(name), record_(record), format_(new TableFormat(table, record)) {
  if (!format_->fits) return;
  for (uint k = 0; k < table->s->keys; k++) index_names_.emplace_back(table->key_info[k].name.str);
  std::lock_guard<std::mutex> guard(opened_mutex);
  for (uint32_t id : index_numbers()) opened.emplace(id, this);
}

std::vector<uint32_t> TableShare::index_numbers() const {
  std::vector<uint32_t> all = record_.keys;
  if (format_->hidden_primary) all.push_back(record_.primary);
  return all;
}

void TableShare::find(uint32_t index, const std::function<void(const TableShare &)> &visit) {
  std::lock_guard<std::mutex> guard(opened_mutex);
  const auto found = opened.find(index);
  if (found != opened.end()) visit(*found->second);
}

TableShare::~TableShare() {
  {
    std::lock_guard<std::mutex> guard(opened_mutex);
    for (uint32_t id : index_numbers()) {
      auto [it, end] = opened.equal_range(id);
      while (it != end) it = it->second == this ? opened.erase(it) : std::next(it);
    }
  }
  if (!Engine::is_open()) return;
  // Exact marks, so that a server that was shut down goes on where it was.
  if (auto_increment_reserved_ != 0 || rows_ > 0)
    Dictionary::set_counters_of(name_, record_.primary, auto_increment_reserved_ ? auto_increment_.load() : 0, rows());
}

void TableShare::release() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

Outcome TableShare::load() {
  uint64_t next;
  Outcome o = Dictionary::counter(Dictionary::Counter::AutoIncrement, record_.primary, &next);
  if (o != Outcome::Ok) return o;
  auto_increment_ = auto_increment_reserved_ = next;
  if (next == 0) auto_increment_ = 1;
  if ((o = Dictionary::counter(Dictionary::Counter::HiddenKey, record_.primary, &hidden_reserved_)) != Outcome::Ok) return o;
  hidden_ = hidden_reserved_ ? hidden_reserved_ : 1;
  uint64_t rows;
  if ((o = Dictionary::counter(Dictionary::Counter::Rows, record_.primary, &rows)) != Outcome::Ok) return o;
  Iter it;
  const Index &primary = format_->primary;
  if ((o = Engine::iterate(Space::Rows, primary.prefix(), primary.end(), &it)) != Outcome::Ok) return o;
  uint64_t counted = 0;
  for (bool valid = it.first(); valid && counted < COUNTED_ROWS; valid = it.next()) counted++;
  set_rows(counted < COUNTED_ROWS ? counted : std::max(rows, counted));
  if ((o = it.status()) != Outcome::Ok) return o;
  it.close();
  return counted ? sample(PLACES_AT_OPEN) : Outcome::Ok;
}

Outcome TableShare::sample(size_t places) {
  std::vector<std::vector<uint64_t>> found;
  for (const Index &index : format_->indexes) {
    std::vector<uint64_t> distinct(index.parts.size(), 0);
    uint64_t rows = 0;
    const Outcome o = Engine::cardinality(index.prefix(), index.end(), places, first_difference,
                                          const_cast<Index *>(&index), &distinct, &rows);
    if (o != Outcome::Ok) return o;
    for (uint64_t &d : distinct) d = d ? std::max<uint64_t>((rows + d / 2) / d, 1) : 1;
    found.push_back(distinct);
  }
  std::lock_guard<std::mutex> guard(statistics_mutex);
  rows_per_key = found;
  return Outcome::Ok;
}

ha_rows TableShare::rows() const {
  const int64_t rows = rows_.load(std::memory_order_relaxed);
  return rows > 0 ? static_cast<ha_rows>(rows) : 0;
}

uint64_t TableShare::bytes(bool now) {
  // The server asks with every statement, and a statement can be shorter than the estimate takes.
  const uint64_t time = microsecond_interval_timer();
  if (now || time >= bytes_until_.load(std::memory_order_relaxed)) {
    bytes_.store(Engine::estimate_bytes(format_->primary.prefix(), format_->primary.end()), std::memory_order_relaxed);
    bytes_until_.store(time + 1000000, std::memory_order_relaxed);
  }
  return bytes_.load(std::memory_order_relaxed);
}

/** Moves a mark in the dictionary ahead of `next`. The mark is logged before whatever transaction uses the value. */
Outcome TableShare::reserve(Dictionary::Counter which, uint64_t next, uint64_t *reserved, uint64_t block) {
  if (next < *reserved) return Outcome::Ok;
  const uint64_t mark = next > UINT64_MAX - block ? UINT64_MAX : next + block;
  const Outcome o = Dictionary::set_counter(which, record_.primary, mark);
  if (o == Outcome::Ok) *reserved = mark;
  return o;
}

Outcome TableShare::next_hidden_key(uint64_t *key) {
  std::lock_guard<std::mutex> guard(counters_);
  *key = hidden_++;
  return reserve(Dictionary::Counter::HiddenKey, hidden_, &hidden_reserved_, HIDDEN_BLOCK);
}

Outcome TableShare::take_auto_increment(uint64_t offset, uint64_t increment, uint64_t count, uint64_t most, uint64_t *first) {
  std::lock_guard<std::mutex> guard(counters_);
  uint64_t next = auto_increment_;
  if (increment == 0) increment = 1;
  if (offset > increment) offset = 0;
  if (increment > 1 || offset > 1) {  // the least value of the series offset, offset + increment, ... that is not below `next`
    if (next <= offset)
      next = offset;
    else if ((next - offset) % increment != 0) {
      const uint64_t step = increment - (next - offset) % increment;
      next = next > UINT64_MAX - step ? UINT64_MAX : next + step;
    }
  }
  *first = next;
  if (next > most) return Outcome::Ok;  // the caller sees that it does not fit
  const uint64_t room = (UINT64_MAX - next) / increment;
  const uint64_t after = count > room ? UINT64_MAX : next + count * increment;
  auto_increment_ = most == UINT64_MAX || after <= most ? after : most == UINT64_MAX ? most : most + 1;
  return reserve(Dictionary::Counter::AutoIncrement, auto_increment_, &auto_increment_reserved_, AUTO_INCREMENT_BLOCK);
}

Outcome TableShare::saw_auto_increment(uint64_t value) {
  if (value < auto_increment_.load(std::memory_order_relaxed)) return Outcome::Ok;
  std::lock_guard<std::mutex> guard(counters_);
  if (value < auto_increment_) return Outcome::Ok;
  auto_increment_ = value == UINT64_MAX ? value : value + 1;
  return reserve(Dictionary::Counter::AutoIncrement, auto_increment_, &auto_increment_reserved_, AUTO_INCREMENT_BLOCK);
}

Outcome TableShare::set_auto_increment(uint64_t next) {
  std::lock_guard<std::mutex> guard(counters_);
  auto_increment_ = next ? next : 1;
  const Outcome o = Dictionary::set_counter(Dictionary::Counter::AutoIncrement, record_.primary, auto_increment_);
  if (o == Outcome::Ok) auto_increment_reserved_ = auto_increment_;
  return o;
}

void TableShare::reset_counters() {
  std::lock_guard<std::mutex> guard(counters_);
  auto_increment_ = 1;
  auto_increment_reserved_ = hidden_reserved_ = 0;
  hidden_ = 1;
  set_rows(0);
}

}  // namespace kingtide
