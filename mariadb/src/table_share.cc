/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "table_share.h"

#include <time.h>

#include <algorithm>
#include <map>

#include "errors.h"

namespace kingtide {
namespace {

/** By how many values the mark in the dictionary is ahead of the values in use. A crash may lose this many. */
constexpr uint64_t AUTO_INCREMENT_BLOCK = 1000, HIDDEN_BLOCK = 65536;
/** With AUTO_INCREMENT, it is also at most one part in this many of the values that the column's type has left. */
constexpr uint64_t AUTO_INCREMENT_PARTS = 16;
/** The rows of tables with fewer rows are counted when they are opened. */
constexpr uint64_t COUNTED_ROWS = 2000;

/** All shares: those of open tables, and those whose rows are still being counted. */
std::multimap<uint32_t, const TableShare *> opened;  // by the numbers of their indexes
std::mutex opened_mutex;

class ServersShare : public Handler_share {
 public:
  explicit ServersShare(TableShare *s) : share(s) {}
  ~ServersShare() override {
    share->closed();
    share->release();
  }
  TableShare *share;
};

/** Number of places at which an index is sampled when a table is opened, or much of it has changed. */
constexpr size_t PLACES_AT_OPEN = 8;
/** Statistics are not renewed after fewer changes than this. */
constexpr uint64_t FEW_CHANGES = 50;

/** The time of a clock that is cheap to read and ticks every few milliseconds, in microseconds. */
uint64_t coarse_time() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

/** The value behind `most`, or the greatest one. */
uint64_t behind(uint64_t most) { return most + (most < UINT64_MAX); }

/** The largest value that the auto-increment column can be given; without such a column, the greatest one. */
uint64_t most_auto_increment(const TABLE *table) {
  return table->found_next_number_field ? table->found_next_number_field->get_max_int_value() : UINT64_MAX;
}

struct Compared {
  const Index *index;
  const Index *primary;
};

/** The first part in which two entries of an index differ, including parts of the primary key that the index itself lacks. */
size_t first_difference(void *context, Slice a, Slice b) {
  const auto *c = static_cast<const Compared *>(context);
  a = a.from(4);
  b = b.from(4);
  const auto take_same = [&](const IndexPart &p) {
    PartValue va, vb;
    if (!parse_part(p.codec, a, &va) || !parse_part(p.codec, b, &vb) || !(a.first(va.size) == b.first(vb.size))) return false;
    a = a.from(va.size);
    b = b.from(vb.size);
    return true;
  };
  size_t part = 0;
  for (; part < c->index->parts.size(); part++)
    if (!take_same(c->index->parts[part])) return part;
  for (size_t i = 0; i < c->index->tail.size(); i++) {
    if (!take_same(c->primary->parts[i])) return part;
    if (c->index->tail[i] < 0) part++;
  }
  return part;
}

/** Makes protected members of a handler accessible below. */
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
    : name_(name), record_(record), born_(Dictionary::born(record.primary)), format_(new TableFormat(table, record)) {
  std::string problem;  // problems were reported when the table was created
  options_ = read_options_of(table, name, false, &problem);
  if (!format_->fits) return;
  auto_increment_index_ = table->found_next_number_field ? table->s->next_number_index : 0;
  auto_increment_most_ = most_auto_increment(table);
  for (uint k = 0; k < table->s->keys; k++) {
    index_names_.emplace_back(table->key_info[k].name.str);
    index_births_.push_back(Dictionary::born(record.keys[k]));
  }
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

bool TableShare::is_open(const std::string &name) {
  std::lock_guard<std::mutex> guard(opened_mutex);
  return std::any_of(opened.begin(), opened.end(), [&](const auto &entry) { return !entry.second->closed_ && entry.second->name_ == name; });
}

TableShare::~TableShare() {
  {
    std::lock_guard<std::mutex> guard(opened_mutex);
    for (uint32_t id : index_numbers()) {
      auto [it, end] = opened.equal_range(id);
      while (it != end) it = it->second == this ? opened.erase(it) : std::next(it);
    }
  }
}

void TableShare::rows_copied() {
  Dictionary::note_birth(record_.primary);
  copied_at_ = Dictionary::born(record_.primary);
}

void TableShare::closed() {
  // A share that is opened next registers first and then reads the marks: it either reads these, or is seen here.
  std::lock_guard<std::mutex> guard(opened_mutex);
  closed_ = true;
  const auto [first, last] = opened.equal_range(record_.primary);
  const auto is_open = [](const auto &entry) { return !entry.second->closed_; };
  if (!Engine::is_open() || std::any_of(first, last, is_open)) return;
  // Exact marks, so that no values are lost by a clean shutdown. Until then, users see the same next value.
  const uint64_t next = auto_increment_, unused = auto_increment_unused_;
  const uint64_t kept = next != unused || next > behind(auto_increment_most_) ? next : 0;
  const uint64_t exact = unused < auto_increment_reserved_ ? unused : 0;
  if (exact != 0 || kept != 0 || rows_ > 0) Dictionary::set_counters_of(name_, record_.primary, exact, rows(), kept);
}

void TableShare::created(const TABLE *table, uint32_t primary, uint64_t auto_increment) {
  if (auto_increment > behind(most_auto_increment(table))) Dictionary::keep_next_value(primary, auto_increment);
}

/**
  Rows raise the mark to the value behind the column's largest one at most. A mark above that was given by the user. As in InnoDB, it holds
  until the server is restarted: otherwise the table would never have values again.
*/
Outcome TableShare::load_auto_increment() {
  uint64_t next;
  Outcome o = Dictionary::counter(Dictionary::Counter::AutoIncrement, record_.primary, &next);
  if (o != Outcome::Ok) return o;
  auto_increment_reserved_ = next;
  auto_increment_unused_ = next ? next : 1;
  if (const uint64_t kept = Dictionary::take_next_value(record_.primary)) {
    auto_increment_ = kept;
    return Outcome::Ok;
  }
  const bool beyond_type = next > behind(auto_increment_most_);
  if (beyond_type && !format_->outdated && format_->indexes[auto_increment_index_].parts[0].codec.kind == PartKind::Integer) {
    if ((o = greatest_auto_increment(&next)) != Outcome::Ok) return o;
    auto_increment_reserved_ = ++next;
  }
  auto_increment_ = auto_increment_unused_ = next ? next : 1;
  return Outcome::Ok;
}

Outcome TableShare::greatest_auto_increment(uint64_t *value) const {
  *value = 0;
  const Index &index = format_->indexes[auto_increment_index_];
  const IndexPart &part = index.parts[0];
  Iter it;
  const std::string prefix = index.prefix(), end = index.end();
  const Outcome o = Engine::iterate(Space::Rows, prefix, end, &it);
  if (o != Outcome::Ok) return o;
  it.only_keys();
  if (!(part.codec.descending ? it.first() : it.last())) return it.status();
  const Slice key = it.key().from(4);
  PartValue v;
  if (!parse_part(part.codec, key, &v)) return failed(Outcome::Corruption, "the greatest auto-increment value of " + name_ + " cannot be read");
  if (v.is_null) return Outcome::Ok;
  uchar number[8];
  read_integer(part.codec, key, number);
  const uint64_t n = read_le(number, part.codec.length);
  const bool negative = !part.codec.is_unsigned && n >> (8 * part.codec.length - 1);
  if (!negative) *value = n;
  return Outcome::Ok;
}

void TableShare::release() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

Outcome TableShare::load() {
  Outcome o = load_auto_increment();
  if (o != Outcome::Ok) return o;
  if ((o = Dictionary::counter(Dictionary::Counter::HiddenKey, record_.primary, &hidden_reserved_)) != Outcome::Ok) return o;
  hidden_ = hidden_reserved_ ? hidden_reserved_ : 1;
  uint64_t rows;
  if ((o = Dictionary::counter(Dictionary::Counter::Rows, record_.primary, &rows)) != Outcome::Ok) return o;
  uint64_t expires;
  if ((o = Dictionary::counter(Dictionary::Counter::Expires, record_.primary, &expires)) != Outcome::Ok) return o;
  expires_ = expires != 0;
  Iter it;
  const Index &primary = format_->primary;
  if ((o = Engine::iterate(Space::Rows, primary.prefix(), primary.end(), &it)) != Outcome::Ok) return o;
  it.only_keys();  // a damaged value must not keep the table from being opened
  uint64_t counted = 0;
  for (bool valid = it.first(); valid && counted < COUNTED_ROWS; valid = it.next()) counted++;
  if ((o = it.status()) != Outcome::Ok) return o;
  it.close();
  if (counted == COUNTED_ROWS) {
    // After a crash the count is outdated or missing: then an estimate is better.
    const uint64_t estimate = Engine::estimate_rows(primary.prefix(), primary.end());
    const bool likely = rows / 2 <= estimate && estimate / 2 <= rows;
    counted = std::max(likely ? rows : estimate, COUNTED_ROWS);
  }
  set_rows(counted);
  TableStatistics stored;
  if ((o = Dictionary::statistics(record_.primary, &stored)) != Outcome::Ok) return o;
  const uint64_t difference = stored.rows > counted ? stored.rows - counted : counted - stored.rows;
  if (!stored.rows_per_key.empty() && difference <= std::max(counted / 10, FEW_CHANGES)) {
    statistics_ = stored;
    return Outcome::Ok;
  }
  return counted ? sample(PLACES_AT_OPEN) : Outcome::Ok;
}

Outcome TableShare::sample(size_t places) {
  TableStatistics found;
  changes_.store(0, std::memory_order_relaxed);
  if (format_->outdated) return Outcome::Ok;
  found.rows = rows();
  for (const Index &index : format_->indexes) {
    std::vector<uint64_t> distinct(std::max(index.extended_parts, index.parts.size()), 0);
    uint64_t rows = 0;
    Compared compared = {&index, &format_->primary};
    const Outcome o =
        Engine::cardinality(index.prefix(), index.end(), places, first_difference, &compared, &distinct, &rows);
    if (o != Outcome::Ok) return o;
    for (uint64_t &d : distinct) d = d ? std::max<uint64_t>((rows + d / 2) / d, 1) : 1;
    found.rows_per_key[index.id] = distinct;
  }
  std::lock_guard<std::mutex> guard(statistics_mutex_);
  statistics_ = found;
  statistics_version_.fetch_add(1, std::memory_order_release);
  return Outcome::Ok;
}

Outcome TableShare::analyze(uint64_t rows, size_t places) {
  set_rows(rows);
  const Outcome o = sample(places);
  return o == Outcome::Ok ? Dictionary::set_statistics(name_, record_.primary, statistics()) : o;
}

TableStatistics TableShare::statistics() const {
  std::lock_guard<std::mutex> guard(statistics_mutex_);
  return statistics_;
}

void TableShare::sample_if_changed() {
  const uint64_t changes = changes_.load(std::memory_order_relaxed);
  if (changes < FEW_CHANGES || changes < rows() / 10) return;
  if (sampling_.exchange(true)) return;  // another thread does it
  if (sample(PLACES_AT_OPEN) != Outcome::Ok) sql_print_warning("KINGTIDE: statistics of %s: %s", name_.c_str(), last_message());
  sampling_.store(false);
}

ha_rows TableShare::rows() const {
  const int64_t rows = rows_.load(std::memory_order_relaxed);
  return rows > 0 ? static_cast<ha_rows>(rows) : 0;
}

uint64_t TableShare::bytes(bool now) {
  // The server asks in every statement, and the estimate can take longer than a short statement.
  const uint64_t time = coarse_time();
  if (now || time >= bytes_until_.load(std::memory_order_relaxed)) {
    bytes_.store(Engine::estimate_bytes(format_->primary.prefix(), format_->primary.end()), std::memory_order_relaxed);
    bytes_until_.store(time + 1000000, std::memory_order_relaxed);
    // Expiring rows are not subtracted from the count: once compactions have dropped them, the estimate is better.
    const uint64_t left = may_expire() ? Engine::estimate_rows(format_->primary.prefix(), format_->primary.end()) : UINT64_MAX;
    if (left < rows()) set_rows(left);
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

// The counter of a table is visible to users, so this and the handler compute it as InnoDB does, in all details: the values that
// InnoDB leaves out stay out, and a value that does not fit ends in UINT64_MAX.

uint64_t Series::after(uint64_t value, uint64_t count) const {
  uint64_t block, next;
  if (__builtin_mul_overflow(count, increment, &block) || value > most) return UINT64_MAX;
  const uint64_t base = offset > increment ? 0 : offset;
  next = value > base ? value - base : base - value;
  next -= next % increment;
  if (__builtin_add_overflow(next, base, &next) || __builtin_add_overflow(next, block, &next)) return UINT64_MAX;
  return next;
}

uint64_t Series::not_below(uint64_t value) const {
  if (increment <= 1 || increment > ~value || value >= most) return value;
  const uint64_t next = (value - 1 + increment - offset) / increment * increment + offset;
  return next >= most ? value : next;
}

void TableShare::take_auto_increment(const Series &series, uint64_t count, const handler *taker, bool continues, uint64_t *first,
                                     uint64_t *end) {
  std::lock_guard<std::mutex> guard(counters_);
  if (!continues || auto_increment_taker_ != taker) *first = std::max(*first, series.not_below(auto_increment_));
  *end = 0;
  if (*first > series.most) return;
  *end = series.after(*first, count);
  if (*end < *first)
    *first = UINT64_MAX;
  else
    raise_auto_increment(*end, taker);
}

Outcome TableShare::use_auto_increment(uint64_t value) {
  if (value < auto_increment_unused_.load(std::memory_order_relaxed)) return Outcome::Ok;
  std::lock_guard<std::mutex> guard(counters_);
  return keep_auto_increment(value);
}

Outcome TableShare::saw_auto_increment(const Series &series, uint64_t value, const handler *taker) {
  if (value > series.most) return Outcome::Ok;  // negative, for one
  const uint64_t next = series.after(value, 1);
  const bool raises = next > auto_increment_.load(std::memory_order_relaxed);
  if (!raises && value < auto_increment_unused_.load(std::memory_order_relaxed)) return Outcome::Ok;
  std::lock_guard<std::mutex> guard(counters_);
  raise_auto_increment(next, taker);
  return keep_auto_increment(value);
}

/** The caller holds `counters_`. */
void TableShare::raise_auto_increment(uint64_t next, const handler *taker) {
  if (next <= auto_increment_) return;
  auto_increment_ = next;
  auto_increment_taker_ = taker;
}

/**
  The caller holds `counters_`. A crash leaves out the values up to the mark, so the mark takes only a share of the values that are left:
  otherwise a TINYINT column would have none after its first crash.
*/
Outcome TableShare::keep_auto_increment(uint64_t value) {
  if (value < auto_increment_unused_ || value > auto_increment_most_) return Outcome::Ok;
  const uint64_t unused = behind(value), left = auto_increment_most_ - value;
  const uint64_t block = std::min(AUTO_INCREMENT_BLOCK, left / AUTO_INCREMENT_PARTS);
  const Outcome o = reserve(Dictionary::Counter::AutoIncrement, unused, &auto_increment_reserved_, block);
  if (o == Outcome::Ok) auto_increment_unused_ = unused;
  return o;
}

Outcome TableShare::set_auto_increment(uint64_t next) {
  std::lock_guard<std::mutex> guard(counters_);
  auto_increment_ = auto_increment_unused_ = next ? next : 1;
  const Outcome o = Dictionary::set_counter(Dictionary::Counter::AutoIncrement, record_.primary, auto_increment_);
  if (o == Outcome::Ok) auto_increment_reserved_ = auto_increment_;
  return o;
}

Outcome TableShare::rows_expire() {
  if (expires_.load(std::memory_order_acquire)) return Outcome::Ok;
  const Outcome o = Dictionary::set_counter(Dictionary::Counter::Expires, record_.primary, 1);
  if (o == Outcome::Ok) expires_.store(true, std::memory_order_release);
  return o;
}

void TableShare::reset_counters() {
  std::lock_guard<std::mutex> guard(counters_);
  expires_ = false;
  auto_increment_ = auto_increment_unused_ = 1;
  auto_increment_reserved_ = hidden_reserved_ = 0;
  hidden_ = 1;
  set_rows(0);
  changes_.store(FEW_CHANGES, std::memory_order_relaxed);
  born_.store(Dictionary::born(record_.primary), std::memory_order_release);
}

}  // namespace kingtide
