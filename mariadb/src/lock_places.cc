/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */
#include "lock_places.h"

#include "dictionary.h"
#include "key_text.h"
#include "table_share.h"

namespace kingtide {
namespace {

/** Decodes a name from the form that the server uses for files. Keeps the marks of partitions, which follow the table's name. */
std::string shown_name(const std::string &encoded) {
  char name[NAME_LEN + 1];
  const size_t mark = encoded.find('#');
  const uint n = filename_to_tablename(encoded.substr(0, mark).c_str(), name, sizeof name, true);
  return std::string(name, n) + (mark == std::string::npos ? "" : encoded.substr(mark));
}

}  // namespace

void split_name(const std::string &name, std::string *database, std::string *table) {
  const size_t slash = name.rfind('/');
  const bool temporary = name[0] == '/' || slash == std::string::npos;
  *database = temporary ? "" : shown_name(name.substr(0, slash));
  *table = slash == std::string::npos ? name : name.substr(slash + 1);
  if (!temporary) *table = shown_name(*table);
}

const Index *index_of(const TableShare &share, uint32_t number, std::string *name) {
  const TableFormat &format = share.format();
  for (size_t k = 0; k < format.indexes.size(); k++) {
    if (format.indexes[k].id != number) continue;
    *name = share.index_names()[k];
    return &format.indexes[k];
  }
  *name = "(hidden)";
  return format.primary.id == number ? &format.primary : nullptr;
}

LockPlace TableNames::place_of(const LockedKeys &keys) {
  LockPlace place;
  place.keys = locked_text(nullptr, nullptr, keys);
  const uint32_t number = keys.lower.size() >= 4 ? static_cast<uint32_t>(read_be(Slice(keys.lower).data, 4)) : 0;
  TableShare::find(number, [&](const TableShare &share) {
    split_name(share.name(), &place.database, &place.table);
    const Index *index = index_of(share, number, &place.index);
    place.keys = locked_text(&share.format(), index, keys);
  });
  if (const std::string *name = place.table.empty() ? of(number) : nullptr) split_name(*name, &place.database, &place.table);
  return place;
}

const std::string *TableNames::of(uint32_t index) {
  if (!loaded_) load();
  const auto found = names_.find(index);
  return found == names_.end() ? nullptr : &found->second;
}

void TableNames::load() {
  loaded_ = true;
  Dictionary::visit([this](const std::string &name, const TableRecord &record) {
    names_[record.primary] = name;
    for (uint32_t id : record.keys) names_[id] = name;
  });
}

}  // namespace kingtide
