// Options, writing and reading outside of transactions, iterators, families.

#include "check.h"

void test_tables(void) {
    CHECK(strlen(kingtide_version()) >= 5);
    CHECK(strcmp(kingtide_status_name(KINGTIDE_OK), "ok") == 0);
    CHECK(strcmp(kingtide_status_name(KINGTIDE_LOCK_HELD), "lock-held") == 0);
    CHECK(strcmp(kingtide_status_name(-7), "other") == 0);

    kingtide_option_info info = {.size = sizeof info};
    size_t count = 0, families = 0, live = 0;
    while (kingtide_option_get_info(count, &info)) {
        CHECK(info.size == sizeof info && strlen(info.name) && strlen(info.description) && strlen(info.form));
        CHECK(!info.has_limits || info.minimum < info.maximum);
        families += info.is_family != 0;
        live += info.is_live != 0;
        count++;
    }
    CHECK(count > 20 && families > 5 && families < count && live > 5);

    kingtide_options *options = kingtide_options_new();
    kingtide_text *text = NULL;
    OK(kingtide_options_set(options, "block_cache_size", "8M", &err));
    OK(kingtide_options_get(options, "block_cache_size", &text, &err));
    CHECK(strcmp(kingtide_text_data(text), "8388608") == 0 && kingtide_text_len(text) == 7);
    kingtide_text_free(text);
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_options_set(options, "blok_size", "4K", &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_options_set(options, "block_size", "1", &err));
    FAILS(KINGTIDE_NOT_FOUND, kingtide_options_get(options, "nothing", &text, &err));
    CHECK(text == NULL);
    FAILS(KINGTIDE_NOT_FOUND, kingtide_options_set_order(options, "no such order", &err));
    FAILS(KINGTIDE_NOT_FOUND, kingtide_options_load(options, below("no database"), &err));
    kingtide_options_free(options);

    int32_t order = 5;
    OK(kingtide_compare(NULL, S("a"), S("b"), &order, &err));
    CHECK(order < 0);
    OK(kingtide_compare("reverse", S("a"), S("b"), &order, &err));
    CHECK(order > 0);
    FAILS(KINGTIDE_NOT_FOUND, kingtide_compare("no such order", S("a"), S("b"), &order, &err));
}

static void batches(kingtide_db *db, const kingtide_family *family) {
    kingtide_batch *batch = kingtide_batch_new();
    OK(kingtide_batch_put(batch, family, S("b1"), S("one"), &err));
    OK(kingtide_batch_put(batch, family, S("empty"), NULL, 0, &err));
    OK(kingtide_batch_put_ttl(batch, family, S("b2"), S("two"), 3600000, &err));
    OK(kingtide_batch_put_until(batch, family, S("b3"), S("gone in 1970"), 1000, &err));
    OK(kingtide_batch_put(batch, family, S("p/1"), S("x"), &err));
    OK(kingtide_batch_put(batch, family, S("r1"), S("x"), &err));
    OK(kingtide_batch_put(batch, family, S("s1"), S("x"), &err));
    OK(kingtide_batch_delete(batch, family, S("absent"), &err));
    OK(kingtide_batch_single_delete(batch, family, S("s1"), &err));
    OK(kingtide_batch_delete_range(batch, family, S("r"), S("s"), &err));
    OK(kingtide_batch_delete_prefix(batch, family, S("p/"), &err));
    CHECK(kingtide_batch_count(batch) == 11 && kingtide_batch_bytes(batch) > 20);
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_batch_put(batch, family, NULL, 0, S("v"), &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_batch_put(batch, family, NULL, 3, S("v"), &err));

    uint64_t sequence = 0;
    kingtide_write_options how = {.size = sizeof how, .durability = KINGTIDE_DURABILITY_POWER};
    OK(kingtide_db_write(db, batch, &how, &sequence, &err));
    CHECK(sequence == kingtide_db_latest_sequence(db) && sequence >= 11);
    CHECK(reads(family, "b1", "one") && reads(family, "b2", "two") && reads(family, "b3", NULL));
    CHECK(reads(family, "empty", "") && reads(family, "p/1", NULL) && reads(family, "r1", NULL));
    CHECK(reads(family, "s1", NULL));
    how.durability = 17;
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_db_write(db, batch, &how, NULL, &err));
    how.size = 0;
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_db_write(db, batch, &how, NULL, &err));

    kingtide_batch_clear(batch);
    CHECK(kingtide_batch_count(batch) == 0);
    OK(kingtide_db_write(db, batch, NULL, NULL, &err));
    kingtide_batch_free(batch);
}

/* Values that are written in pieces. */
static void pieces(kingtide_db *db, const kingtide_family *family) {
    enum { PIECES = 40, PIECE = 50000 };
    static char piece[PIECE];
    kingtide_value_writer *writer = NULL;
    kingtide_staged_value *value = NULL, *small = NULL;
    for (size_t i = 0; i < PIECE; i++)
        piece[i] = (char)(i % 251);
    OK(kingtide_family_value_writer(family, &writer, &err));
    for (int i = 0; i < PIECES; i++)
        OK(kingtide_value_writer_write(writer, piece, PIECE, &err));
    OK(kingtide_value_writer_write(writer, NULL, 0, &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_value_writer_write(writer, NULL, 1, &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_value_writer_write(NULL, piece, 1, &err));
    CHECK(kingtide_value_writer_len(writer) == (uint64_t)PIECES * PIECE);
    OK(kingtide_value_writer_finish(writer, &value, &err));
    CHECK(kingtide_staged_value_len(value) == (uint64_t)PIECES * PIECE);
    kingtide_staged_value *none = value;
    FAILS(KINGTIDE_FINISHED, kingtide_value_writer_finish(writer, &none, &err));
    CHECK(none == NULL && kingtide_value_writer_len(writer) == 0);
    FAILS(KINGTIDE_FINISHED, kingtide_value_writer_write(writer, piece, 1, &err));
    kingtide_value_writer_free(writer);

    kingtide_batch *batch = kingtide_batch_new();
    OK(kingtide_batch_put_staged(batch, family, S("film"), value, 0, &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_batch_put_staged(batch, family, S("again"), value, 0, &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_batch_put_staged(batch, family, S("none"), NULL, 0, &err));
    CHECK(kingtide_batch_bytes(batch) < 100);
    OK(kingtide_db_write(db, batch, NULL, NULL, &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_family_put_staged(family, S("again"), value, &err));
    kingtide_batch_free(batch);
    kingtide_staged_value_free(value);

    OK(kingtide_family_value_writer(family, &writer, &err));
    OK(kingtide_value_writer_write(writer, S("small"), &err));
    OK(kingtide_value_writer_finish(writer, &small, &err));
    kingtide_value_writer_free(writer);
    kingtide_txn *txn = NULL;
    OK(kingtide_txn_begin(db, NULL, &txn, &err));
    OK(kingtide_txn_put_staged(txn, family, S("piece"), small, 0, &err));
    OK(kingtide_txn_put_staged(txn, family, S("short"), small, 1000000, &err));
    kingtide_reader *own = NULL, *read_before = NULL, *absent = NULL;
    OK(kingtide_txn_get_reader(txn, family, S("piece"), &own, &err));
    OK(kingtide_txn_get_reader(txn, family, S("film"), &read_before, &err));
    OK(kingtide_txn_get_reader(txn, family, S("nothing"), &absent, &err));
    CHECK(kingtide_reader_len(own) == 5 && kingtide_reader_len(read_before) == (uint64_t)PIECES * PIECE && absent == NULL);
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_txn_get_reader(NULL, family, S("piece"), &absent, &err));
    OK(kingtide_txn_commit(txn, NULL, &err));
    FAILS(KINGTIDE_FINISHED, kingtide_txn_get_reader(txn, family, S("piece"), &absent, &err));
    kingtide_txn_free(txn);
    char end[4] = "xyz"; // a reader outlives its transaction
    size_t end_len = 0;
    OK(kingtide_reader_read(read_before, (uint64_t)PIECES * PIECE - 3, end, 4, &end_len, &err));
    CHECK(end_len == 3 && memcmp(end, piece + PIECE - 3, 3) == 0);
    OK(kingtide_reader_read(own, 3, end, 4, &end_len, &err));
    CHECK(end_len == 2 && memcmp(end, "ll", 2) == 0);
    kingtide_reader_free(own);
    kingtide_reader_free(read_before);
    OK(kingtide_family_put_staged(family, S("third"), small, &err));
    kingtide_staged_value_free(small);
    CHECK(reads(family, "piece", "small") && reads(family, "short", "small") && reads(family, "third", "small"));

    OK(kingtide_family_value_writer(family, &writer, &err));
    for (int i = 0; i < PIECES; i++)
        OK(kingtide_value_writer_write(writer, piece, PIECE, &err));
    kingtide_value_writer_free(writer); // nothing happened

    kingtide_reader *reader = NULL;
    char found[4];
    size_t got = 0;
    OK(kingtide_family_get_reader(family, NULL, S("film"), &reader, &err));
    CHECK(kingtide_reader_len(reader) == (uint64_t)PIECES * PIECE);
    OK(kingtide_reader_read(reader, (uint64_t)PIECES * PIECE - 3, found, 4, &got, &err));
    CHECK(got == 3 && memcmp(found, piece + PIECE - 3, 3) == 0);
    kingtide_reader_free(reader);
    kingtide_value_writer_free(NULL);
    kingtide_staged_value_free(NULL);
    CHECK(kingtide_value_writer_len(NULL) == 0 && kingtide_staged_value_len(NULL) == 0);
    const char *keys[] = {"film", "piece", "short", "third"};
    for (size_t i = 0; i < 4; i++)
        OK(kingtide_family_delete(family, keys[i], strlen(keys[i]), &err));
}

static void snapshots(kingtide_db *db, const kingtide_family *family) {
    kingtide_snapshot *before = NULL, *named = NULL, *again = NULL, *at = NULL;
    kingtide_value *value = kingtide_value_new();
    OK(kingtide_family_put(family, S("moving"), S("1"), &err));
    OK(kingtide_db_snapshot(db, &before, &err));
    OK(kingtide_db_name_snapshot(db, "yesterday", &named, &err));
    OK(kingtide_family_put(family, S("moving"), S("2"), &err));
    OK(kingtide_family_get_at(family, before, S("moving"), value, &err));
    CHECK(holds(value, "1"));
    kingtide_reader *reader = NULL;
    char piece[4] = "xyz";
    size_t got = 99;
    OK(kingtide_family_put(family, S("long"), S("0123456789"), &err));
    OK(kingtide_family_get_reader(family, NULL, S("long"), &reader, &err));
    CHECK(kingtide_reader_len(reader) == 10);
    OK(kingtide_reader_read(reader, 4, piece, 3, &got, &err));
    CHECK(got == 3 && memcmp(piece, "456", 4) == 0);
    OK(kingtide_reader_read(reader, 8, piece, 4, &got, &err));
    CHECK(got == 2 && memcmp(piece, "89", 2) == 0);
    OK(kingtide_reader_read(reader, 10, NULL, 0, &got, &err));
    CHECK(got == 0);
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_reader_read(reader, 0, NULL, 1, &got, &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_reader_read(NULL, 0, piece, 1, &got, &err));
    kingtide_reader_free(reader);
    OK(kingtide_family_get_reader(family, before, S("long"), &reader, &err));
    CHECK(reader == NULL && kingtide_reader_len(reader) == 0);
    kingtide_reader_free(reader);
    OK(kingtide_family_delete(family, S("long"), &err));
    CHECK(kingtide_snapshot_sequence(before) < kingtide_db_latest_sequence(db));
    CHECK(kingtide_db_oldest_readable_sequence(db) <= kingtide_snapshot_sequence(before));
    OK(kingtide_db_snapshot_at(db, kingtide_snapshot_sequence(before), &at, &err));
    OK(kingtide_db_named_snapshot(db, "yesterday", &again, &err));
    CHECK(kingtide_snapshot_sequence(again) == kingtide_snapshot_sequence(named));
    kingtide_strings *names = NULL;
    size_t len = 0;
    OK(kingtide_db_snapshot_names(db, &names, &err));
    CHECK(kingtide_strings_count(names) == 1 && strcmp(kingtide_strings_get(names, 0, &len), "yesterday") == 0);
    CHECK(len == 9 && kingtide_strings_get(names, 1, &len) == NULL && len == 0);
    kingtide_strings_free(names);
    OK(kingtide_db_drop_named_snapshot(db, "yesterday", &err));
    FAILS(KINGTIDE_NOT_FOUND, kingtide_db_drop_named_snapshot(db, "yesterday", &err));
    kingtide_snapshot *none = at;
    FAILS(KINGTIDE_NOT_FOUND, kingtide_db_named_snapshot(db, "yesterday", &none, &err));
    CHECK(none == NULL); // a handle that could not be made
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_db_snapshot_at(db, 1 << 30, &none, &err));
    kingtide_snapshot_free(at);
    kingtide_snapshot_free(again);
    kingtide_snapshot_free(named);
    kingtide_snapshot_free(before);
    kingtide_value_free(value);
}

static void several(const kingtide_family *family) {
    kingtide_value *values[3] = {kingtide_value_new(), kingtide_value_new(), kingtide_value_new()};
    kingtide_slice keys[3] = {{S("k0001")}, {S("absent")}, {S("k0002")}};
    int32_t statuses[3] = {9, 9, 9};
    OK(kingtide_family_multi_get(family, keys, 3, values, statuses, &err));
    CHECK(statuses[0] == KINGTIDE_OK && statuses[1] == KINGTIDE_OK && statuses[2] == KINGTIDE_OK);
    CHECK(holds(values[0], "v") && !kingtide_value_is_present(values[1]) && holds(values[2], "v"));
    CHECK(kingtide_value_data(values[1]) == NULL && kingtide_value_len(values[1]) == 0);
    OK(kingtide_family_multi_get(family, NULL, 0, NULL, NULL, &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_family_multi_get(family, keys, 3, NULL, NULL, &err));
    kingtide_value *missing[1] = {NULL};
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_family_multi_get(family, keys, 1, missing, NULL, &err));
    // After an error the values do not hold what an earlier read found.
    keys[1] = (kingtide_slice){NULL, 3};
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_family_multi_get(family, keys, 3, values, NULL, &err));
    for (int i = 0; i < 3; i++) CHECK(!kingtide_value_is_present(values[i]));
    for (int i = 0; i < 3; i++) kingtide_value_free(values[i]);
}

void test_data(void) {
    kingtide_db *db = open_new("data");
    kingtide_family *family = NULL;
    OK(kingtide_db_default_family(db, &family, &err));
    CHECK(!kingtide_db_is_read_only(db));

    OK(kingtide_family_put(family, S("tide"), S("rising"), &err));
    OK(kingtide_family_put_ttl(family, S("short"), S("lived"), 3600000, &err));
    CHECK(reads(family, "tide", "rising") && reads(family, "short", "lived") && reads(family, "no", NULL));
    OK(kingtide_family_delete(family, S("tide"), &err));
    OK(kingtide_family_single_delete(family, S("short"), &err));
    CHECK(reads(family, "tide", NULL) && reads(family, "short", NULL));

    kingtide_value *found = kingtide_value_new();
    kingtide_slice one = {S("1")}, two = {S("2")};
    bool swapped = false;
    OK(kingtide_family_compare_and_swap(family, S("cas"), NULL, &one, found, &swapped, &err));
    CHECK(swapped && !kingtide_value_is_present(found) && reads(family, "cas", "1"));
    OK(kingtide_family_compare_and_swap(family, S("cas"), &two, &one, found, &swapped, &err));
    CHECK(!swapped && holds(found, "1"));
    OK(kingtide_family_compare_and_swap(family, S("cas"), &one, NULL, NULL, &swapped, &err));
    CHECK(swapped && reads(family, "cas", NULL));
    kingtide_slice wild = {NULL, 1};
    CHECK(kingtide_value_is_present(found));
    FAILS(KINGTIDE_INVALID_ARGUMENT,
          kingtide_family_compare_and_swap(family, S("cas"), &wild, NULL, found, &swapped, &err));
    CHECK(!kingtide_value_is_present(found));
    kingtide_value_free(found);

    char key[16];
    for (int i = 0; i < 5000; i++) {
        snprintf(key, sizeof key, "k%04d", i);
        OK(kingtide_family_put(family, S(key), S("v"), &err));
    }
    // A value that is kept in a value log, and one that a place cannot hold itself.
    char large[4096];
    memset(large, 'x', sizeof large - 1);
    large[sizeof large - 1] = 0;
    OK(kingtide_family_put(family, S("large"), S(large), &err));
    OK(kingtide_db_flush(db, &err));
    OK(kingtide_family_flush(family, &err));
    CHECK(reads(family, "k4999", "v") && reads(family, "large", large));
    several(family);
    OK(kingtide_family_delete_range(family, S("k0000"), S("k1000"), &err));
    OK(kingtide_family_reclaim_range(family, S("k0000"), S("k1000"), &err));
    OK(kingtide_family_delete_prefix(family, S("k2"), &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_family_delete_range(family, S("z"), S("a"), &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_family_reclaim_range(family, S("z"), S("a"), &err));
    CHECK(reads(family, "k0999", NULL) && reads(family, "k2500", NULL) && reads(family, "k3000", "v"));
    kingtide_bound lower = {KINGTIDE_INCLUDED, S("k0")}, upper = {KINGTIDE_INCLUDED, S("k3")};
    OK(kingtide_family_compact_range(family, &lower, &upper, &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_family_compact_range(family, &upper, &lower, &err));
    OK(kingtide_family_compact_range(family, NULL, NULL, &err));
    OK(kingtide_db_wait_for_background(db, &err));
    OK(kingtide_db_sync(db, &err));
    CHECK(reads(family, "k0999", NULL) && reads(family, "k2500", NULL) && reads(family, "k3000", "v"));

    OK(kingtide_db_set_option(db, "rate_limit", "64M", &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_db_set_option(db, "cache_shards", "4", &err));
    batches(db, family);
    pieces(db, family);
    snapshots(db, family);
    kingtide_family_free(family);
    OK(kingtide_db_close(db, &err));
    kingtide_db_free(db);
}

static size_t count_keys(kingtide_iter *iter) {
    size_t n = 0;
    for (bool at = kingtide_iter_seek_to_first(iter); at; at = kingtide_iter_next(iter)) n++;
    OK(kingtide_iter_status(iter, &err));
    return n;
}

/* The keys that a walk gives, one behind the other, with a dot behind each and its value again. */
static const char *walked(kingtide_iter *iter, bool forward, size_t count, size_t most_bytes) {
    static char text[256];
    kingtide_entry entries[8];
    size_t n = kingtide_iter_walk(iter, forward, entries, count, most_bytes), at = 0;
    for (size_t i = 0; i < n; i++) {
        CHECK((entries[i].expires_at_ms > 0) == (entries[i].key[0] == 'd'));
        at += (size_t)snprintf(text + at, sizeof text - at, "%.*s=%.*s.", (int)entries[i].key_len, (const char *)entries[i].key,
                               (int)entries[i].value_len, (const char *)entries[i].value);
    }
    text[at] = 0;
    return text;
}

/* `iter` is over a, b1, b2, b3, c, d, which expires, and e: all have themselves as values. */
static void walks(kingtide_iter *iter) {
    kingtide_entry none;
    CHECK(kingtide_iter_seek_to_first(iter));
    CHECK(!strcmp(walked(iter, true, 2, 1000), "b1=b1.b2=b2.") && is_at(iter, "b2", "b2"));
    CHECK(!strcmp(walked(iter, true, 8, 1000), "b3=b3.c=c.d=d.") && is_at(iter, "d", "d"));
    CHECK(!strcmp(walked(iter, false, 8, 5), "c=c.b3=b3.") && is_at(iter, "b3", "b3"));
    CHECK(kingtide_iter_walk(iter, true, NULL, 3, 9) == 0 && kingtide_iter_walk(iter, true, &none, 0, 9) == 0);
    CHECK(is_at(iter, "b3", "b3"));
    CHECK(!strcmp(walked(iter, false, 8, 1000), "b2=b2.b1=b1.a=a.") && !kingtide_iter_valid(iter));
    CHECK(!strcmp(walked(iter, false, 8, 1000), "") && kingtide_iter_walk(NULL, true, &none, 1, 9) == 0);
    CHECK(kingtide_iter_seek(iter, S("d")) && !strcmp(walked(iter, true, 8, 1000), "e=e.") && !kingtide_iter_valid(iter));
    OK(kingtide_iter_status(iter, &err));
}

void test_iterators(void) {
    kingtide_db *db = open_new("iterators");
    kingtide_family *family = NULL;
    OK(kingtide_db_default_family(db, &family, &err));
    const char *keys[] = {"a", "b1", "b2", "b3", "c"};
    for (int i = 0; i < 5; i++) OK(kingtide_family_put(family, S(keys[i]), S(keys[i]), &err));
    OK(kingtide_family_put_ttl(family, S("d"), S("d"), 3600000, &err));

    kingtide_iter *iter = NULL;
    OK(kingtide_family_iter(family, NULL, &iter, &err));
    size_t len = 9;
    CHECK(!kingtide_iter_valid(iter) && kingtide_iter_key(iter, &len) == NULL && len == 0);
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_iter_value(iter, NULL, NULL, &err));
    CHECK(count_keys(iter) == 6);
    CHECK(kingtide_iter_seek(iter, S("b")) && is_at(iter, "b1", "b1"));
    CHECK(kingtide_iter_next(iter) && is_at(iter, "b2", "b2"));
    CHECK(kingtide_iter_prev(iter) && kingtide_iter_prev(iter) && is_at(iter, "a", "a"));
    CHECK(!kingtide_iter_prev(iter) && !kingtide_iter_valid(iter) && !kingtide_iter_next(iter));
    CHECK(kingtide_iter_seek_for_prev(iter, S("bz")) && is_at(iter, "b3", "b3"));
    CHECK(kingtide_iter_expires_at_ms(iter) == 0);
    CHECK(kingtide_iter_seek_to_last(iter) && is_at(iter, "d", "d") && kingtide_iter_expires_at_ms(iter) > 0);
    CHECK(!kingtide_iter_seek(iter, S("zz")));
    // A key that is none is not passed over: the iterator is nowhere, and says why, until it is put somewhere again.
    bool (*const seeks[])(kingtide_iter *, const void *, size_t) = {kingtide_iter_seek, kingtide_iter_seek_for_prev};
    for (int i = 0; i < 2; i++) {
        kingtide_entry entry;
        CHECK(kingtide_iter_seek_to_first(iter) && !seeks[i](iter, NULL, 3) && !kingtide_iter_valid(iter));
        FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_iter_status(iter, &err));
        FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_iter_value(iter, NULL, NULL, &err));
        CHECK(kingtide_iter_key(iter, NULL) == NULL && kingtide_iter_expires_at_ms(iter) == 0);
        CHECK(!kingtide_iter_next(iter) && !kingtide_iter_prev(iter));
        CHECK(kingtide_iter_walk(iter, true, &entry, 1, 100) == 0);
        CHECK(kingtide_iter_seek_to_last(iter));
        OK(kingtide_iter_status(iter, &err));
    }
    // Nor does a call that fails put it anywhere.
    CHECK(kingtide_iter_seek_to_first(iter) && !kingtide_iter_seek(iter, NULL, 3));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_iter_refresh(iter, NULL, &err));
    CHECK(!kingtide_iter_valid(iter) && !kingtide_iter_next(iter));
    OK(kingtide_family_put(family, S("e"), S("e"), &err));
    CHECK(count_keys(iter) == 6);
    OK(kingtide_iter_refresh(iter, family, &err));
    CHECK(count_keys(iter) == 7);
    walks(iter);
    kingtide_iter_free(iter);

    kingtide_read_options options = {.size = sizeof options, .prefix = "b", .prefix_len = 1, .readahead = 1};
    OK(kingtide_family_iter(family, &options, &iter, &err));
    CHECK(count_keys(iter) == 3);
    kingtide_iter_free(iter);
    kingtide_snapshot *snapshot = NULL;
    OK(kingtide_db_snapshot(db, &snapshot, &err));
    OK(kingtide_family_put(family, S("b9"), S("later"), &err));
    options = (kingtide_read_options){.size = sizeof options,
                                      .lower = {KINGTIDE_EXCLUDED, S("a")},
                                      .upper = {KINGTIDE_INCLUDED, S("c")},
                                      .no_fill_cache = 1,
                                      .snapshot = snapshot};
    OK(kingtide_family_iter(family, &options, &iter, &err));
    kingtide_snapshot_free(snapshot);
    CHECK(count_keys(iter) == 4);
    // It outlives everything that it was made from.
    kingtide_family_free(family);
    OK(kingtide_db_close(db, &err));
    kingtide_db_free(db);
    CHECK(kingtide_iter_seek_to_first(iter) && is_at(iter, "b1", "b1"));
    kingtide_iter_free(iter);

    options.lower.kind = 9;
    db = open_new("iterators2");
    OK(kingtide_db_default_family(db, &family, &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_family_iter(family, &options, &iter, &err));
    options = (kingtide_read_options){.size = sizeof options, .newest = 1};
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_family_iter(family, &options, &iter, &err));
    options = (kingtide_read_options){.size = sizeof options, .reserved = 1};
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_family_iter(family, &options, &iter, &err));
    CHECK(iter == NULL);
    kingtide_family_free(family);
    kingtide_db_free(db);
}

// Keys by their last byte.
static int32_t by_last(void *context, const uint8_t *a, size_t a_len, const uint8_t *b, size_t b_len) {
    ++*(unsigned *)context;
    return a_len && b_len ? (int32_t)a[a_len - 1] - (int32_t)b[b_len - 1] : (int32_t)a_len - (int32_t)b_len;
}

static uint64_t last_byte(void *context, const uint8_t *key, size_t len) {
    (void)context;
    return len ? key[len - 1] : 0;
}

static void destroyed(void *context) { *(unsigned *)context = 0; }

void test_families(void) {
    unsigned calls = 0, unused = 5;
    kingtide_options *options = kingtide_options_new();
    OK(kingtide_options_add_order(options, "by last byte", by_last, last_byte, &calls, destroyed, &err));
    FAILS(KINGTIDE_EXISTS, kingtide_options_add_order(options, "reverse", by_last, NULL, &unused, destroyed, &err));
    CHECK(unused == 0);
    OK(kingtide_options_set_order(options, "by last byte", &err));
    kingtide_db *db = NULL;
    OK(kingtide_db_open(below("families"), options, &db, &err));

    kingtide_family *family = NULL, *again = NULL, *first = NULL;
    OK(kingtide_db_default_family(db, &first, &err));
    kingtide_text *text = NULL;
    OK(kingtide_family_order(first, &text, &err));
    CHECK(strcmp(kingtide_text_data(text), "by last byte") == 0);
    kingtide_text_free(text);
    CHECK(kingtide_family_compare(first, S("az"), S("ba")) > 0);
    OK(kingtide_family_put(first, S("az"), S("1"), &err));
    OK(kingtide_family_put(first, S("ba"), S("2"), &err));
    kingtide_iter *iter = NULL;
    OK(kingtide_family_iter(first, NULL, &iter, &err));
    CHECK(kingtide_iter_seek_to_first(iter) && is_at(iter, "ba", "2"));
    kingtide_iter_free(iter);
    CHECK(calls > 0);

    OK(kingtide_db_create_family(db, "numbers", options, "u64", &family, &err));
    FAILS(KINGTIDE_EXISTS, kingtide_db_create_family(db, "numbers", NULL, NULL, NULL, &err));
    FAILS(KINGTIDE_NOT_FOUND, kingtide_db_create_family(db, "x", NULL, "no order", NULL, &err));
    kingtide_options_free(options);
    OK(kingtide_db_family(db, "numbers", &again, &err));
    CHECK(kingtide_family_id(family) == kingtide_family_id(again));
    CHECK(kingtide_family_id(family) != kingtide_family_id(first));
    OK(kingtide_family_name(again, &text, &err));
    CHECK(strcmp(kingtide_text_data(text), "numbers") == 0);
    kingtide_text_free(text);
    OK(kingtide_family_set_option(family, "l0_trigger", "7", &err));
    OK(kingtide_family_get_option(again, "l0_trigger", &text, &err));
    CHECK(strcmp(kingtide_text_data(text), "7") == 0);
    kingtide_text_free(text);
    FAILS(KINGTIDE_NOT_FOUND, kingtide_family_get_option(again, "nothing", &text, &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_family_set_option(family, "block_size", "8K", &err));

    OK(kingtide_db_rename_family(db, "numbers", "digits", &err));
    kingtide_strings *names = NULL;
    OK(kingtide_db_families(db, &names, &err));
    CHECK(kingtide_strings_count(names) == 2 && strcmp(kingtide_strings_get(names, 1, NULL), "digits") == 0);
    kingtide_strings_free(names);
    OK(kingtide_db_drop_family(db, "digits", &err));
    FAILS(KINGTIDE_NOT_FOUND, kingtide_db_family(db, "digits", &(kingtide_family *){0}, &err));
    FAILS(KINGTIDE_CLOSED, kingtide_family_put(family, S("12345678"), S("1"), &err));
    FAILS(KINGTIDE_CLOSED, kingtide_family_flush(family, &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_db_drop_family(db, "default", &err));
    kingtide_family_free(again);
    kingtide_family_free(family);
    kingtide_family_free(first);
    kingtide_db_free(db);
    CHECK(calls == 0); // destroyed with the last that held it

    // Another open needs the order, and finds it through the stored options.
    FAILS(KINGTIDE_INCOMPATIBLE, kingtide_db_open(below("families"), NULL, &db, &err));
    CHECK(db == NULL);
    options = kingtide_options_new();
    OK(kingtide_options_add_order(options, "by last byte", by_last, NULL, &calls, NULL, &err));
    OK(kingtide_options_load(options, below("families"), &err));
    OK(kingtide_db_open_read_only(below("families"), options, &db, &err));
    CHECK(kingtide_db_is_read_only(db));
    uint64_t sequence = 0;
    OK(kingtide_db_catch_up(db, &sequence, &err));
    CHECK(sequence > 0);
    OK(kingtide_db_default_family(db, &family, &err));
    CHECK(reads(family, "az", "1"));
    FAILS(KINGTIDE_READ_ONLY, kingtide_family_put(family, S("k"), S("v"), &err));
    kingtide_family_free(family);
    kingtide_options_free(options);
    kingtide_db_free(db);
}
