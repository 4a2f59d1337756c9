/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "snapshot.h"

#include <memory>

#include "call.h"
#include "families.h"

namespace kingtide {
namespace {

struct FreeValue {
  void operator()(kingtide_value *value) const { kingtide_value_free(value); }
};

/** Reads a key from a snapshot or, if `snapshot` is nullptr, its last committed value. */
Outcome read(const kingtide_snapshot *snapshot, Slice key, std::string *out) {
  Call call;
  const std::unique_ptr<kingtide_value, FreeValue> value(kingtide_value_new());
  kingtide_family *family = Families::of(key);
  const Outcome o = call.done(snapshot ? kingtide_family_get_at(family, snapshot, key.data, key.size, value.get(), &call)
                                       : kingtide_family_get(family, key.data, key.size, value.get(), &call));
  if (o != Outcome::Ok) return o;
  if (!kingtide_value_is_present(value.get())) return Outcome::NotFound;
  out->assign(reinterpret_cast<const char *>(kingtide_value_data(value.get())), kingtide_value_len(value.get()));
  return Outcome::Ok;
}

}  // namespace

Snapshot::~Snapshot() { release(); }

void Snapshot::release() {
  if (snapshot_) kingtide_snapshot_free(snapshot_);
  snapshot_ = nullptr;
}

Outcome Snapshot::take_at(uint64_t sequence) {
  release();
  Outcome o = failed(Outcome::Other, "the database is closed");
  Engine::with_handle([&](kingtide_db *db) {
    Call call;
    o = call.done(kingtide_db_snapshot_at(db, sequence, &snapshot_, &call));
  });
  return o;
}

Outcome Snapshot::take() {
  release();
  Outcome o = failed(Outcome::Other, "the database is closed");
  Engine::with_handle([&](kingtide_db *db) {
    Call call;
    o = call.done(kingtide_db_snapshot(db, &snapshot_, &call));
  });
  return o;
}

Outcome Snapshot::get(Slice key, std::string *value) const { return read(snapshot_, key, value); }

Outcome Snapshot::iterate(Slice from, Slice to, Iter *iter) const { return Engine::iterate(from, to, snapshot_, iter); }

Outcome newest_entry(Slice key, std::string *value) { return read(nullptr, key, value); }

}  // namespace kingtide
