// The smoke test: every function of the header, its errors, and what the library promises about them. The argument is an empty
// directory.

#include "check.h"

static const char *directory;

const char *below(const char *name) {
    // A path at a time is not enough where two are arguments of one call.
    static char paths[8][4096];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

kingtide_db *open_new(const char *name) {
    kingtide_options *options = kingtide_options_new();
    OK(kingtide_options_set(options, "memtable_size", "64K", &err));
    OK(kingtide_options_set(options, "error_if_exists", "true", &err));
    kingtide_db *db = NULL;
    OK(kingtide_db_open(below(name), options, &db, &err));
    kingtide_options_free(options);
    return db;
}

bool holds(const kingtide_value *value, const char *text) {
    return kingtide_value_is_present(value) && kingtide_value_len(value) == strlen(text) &&
           memcmp(kingtide_value_data(value), text, strlen(text)) == 0;
}

bool is_at(kingtide_iter *iter, const char *key, const char *value) {
    size_t key_len = 0, value_len = 0;
    const uint8_t *found = NULL;
    const uint8_t *found_key = kingtide_iter_key(iter, &key_len);
    OK(kingtide_iter_value(iter, &found, &value_len, &err));
    return kingtide_iter_valid(iter) && key_len == strlen(key) && memcmp(found_key, key, key_len) == 0 &&
           value_len == strlen(value) && memcmp(found, value, value_len) == 0;
}

bool reads(const kingtide_family *family, const char *key, const char *expected) {
    kingtide_value *value = kingtide_value_new();
    OK(kingtide_family_get(family, S(key), value, &err));
    bool as_expected = expected ? holds(value, expected) : !kingtide_value_is_present(value);
    kingtide_value_free(value);
    return as_expected;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: smoke DIRECTORY\n");
        return 2;
    }
    directory = argv[1];
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {
        {"tables", test_tables},       {"data", test_data},
        {"iterators", test_iterators}, {"families", test_families},
        {"transactions", test_transactions}, {"locks", test_locks},
        {"two_phase", test_two_phase}, {"changes", test_changes},
        {"copies", test_copies},       {"verify", test_verify},
        {"stats", test_stats},         {"errors", test_errors},
        {"observe", test_observe},     {"null", test_null},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        parts[i].run();
        printf("%s: ok\n", parts[i].name);
        fflush(stdout);
    }
    return 0;
}
