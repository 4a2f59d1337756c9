// Around the data: changes, copies, verification, statistics, errors.

#include "check.h"

#include <math.h>

static void ignore(void *context) { ++*(int *)context; }

struct heard {
    int commits, operations;
    uint64_t sequence;
};

static void hear(void *context, const kingtide_change_record *record) {
    struct heard *heard = context;
    heard->commits++;
    heard->operations += (int)kingtide_change_record_count(record);
    CHECK(kingtide_change_record_sequence(record) > heard->sequence && kingtide_change_record_first_sequence(record) == 0);
    heard->sequence = kingtide_change_record_sequence(record);
}

void test_changes(void) {
    kingtide_db *db = open_new("changes");
    kingtide_family *family = NULL;
    OK(kingtide_db_default_family(db, &family, &err));
    struct heard heard = {0};
    OK(kingtide_family_set_commit_hook(family, hear, &heard, NULL, &err));
    uint64_t since = kingtide_db_oldest_change_sequence(db);
    OK(kingtide_family_put(family, S("a"), S("1"), &err));
    OK(kingtide_family_put_ttl(family, S("b"), S("2"), 3600000, &err));
    OK(kingtide_family_delete_range(family, S("c"), S("d"), &err));
    CHECK(heard.commits == 3 && heard.operations == 3 && heard.sequence == kingtide_db_latest_sequence(db));
    int destroyed = 0;
    OK(kingtide_family_set_commit_hook(family, NULL, &destroyed, ignore, &err));
    CHECK(destroyed == 1);
    OK(kingtide_family_delete(family, S("a"), &err));
    CHECK(heard.commits == 3);
    // A hook that is not set is an error, and its context is not kept.
    kingtide_family *dropped = NULL;
    OK(kingtide_db_create_family(db, "dropped", NULL, NULL, &dropped, &err));
    OK(kingtide_db_drop_family(db, "dropped", &err));
    FAILS(KINGTIDE_CLOSED, kingtide_family_set_commit_hook(dropped, hear, &destroyed, ignore, &err));
    CHECK(destroyed == 2);
    kingtide_family_free(dropped);

    kingtide_change_stream *stream = NULL;
    kingtide_change_options options = {.size = sizeof options, .show_unlogged = 1};
    OK(kingtide_db_changes(db, since, &options, &stream, &err));
    const int kinds[] = {KINGTIDE_CHANGE_PUT, KINGTIDE_CHANGE_PUT, KINGTIDE_CHANGE_DELETE_RANGE, KINGTIDE_CHANGE_DELETE};
    kingtide_change_record *record = NULL;
    for (int i = 0; i < 4; i++) {
        OK(kingtide_change_stream_next(stream, 1000, &record, &err));
        CHECK(record != NULL && kingtide_change_record_count(record) == 1 && !kingtide_change_record_is_unlogged(record));
        CHECK(kingtide_change_record_first_sequence(record) == kingtide_change_record_sequence(record));
        CHECK(kingtide_change_stream_position(stream) == kingtide_change_record_sequence(record));
        kingtide_change change = {.size = sizeof change};
        CHECK(kingtide_change_record_get(record, 0, &change) && change.kind == kinds[i]);
        CHECK(change.family == kingtide_family_id(family) && strcmp(change.family_name, "default") == 0);
        CHECK(change.key_len == 1 && (change.expires_at_ms > 0) == (i == 1));
        CHECK(i > 2 || (change.value_len == 1 && *(const char *)change.value == "12d"[i]));
        CHECK(!kingtide_change_record_get(record, 1, &change));
        kingtide_change_record_free(record);
    }
    OK(kingtide_change_stream_next(stream, 0, &record, &err));
    CHECK(record == NULL);
    // An entry that expired at the beginning of 1970 is not described as one that does not expire.
    kingtide_batch *batch = kingtide_batch_new();
    OK(kingtide_batch_put_until(batch, family, S("e"), S("3"), 0, &err));
    OK(kingtide_db_write(db, batch, NULL, NULL, &err));
    kingtide_batch_free(batch);
    OK(kingtide_change_stream_next(stream, 1000, &record, &err));
    kingtide_change gone = {.size = sizeof gone};
    CHECK(kingtide_change_record_get(record, 0, &gone) && gone.expires_at_ms > 0);
    kingtide_change_record_free(record);
    kingtide_change_stream_free(stream);
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_db_changes(db, 1 << 30, NULL, &stream, &err));
    kingtide_family_free(family);
    kingtide_db_free(db);
}

static int32_t count_calls(void *context, uint64_t done, uint64_t total) {
    (void)done, (void)total;
    ++*(int *)context;
    return 0;
}

static int32_t cancel(void *context, uint64_t done, uint64_t total) {
    (void)context, (void)done, (void)total;
    return 1;
}

static void backups(kingtide_db *db) {
    int calls = 0;
    kingtide_backup *backup = NULL;
    kingtide_backup_options options = {.size = sizeof options, .progress = count_calls, .progress_context = &calls};
    kingtide_backup_info info = {.size = sizeof info}, again = {.size = sizeof again};
    OK(kingtide_backup_open(below("backups"), &backup, &err));
    OK(kingtide_backup_create(backup, db, &options, &info, &err));
    CHECK(info.files > 0 && info.bytes > 0 && info.sequence == kingtide_db_latest_sequence(db) && calls > 0);
    OK(kingtide_backup_get_info(backup, info.id, &again, &err));
    CHECK(again.created_ms == info.created_ms && again.bytes == info.bytes);
    OK(kingtide_backup_create(backup, db, NULL, NULL, &err));
    kingtide_backup_list *list = NULL;
    OK(kingtide_backup_list_all(backup, &list, &err));
    CHECK(kingtide_backup_list_count(list) == 2 && kingtide_backup_list_get(list, 0) == info.id);
    CHECK(kingtide_backup_list_get(list, 2) == UINT64_MAX);
    uint64_t newest = kingtide_backup_list_get(list, 1);
    kingtide_backup_list_free(list);
    OK(kingtide_backup_verify(backup, info.id, NULL, &err));
    options.progress = cancel;
    FAILS(KINGTIDE_CANCELLED, kingtide_backup_verify(backup, info.id, &options, &err));
    FAILS(KINGTIDE_NOT_FOUND, kingtide_backup_verify(backup, 77, NULL, &err));
    OK(kingtide_backup_restore(backup, newest, below("restored"), NULL, &err));
    FAILS(KINGTIDE_EXISTS, kingtide_backup_restore(backup, newest, below("restored"), NULL, &err));
    size_t deleted = 9;
    OK(kingtide_backup_purge(backup, 1, &deleted, &err));
    CHECK(deleted == 1);
    OK(kingtide_backup_delete(backup, newest, &err));
    FAILS(KINGTIDE_NOT_FOUND, kingtide_backup_delete(backup, newest, &err));
    kingtide_backup_free(backup);
}

static void sorted_files(kingtide_db *db, const kingtide_family *family) {
    kingtide_sorted_writer *writer = NULL;
    OK(kingtide_sorted_writer_create(below("one.sorted"), family, &writer, &err));
    OK(kingtide_sorted_writer_delete_range(writer, S("x"), S("y"), &err));
    OK(kingtide_sorted_writer_put(writer, S("i1"), S("ingested"), &err));
    OK(kingtide_sorted_writer_put_ttl(writer, S("i2"), S("ingested"), 3600000, &err));
    OK(kingtide_sorted_writer_put_until(writer, S("i3"), S("ingested"), 1, &err));
    OK(kingtide_sorted_writer_put_until(writer, S("i4"), S("ingested"), UINT64_MAX, &err));
    OK(kingtide_sorted_writer_delete(writer, S("key"), &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_sorted_writer_put(writer, S("a"), S("not in order"), &err));
    CHECK(kingtide_sorted_writer_estimated_bytes(writer) > 0);
    kingtide_sorted_file_info info = {.size = sizeof info};
    OK(kingtide_sorted_writer_finish(writer, &info, &err));
    CHECK(info.entries == 5 && info.range_deletes == 1 && info.bytes > 0);
    CHECK(info.smallest_len == 2 && memcmp(info.smallest, "i1", 2) == 0 && *(const char *)info.largest == 'y');
    FAILS(KINGTIDE_FINISHED, kingtide_sorted_writer_put(writer, S("z"), S("z"), &err));
    CHECK(kingtide_sorted_writer_estimated_bytes(writer) == 0);
    kingtide_sorted_writer_free(writer);

    kingtide_ingest_options options = {.size = sizeof options, .verify = 1, .move_files = 1};
    kingtide_ingest_file files[] = {{family, below("one.sorted")}};
    uint64_t sequence = 0;
    options.reserved = 1;
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_db_ingest(db, files, 1, &options, &sequence, &err));
    options.reserved = 0;
    OK(kingtide_db_ingest(db, files, 1, &options, &sequence, &err));
    CHECK(sequence == kingtide_db_latest_sequence(db));
    CHECK(reads(family, "i1", "ingested") && reads(family, "i2", "ingested") && reads(family, "key", NULL));
    CHECK(reads(family, "i3", NULL) && reads(family, "i4", "ingested"));
    bool found = false;
    OK(kingtide_family_contains(family, S("i4"), &found, &err));
    CHECK(found);
    OK(kingtide_family_contains(family, S("i3"), &found, &err));
    CHECK(!found);
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_family_contains(family, S("i4"), NULL, &err));
    kingtide_bound lower = {KINGTIDE_INCLUDED, S("gone")}, upper = {KINGTIDE_EXCLUDED, S("gonf")};
    kingtide_range_stats stats = {.size = sizeof stats};
    kingtide_batch *batch = kingtide_batch_new();
    OK(kingtide_batch_put_until(batch, family, S("gone"), S("v"), 1, &err));
    OK(kingtide_db_write(db, batch, NULL, NULL, &err));
    kingtide_batch_free(batch);
    OK(kingtide_family_range_stats(family, &lower, &upper, &stats, &err));
    CHECK(stats.entries == 1 && stats.expired == 1);
    FAILS(KINGTIDE_NOT_FOUND, kingtide_db_ingest(db, files, 1, NULL, NULL, &err));
    files[0].family = NULL;
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_db_ingest(db, files, 1, NULL, NULL, &err));
    OK(kingtide_sorted_writer_create(below("two.sorted"), family, &writer, &err));
    kingtide_sorted_writer_free(writer); // takes its file away
    OK(kingtide_sorted_writer_create(below("two.sorted"), family, &writer, &err));
    kingtide_sorted_writer_free(writer);
}

void test_copies(void) {
    kingtide_db *db = open_new("copies");
    kingtide_family *family = NULL, *copy = NULL;
    OK(kingtide_db_default_family(db, &family, &err));
    OK(kingtide_family_put(family, S("key"), S("value"), &err));
    kingtide_checkpoint_info info = {.size = sizeof info};
    OK(kingtide_db_checkpoint(db, below("checkpoint"), &info, &err));
    CHECK(info.sequence == kingtide_db_latest_sequence(db));
    FAILS(KINGTIDE_EXISTS, kingtide_db_checkpoint(db, below("checkpoint"), NULL, &err));
    // Of a program that is newer than the library: what the library does not know is left alone, whatever is in it.
    struct {
        kingtide_checkpoint_info info;
        uint64_t later[2];
    } newer;
    memset(&newer, 0xa5, sizeof newer);
    newer.info.size = sizeof newer;
    OK(kingtide_db_checkpoint(db, below("newer"), &newer.info, &err));
    CHECK(newer.info.sequence == info.sequence && newer.later[0] == 0xa5a5a5a5a5a5a5a5 && newer.later[1] == newer.later[0]);
    newer.info.size = 0;
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_db_checkpoint(db, below("sizeless"), &newer.info, &err));
    backups(db);

    OK(kingtide_db_clone_family(db, "default", "clone", &copy, &err));
    CHECK(reads(copy, "key", "value"));
    kingtide_export_info exported = {.size = sizeof exported};
    OK(kingtide_family_export(copy, below("export"), &exported, &err));
    CHECK(exported.entries == 1 && exported.files == 1 && exported.bytes > 0 && exported.sequence > 0);
    kingtide_family_free(copy);
    OK(kingtide_db_import_family(db, "imported", below("export"), &copy, &err));
    CHECK(reads(copy, "key", "value"));
    kingtide_family_free(copy);
    FAILS(KINGTIDE_EXISTS, kingtide_db_import_family(db, "imported", below("export"), &copy, &err));
    CHECK(copy == NULL);
    sorted_files(db, family);
    kingtide_family_free(family);
    kingtide_db_free(db);

    const char *copies[] = {"checkpoint", "restored"};
    for (int i = 0; i < 2; i++) {
        OK(kingtide_db_open(below(copies[i]), NULL, &db, &err));
        OK(kingtide_db_default_family(db, &family, &err));
        CHECK(reads(family, "key", "value"));
        kingtide_family_free(family);
        kingtide_db_free(db);
    }
}

// Changes a byte in the middle of some table of a database.
static void damage(const char *name) {
    char path[4096];
    for (int id = 1; id < 1000; id++) {
        snprintf(path, sizeof path, "%s/%08d.klog", below(name), id);
        FILE *file = fopen(path, "r+b");
        if (!file) continue;
        CHECK(fseek(file, 700, SEEK_SET) == 0);
        int byte = fgetc(file);
        CHECK(byte != EOF && fseek(file, 700, SEEK_SET) == 0);
        CHECK(fputc(byte ^ 0x55, file) != EOF && fclose(file) == 0);
        return;
    }
    CHECK(!"no table");
}

void test_verify(void) {
    kingtide_db *db = open_new("verify");
    kingtide_family *family = NULL;
    OK(kingtide_db_default_family(db, &family, &err));
    char key[16];
    for (int i = 0; i < 2000; i++) {
        snprintf(key, sizeof key, "key%06d", i * 7919 % 100000);
        OK(kingtide_family_put(family, S(key), S("value"), &err));
    }
    OK(kingtide_db_flush(db, &err));
    kingtide_verify_report *report = NULL;
    kingtide_verify_counts counts = {.size = sizeof counts};
    OK(kingtide_db_verify(db, NULL, NULL, &report, &err));
    CHECK(kingtide_verify_report_is_clean(report) && !kingtide_verify_report_is_damaged(report));
    CHECK(kingtide_verify_report_counts(report, &counts) && counts.families == 1 && counts.entries == 2000);
    CHECK(kingtide_verify_report_count(report) == 0 && kingtide_verify_report_unlisted(report) == 0);
    kingtide_verify_report_free(report);
    FAILS(KINGTIDE_LOCKED, kingtide_verify(below("verify"), NULL, NULL, NULL, &report, &err));
    kingtide_family_free(family);
    kingtide_db_free(db);

    damage("verify");
    int calls = 0;
    OK(kingtide_verify(below("verify"), NULL, count_calls, &calls, &report, &err));
    CHECK(!kingtide_verify_report_is_clean(report) && kingtide_verify_report_is_damaged(report) && calls > 0);
    kingtide_problem problem = {.size = sizeof problem};
    CHECK(kingtide_verify_report_count(report) > 0 && kingtide_verify_report_get(report, 0, &problem));
    CHECK(problem.severity == KINGTIDE_SEVERITY_ERROR && strstr(problem.path, ".klog") && strlen(problem.message) > 0);
    CHECK(strlen(problem.kind) > 0 && !kingtide_verify_report_get(report, 9999, &problem));
    kingtide_verify_report_free(report);

    kingtide_text *text = NULL;
    kingtide_repair_result result = {.size = sizeof result};
    kingtide_repair_options how = {.size = sizeof how, .one_family = 1};
    OK(kingtide_repair(below("verify"), below("repaired"), NULL, &how, NULL, NULL, &result, &text, &err));
    CHECK(!result.is_complete && !result.is_damaged && result.families == 1 && result.unreadable_files > 0);
    CHECK(result.kept_keys > 0 && result.kept_keys < 2000 && result.stale_ranges > 0);
    CHECK(strstr(kingtide_text_data(text), "family 'default'"));
    kingtide_text_free(text);
    FAILS(KINGTIDE_EXISTS, kingtide_repair(below("verify"), below("repaired"), NULL, NULL, NULL, NULL, NULL, NULL, &err));
}

// Where keys of the form "group/member" differ.
static size_t part(void *context, const uint8_t *a, size_t a_len, const uint8_t *b, size_t b_len) {
    (void)context;
    size_t len = a_len < b_len ? a_len : b_len;
    for (size_t i = 0, parts = 0; i < len; i++) {
        if (a[i] != b[i]) return parts;
        parts += a[i] == '/';
    }
    return a_len == b_len ? 2 : 1;
}

static void ranges(const kingtide_family *family) {
    kingtide_bound lower = {KINGTIDE_INCLUDED, S("g2/")}, upper = {KINGTIDE_EXCLUDED, S("g5/")};
    kingtide_range_stats stats = {.size = sizeof stats};
    OK(kingtide_family_range_stats(family, &lower, &upper, &stats, &err));
    CHECK(stats.rows > 0 && stats.entries >= stats.memtable_entries);
    uint64_t rows = 0, distinct[2] = {0};
    bool exact = false;
    OK(kingtide_family_count_up_to(family, &lower, &upper, 1000, &rows, &exact, &err));
    CHECK(exact && rows == 300);
    OK(kingtide_family_count_up_to(family, NULL, NULL, 10, &rows, &exact, &err));
    CHECK(!exact && rows > 0);
    OK(kingtide_family_cardinality(family, NULL, NULL, 2, 100, part, NULL, distinct, &rows, &exact, &err));
    CHECK(exact && rows == 1000 && distinct[0] == 10 && distinct[1] == 1000);
    FAILS(KINGTIDE_INVALID_ARGUMENT,
          kingtide_family_cardinality(family, NULL, NULL, 0, 100, part, NULL, distinct, NULL, NULL, &err));
    kingtide_keys *keys = NULL;
    size_t len = 0;
    OK(kingtide_family_split_points(family, NULL, NULL, 4, &keys, &err));
    size_t count = kingtide_keys_count(keys);
    CHECK(count >= 1 && count <= 3 && kingtide_keys_get(keys, 0, &len) != NULL && len > 0);
    CHECK(kingtide_keys_get(keys, count, &len) == NULL && len == 0);
    kingtide_keys_free(keys);
}

void test_stats(void) {
    kingtide_db *db = open_new("stats");
    kingtide_family *family = NULL;
    OK(kingtide_db_default_family(db, &family, &err));
    char key[16];
    for (int i = 0; i < 1000; i++) {
        snprintf(key, sizeof key, "g%d/%03d", i / 100, i % 100);
        OK(kingtide_family_put(family, S(key), S("v"), &err));
    }
    ranges(family);
    OK(kingtide_db_flush(db, &err));
    ranges(family);

    kingtide_stats *stats = NULL;
    OK(kingtide_db_stats(db, &stats, &err));
    kingtide_stat stat = {.size = sizeof stat};
    uint64_t puts = 0, seen = 0;
    CHECK(kingtide_stats_value(stats, "puts", &puts) && puts == 1000);
    CHECK(!kingtide_stats_value(stats, "no such thing", &puts));
    size_t count = 0;
    for (; kingtide_stats_get(stats, count, &stat); count++) {
        CHECK(strlen(stat.name) > 0 && strlen(stat.description) > 0);
        if (strcmp(stat.name, "puts") == 0) seen = stat.value;
    }
    CHECK(count > 30 && seen == 1000);
    kingtide_amplification amplification = {.size = sizeof amplification};
    CHECK(kingtide_stats_amplification(stats, &amplification) && amplification.write > 0);
    CHECK(kingtide_stats_writes_stopped(stats) == NULL && kingtide_stats_background_error(stats) == NULL);
    kingtide_family_stats shape = {.size = sizeof shape};
    kingtide_level_stats level = {.size = sizeof level};
    CHECK(kingtide_stats_family(stats, 0, &shape) && strcmp(shape.name, "default") == 0 && shape.levels == 1);
    CHECK(kingtide_stats_level(stats, 0, 0, &level) && level.entries == 1000 && level.files > 0);
    CHECK(!kingtide_stats_family(stats, 1, &shape) && !kingtide_stats_level(stats, 0, 1, &level));
    kingtide_text *text = NULL;
    OK(kingtide_stats_text(stats, &text, &err));
    CHECK(strstr(kingtide_text_data(text), "puts"));
    kingtide_text_free(text);
    OK(kingtide_stats_json(stats, &text, &err));
    CHECK(strstr(kingtide_text_data(text), "\"puts\":1000,") && strstr(kingtide_text_data(text), "\"name\":\"default\""));
    kingtide_text_free(text);
    kingtide_stats_free(stats);
    OK(kingtide_db_prometheus(db, &text, &err));
    CHECK(strstr(kingtide_text_data(text), "# TYPE"));
    kingtide_text_free(text);
    kingtide_family_free(family);
    kingtide_db_free(db);
}

static void count_flushes(void *context, const char *name, const char *text) {
    if (strcmp(name, "flush_ended") == 0 && strstr(text, "'default'")) ++*(int *)context;
}

void test_observe(void) {
    int flushes = 0, destroyed = 0;
    kingtide_options *options = kingtide_options_new();
    kingtide_listener listener = {.size = sizeof listener, .context = &destroyed, .event = count_flushes, .destroy = ignore};
    OK(kingtide_options_set_listener(options, &listener, &err));
    listener.context = &flushes;
    listener.destroy = NULL;
    OK(kingtide_options_set_listener(options, &listener, &err));
    CHECK(destroyed == 1); // the first one's context
    listener.event = NULL;
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_options_set_listener(options, &listener, &err));
    OK(kingtide_options_set(options, "slow_operation_threshold_us", "1", &err));
    kingtide_db *db = NULL;
    OK(kingtide_db_open(below("observe"), options, &db, &err));
    kingtide_family *family = NULL;
    OK(kingtide_db_default_family(db, &family, &err));
    CHECK(kingtide_perf_start(1) && !kingtide_perf_start(9));
    char big[2000] = {1}; // its log record takes more than a microsecond
    for (int i = 0; i < 100; i++) OK(kingtide_family_put(family, S("key"), big, sizeof big, &err));
    kingtide_text *text = NULL;
    OK(kingtide_perf_take(&text, &err));
    CHECK(strstr(kingtide_text_data(text), "log_bytes="));
    kingtide_text_free(text);
    CHECK(kingtide_perf_start(0));
    OK(kingtide_db_slow_operations(db, &text, &err));
    CHECK(strstr(kingtide_text_data(text), "write took"));
    kingtide_text_free(text);
    OK(kingtide_db_flush(db, &err));

    size_t count = 0;
    uint64_t writes = 0, median = 0;
    kingtide_histogram histogram = {.size = sizeof histogram};
    for (; kingtide_db_histogram(db, count, &histogram); count++) {
        CHECK(strlen(histogram.name) > 0 && strlen(histogram.description) > 0);
        CHECK(histogram.p50 <= histogram.p99 && histogram.p99 <= histogram.max);
        if (strcmp(histogram.name, "write") == 0) writes = histogram.count, median = histogram.p50;
    }
    CHECK(count >= 11 && writes == 100);
    uint64_t family_writes = 0;
    for (size_t i = 0; i < count; i++) {
        CHECK(kingtide_family_histogram(family, i, &histogram));
        if (strcmp(histogram.name, "write") == 0) family_writes = histogram.count;
    }
    CHECK(family_writes == 100 && !kingtide_family_histogram(family, count, &histogram));
    CHECK(!kingtide_family_histogram(NULL, 0, &histogram));
    uint64_t quantile = 0;
    OK(kingtide_db_histogram_quantile(db, "write", 0.5, &quantile, &err));
    CHECK(quantile == median && median > 0);
    FAILS(KINGTIDE_NOT_FOUND, kingtide_db_histogram_quantile(db, "no such thing", 0.5, &quantile, &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_db_histogram_quantile(db, "write", NAN, &quantile, &err));
    kingtide_family_free(family);
    OK(kingtide_db_close(db, &err));
    kingtide_db_free(db);
    CHECK(flushes == 1);
    kingtide_options_free(options);
}

void test_errors(void) {
    kingtide_db *db = open_new("errors"), *other = NULL;
    FAILS(KINGTIDE_LOCKED, kingtide_db_open(below("errors"), NULL, &other, &err));
    CHECK(other == NULL);
    kingtide_error *err = NULL;
    CHECK(kingtide_db_open("/proc/nothing/here", NULL, &other, &err) != KINGTIDE_OK);
    CHECK(kingtide_error_path(err) != NULL && strlen(kingtide_error_message(err)) > 0);
    uint64_t offset = 7;
    CHECK(!kingtide_error_offset(err, &offset) && offset == 7);
    kingtide_error_free(err);
    // The caller need not ask for the error object.
    CHECK(kingtide_db_open(below("errors"), NULL, &other, NULL) == KINGTIDE_LOCKED);
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_db_open("", NULL, &other, &err));
    kingtide_family *family = NULL;
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_db_family(db, "\xff\xfe", &family, &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_db_create_family(db, "", NULL, NULL, NULL, &err));
    // After a close all handles answer.
    OK(kingtide_db_default_family(db, &family, &err));
    OK(kingtide_db_close(db, &err));
    OK(kingtide_db_close(db, &err));
    kingtide_value *value = kingtide_value_new();
    FAILS(KINGTIDE_CLOSED, kingtide_family_get(family, S("k"), value, &err));
    kingtide_family_free(family);
    FAILS(KINGTIDE_CLOSED, kingtide_db_family(db, "default", &family, &err));
    kingtide_txn *txn = NULL;
    FAILS(KINGTIDE_CLOSED, kingtide_txn_begin(db, NULL, &txn, &err));
    CHECK(family == NULL && txn == NULL);
    kingtide_value_free(value);
    kingtide_db_free(db);
}
