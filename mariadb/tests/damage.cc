/* Part of the MariaDB storage engine for Kingtide. GPL-2.0: see mariadb/COPYING. */

/*
  Damages a table of a server that does not run, as a defect would, for tests of CHECK and REPAIR TABLE.

      damage DATABASE db/table INDEX POSITION HOW

  INDEX is the number of a key of the table, from 0, or "rows"; POSITION that of an entry, from 0. HOW is
      erase     the entry is gone
      orphan    there is another one, whose last byte is different: of another row, then, that may not exist
      stale     there is another one, whose 8th byte is different: for another value of the index's first column
      garble    its value is a single byte
      form      the table says that its keys have the first form; POSITION is of no matter
*/
#include <kingtide.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "../codec/table_record.h"

using namespace kingtide;

static kingtide_error *err;

static void ok(kingtide_status status, const char *what) {
  if (status == KINGTIDE_OK) return;
  fprintf(stderr, "damage: %s: %s\n", what, kingtide_error_message(err));
  exit(1);
}

/** Makes a table one of an earlier version, of which the keys had another form. */
static void set_first_form(kingtide_family *dictionary, const std::string &name, TableRecord record) {
  record.key_form = KEY_FORM_FIRST;
  const std::string bytes = encode_table_record(record);
  ok(kingtide_family_put(dictionary, name.data(), name.size(), bytes.data(), bytes.size(), &err), "form");
}

static std::string prefix_of(const TableRecord &record, const char *index) {
  const bool rows = !strcmp(index, "rows");
  const size_t k = rows ? 0 : strtoul(index, nullptr, 10);
  if (!rows && k >= record.keys.size()) {
    fprintf(stderr, "damage: there is no index %s\n", index);
    exit(1);
  }
  std::string prefix;
  append_be(prefix, rows ? record.primary : record.keys[k], 4);
  return prefix;
}

int main(int argc, char **argv) {
  if (argc != 6) {
    fprintf(stderr, "damage DATABASE db/table INDEX|rows POSITION erase|orphan|stale|garble|form\n");
    return 2;
  }
  kingtide_db *db = nullptr;
  kingtide_family *dictionary = nullptr, *rows = nullptr;
  ok(kingtide_db_open(argv[1], nullptr, &db, &err), argv[1]);
  ok(kingtide_db_default_family(db, &dictionary, &err), "dictionary");
  ok(kingtide_db_family(db, "rows", &rows, &err), "rows");

  const std::string name = std::string("t") + argv[2];
  kingtide_value *v = kingtide_value_new();
  ok(kingtide_family_get(dictionary, name.data(), name.size(), v, &err), "dictionary");
  TableRecord record;
  std::string why = "there is no such table";
  if (!kingtide_value_is_present(v) ||
      !decode_table_record(Slice(kingtide_value_data(v), kingtide_value_len(v)), &record, &why)) {
    fprintf(stderr, "damage: %s: %s\n", argv[2], why.c_str());
    return 1;
  }

  const std::string prefix = prefix_of(record, argv[3]), how = argv[5];
  kingtide_read_options o = {};
  o.size = sizeof o;
  o.prefix = prefix.data();
  o.prefix_len = prefix.size();
  kingtide_iter *iter = nullptr;
  ok(kingtide_family_iter(rows, &o, &iter, &err), "iterator");
  bool valid = kingtide_iter_seek_to_first(iter);
  for (unsigned long n = strtoul(argv[4], nullptr, 10); valid && n > 0; n--) valid = kingtide_iter_next(iter);
  if (!valid) {
    fprintf(stderr, "damage: there is no entry %s\n", argv[4]);
    return 1;
  }
  size_t key_len = 0, value_len = 0;
  const uint8_t *key_bytes = kingtide_iter_key(iter, &key_len), *value_bytes = nullptr;
  ok(kingtide_iter_value(iter, &value_bytes, &value_len, &err), "value");
  std::string key(reinterpret_cast<const char *>(key_bytes), key_len);
  std::string value(reinterpret_cast<const char *>(value_bytes), value_len);
  kingtide_iter_free(iter);

  if (how == "form") {
    set_first_form(dictionary, name, record);
  } else if (how == "erase") {
    ok(kingtide_family_delete(rows, key.data(), key.size(), &err), "erase");
  } else {
    if (how == "orphan") key.back() ^= 0x55;
    if (how == "stale") key.at(7) ^= 0x55;
    if (how == "garble") value = "\xff";
    ok(kingtide_family_put(rows, key.data(), key.size(), value.data(), value.size(), &err), "put");
  }
  kingtide_value_free(v);
  kingtide_family_free(rows);
  kingtide_family_free(dictionary);
  ok(kingtide_db_close(db, &err), "close");
  kingtide_db_free(db);
  return 0;
}
