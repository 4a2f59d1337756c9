// Does what the steps of the conformance table say, through the C API.

#include "conformance.h"

enum kind { FAMILY, BATCH, SNAPSHOT, TRANSACTION, KINDS };

// A handle, by the name that the case gave to it.
struct handle {
    enum kind kind;
    char *name;
    void *object;
    struct handle *next;
};

struct world {
    char *path;
    kingtide_db *db;
    kingtide_value *value;
    struct handle *handles;
};

static void free_object(enum kind kind, void *object) {
    switch (kind) {
        case FAMILY: kingtide_family_free(object); break;
        case BATCH: kingtide_batch_free(object); break;
        case SNAPSHOT: kingtide_snapshot_free(object); break;
        case TRANSACTION: kingtide_txn_free(object); break;
        case KINDS: break;
    }
}

static void *find(struct world *world, enum kind kind, const char *name) {
    for (struct handle *h = world->handles; h; h = h->next) {
        if (h->kind == kind && strcmp(h->name, name) == 0) {
            return h->object;
        }
    }
    return NULL;
}

static void *need(struct world *world, enum kind kind, struct text name) {
    void *found = find(world, kind, name.data);
    if (!found) {
        broken("no such handle", name.data);
    }
    return found;
}

static void unbind(struct world *world, enum kind kind, const char *name) {
    for (struct handle **at = &world->handles; *at; at = &(*at)->next) {
        struct handle *h = *at;
        if (h->kind == kind && strcmp(h->name, name) == 0) {
            *at = h->next;
            free_object(kind, h->object);
            free(h->name);
            free(h);
            return;
        }
    }
}

static void bind(struct world *world, enum kind kind, const char *name, void *object) {
    unbind(world, kind, name);
    struct handle *h = must(malloc(sizeof *h));
    *h = (struct handle){kind, must(strdup(name)), object, world->handles};
    world->handles = h;
}

static void close_world(struct world *world) {
    while (world->handles) {
        unbind(world, world->handles->kind, world->handles->name);
    }
    kingtide_db_free(world->db);
    world->db = NULL;
}

struct world *world_new(const char *path) {
    struct world *world = must(calloc(1, sizeof *world));
    world->path = must(strdup(path));
    world->value = must(kingtide_value_new());
    return world;
}

void world_free(struct world *world) {
    if (world) {
        close_world(world);
        kingtide_value_free(world->value);
        free(world->path);
        free(world);
    }
}

void world_flush(struct world *world) {
    kingtide_db_flush(world->db, NULL); // it may be closed, or not open yet
}

static unsigned long long number(struct text text) {
    return strtoull(text.data, NULL, 10);
}

static void say_number(struct words *answer, const char *tag, unsigned long long n) {
    char text[32];
    snprintf(text, sizeof text, "%llu", n);
    say(answer, tag);
    say(answer, text);
}

static void say_names(struct words *answer, kingtide_strings *names) {
    say(answer, "names");
    for (size_t i = 0; i < kingtide_strings_count(names); i++) {
        say(answer, kingtide_strings_get(names, i, NULL));
    }
    kingtide_strings_free(names);
}

static void say_text(struct words *answer, kingtide_text *text) {
    say(answer, "text");
    say_bytes(answer, kingtide_text_data(text), kingtide_text_len(text));
    kingtide_text_free(text);
}

static void say_value(struct words *answer, const kingtide_value *value) {
    if (kingtide_value_is_present(value)) {
        say(answer, "value");
        say_bytes(answer, kingtide_value_data(value), kingtide_value_len(value));
    } else {
        say(answer, "none");
    }
}

// What an operation came to. When it succeeded and has said nothing, the answer is "ok".
static void finish(kingtide_status status, struct words *answer) {
    if (status != KINGTIDE_OK) {
        say_nothing(answer);
        say(answer, "error");
        say(answer, kingtide_status_name(status));
    } else if (answer->count == 0) {
        say(answer, "ok");
    }
}

// Each family of operations performs a step if it is one of its own, and tells whether it was.
#define STEP struct world *world, struct text *a, size_t count, struct words *answer, kingtide_status *status
#define BYTES(text) (text).data, (text).len

// Sets options from words of the form name=value, and finds the key order among them.
static kingtide_status settings(kingtide_options *options, struct text *a, size_t count, const char **order) {
    for (size_t i = 0; i < count; i++) {
        char *equals = strchr(a[i].data, '=');
        if (!equals) {
            broken("an option without a value", a[i].data);
        }
        *equals = 0;
        kingtide_status status = KINGTIDE_OK;
        if (strcmp(a[i].data, "order") == 0) {
            *order = equals + 1;
        } else {
            status = kingtide_options_set(options, a[i].data, equals + 1, NULL);
        }
        if (strcmp(a[i].data, "order") != 0) {
            *equals = '=';
        }
        if (status != KINGTIDE_OK) {
            return status;
        }
    }
    return KINGTIDE_OK;
}

static kingtide_status open_database(struct world *world, struct text *a, size_t count) {
    close_world(world);
    kingtide_options *options = must(kingtide_options_new());
    const char *order = NULL;
    kingtide_status status = settings(options, a, count, &order);
    if (status == KINGTIDE_OK && order) {
        status = kingtide_options_set_order(options, order, NULL);
    }
    if (status == KINGTIDE_OK) {
        status = kingtide_db_open(world->path, options, &world->db, NULL);
    }
    kingtide_options_free(options);
    kingtide_family *family = NULL;
    if (status == KINGTIDE_OK) {
        status = kingtide_db_default_family(world->db, &family, NULL);
        bind(world, FAMILY, "default", family);
    }
    return status;
}

static kingtide_status create_family(struct world *world, struct text *a, size_t count) {
    kingtide_options *options = must(kingtide_options_new());
    const char *order = NULL;
    kingtide_status status = settings(options, a + 3, count - 3, &order);
    kingtide_family *family = NULL;
    if (status == KINGTIDE_OK) {
        status = kingtide_db_create_family(world->db, a[2].data, options, order, &family, NULL);
    }
    kingtide_options_free(options);
    if (status == KINGTIDE_OK) {
        bind(world, FAMILY, a[1].data, family);
    }
    return status;
}

static bool families(STEP) {
    kingtide_family *family = NULL;
    kingtide_text *text = NULL;
    if (is(a[0], "open")) {
        *status = open_database(world, a + 1, count - 1);
    } else if (is(a[0], "close")) {
        *status = kingtide_db_close(world->db, NULL);
    } else if (is(a[0], "flush")) {
        *status = kingtide_db_flush(world->db, NULL);
    } else if (is(a[0], "sync")) {
        *status = kingtide_db_sync(world->db, NULL);
    } else if (is(a[0], "compact")) {
        *status = kingtide_family_compact_range(find(world, FAMILY, "default"), NULL, NULL, NULL);
    } else if (is(a[0], "create_family")) {
        *status = create_family(world, a, count);
    } else if (is(a[0], "family") || is(a[0], "clone_family")) {
        *status = is(a[0], "family") ? kingtide_db_family(world->db, a[2].data, &family, NULL)
                                     : kingtide_db_clone_family(world->db, a[2].data, a[3].data, &family, NULL);
        if (*status == KINGTIDE_OK) {
            bind(world, FAMILY, a[1].data, family);
        }
    } else if (is(a[0], "drop_family")) {
        *status = kingtide_db_drop_family(world->db, a[1].data, NULL);
    } else if (is(a[0], "rename_family")) {
        *status = kingtide_db_rename_family(world->db, a[1].data, a[2].data, NULL);
    } else if (is(a[0], "families")) {
        kingtide_strings *names = NULL;
        *status = kingtide_db_families(world->db, &names, NULL);
        say_names(answer, names);
    } else if (is(a[0], "family_name")) {
        *status = kingtide_family_name(need(world, FAMILY, a[1]), &text, NULL);
        say_text(answer, text);
    } else if (is(a[0], "family_order")) {
        *status = kingtide_family_order(need(world, FAMILY, a[1]), &text, NULL);
        say_text(answer, text);
    } else if (is(a[0], "family_option")) {
        *status = kingtide_family_get_option(need(world, FAMILY, a[1]), a[2].data, &text, NULL);
        say_text(answer, text);
    } else if (is(a[0], "set_option")) {
        *status = kingtide_db_set_option(world->db, a[1].data, a[2].data, NULL);
    } else if (is(a[0], "set_family_option")) {
        *status = kingtide_family_set_option(need(world, FAMILY, a[1]), a[2].data, a[3].data, NULL);
    } else {
        return false;
    }
    return true;
}

static bool snapshots(STEP) {
    (void)count;
    kingtide_snapshot *snapshot = NULL;
    if (is(a[0], "snapshot")) {
        *status = kingtide_db_snapshot(world->db, &snapshot, NULL);
    } else if (is(a[0], "name_snapshot")) {
        *status = kingtide_db_name_snapshot(world->db, a[2].data, &snapshot, NULL);
    } else if (is(a[0], "named_snapshot")) {
        *status = kingtide_db_named_snapshot(world->db, a[2].data, &snapshot, NULL);
    } else if (is(a[0], "drop_named_snapshot")) {
        *status = kingtide_db_drop_named_snapshot(world->db, a[1].data, NULL);
    } else if (is(a[0], "snapshot_names")) {
        kingtide_strings *names = NULL;
        *status = kingtide_db_snapshot_names(world->db, &names, NULL);
        say_names(answer, names);
    } else if (is(a[0], "free_snapshot")) {
        unbind(world, SNAPSHOT, a[1].data);
    } else {
        return false;
    }
    if (snapshot) {
        bind(world, SNAPSHOT, a[1].data, snapshot);
    }
    return true;
}

// Puts to the database, a batch or a transaction, for ever, for a time, or until a moment.
static kingtide_status put(struct world *world, struct text *a, size_t count) {
    kingtide_family *family = need(world, FAMILY, a[2]);
    kingtide_batch *batch = find(world, BATCH, a[1].data);
    kingtide_txn *txn = find(world, TRANSACTION, a[1].data);
    struct text key = a[3], value = a[4];
    bool until = is(a[0], "put_until"), ttl = is(a[0], "put_ttl");
    unsigned long long ms = until || ttl ? number(a[5]) : 0;
    (void)count;
    if (batch) {
        return until ? kingtide_batch_put_until(batch, family, BYTES(key), BYTES(value), ms, NULL)
               : ttl ? kingtide_batch_put_ttl(batch, family, BYTES(key), BYTES(value), ms, NULL)
                     : kingtide_batch_put(batch, family, BYTES(key), BYTES(value), NULL);
    }
    if (txn) {
        return until ? kingtide_txn_put_until(txn, family, BYTES(key), BYTES(value), ms, NULL)
               : ttl ? kingtide_txn_put_ttl(txn, family, BYTES(key), BYTES(value), ms, NULL)
                     : kingtide_txn_put(txn, family, BYTES(key), BYTES(value), NULL);
    }
    if (until) {
        broken("a plain write has no put_until", a[3].data);
    }
    return ttl ? kingtide_family_put_ttl(family, BYTES(key), BYTES(value), ms, NULL)
               : kingtide_family_put(family, BYTES(key), BYTES(value), NULL);
}

static kingtide_status put_repeated(struct world *world, struct text *a, size_t count) {
    size_t times = number(a[5]), len = a[4].len * times;
    char *value = must(malloc(len + 1));
    for (size_t i = 0; i < times; i++) {
        memcpy(value + i * a[4].len, a[4].data, a[4].len);
    }
    struct text unit = a[4];
    a[4] = (struct text){value, len};
    kingtide_status status = put(world, a, count);
    a[4] = unit;
    free(value);
    return status;
}

static bool deletes(STEP) {
    (void)count;
    (void)answer;
    if (strncmp(a[0].data, "delete", 6) != 0 && !is(a[0], "single_delete")) {
        return false;
    }
    kingtide_family *family = need(world, FAMILY, a[2]);
    kingtide_batch *batch = find(world, BATCH, a[1].data);
    kingtide_txn *txn = find(world, TRANSACTION, a[1].data);
    struct text key = a[3];
    if (is(a[0], "delete")) {
        *status = batch ? kingtide_batch_delete(batch, family, BYTES(key), NULL)
                  : txn ? kingtide_txn_delete(txn, family, BYTES(key), NULL)
                        : kingtide_family_delete(family, BYTES(key), NULL);
    } else if (is(a[0], "single_delete")) {
        *status = batch ? kingtide_batch_single_delete(batch, family, BYTES(key), NULL)
                  : txn ? kingtide_txn_single_delete(txn, family, BYTES(key), NULL)
                        : kingtide_family_single_delete(family, BYTES(key), NULL);
    } else if (is(a[0], "delete_range")) {
        *status = batch ? kingtide_batch_delete_range(batch, family, BYTES(key), BYTES(a[4]), NULL)
                  : txn ? kingtide_txn_delete_range(txn, family, BYTES(key), BYTES(a[4]), NULL)
                        : kingtide_family_delete_range(family, BYTES(key), BYTES(a[4]), NULL);
    } else {
        *status = batch ? kingtide_batch_delete_prefix(batch, family, BYTES(key), NULL)
                  : txn ? kingtide_txn_delete_prefix(txn, family, BYTES(key), NULL)
                        : kingtide_family_delete_prefix(family, BYTES(key), NULL);
    }
    return true;
}

// A value that the table writes as "=value", or "-" for none.
static const kingtide_slice *optional(struct text word, kingtide_slice *slice) {
    *slice = (kingtide_slice){word.data + 1, word.len ? word.len - 1 : 0};
    return word.data[0] == '=' ? slice : NULL;
}

static kingtide_status swap(struct world *world, struct text *a, struct words *answer) {
    kingtide_slice places[2];
    bool swapped = false;
    const kingtide_slice *expected = optional(a[3], &places[0]), *desired = optional(a[4], &places[1]);
    kingtide_status status = kingtide_family_compare_and_swap(need(world, FAMILY, a[1]), BYTES(a[2]), expected, desired,
                                                              world->value, &swapped, NULL);
    say(answer, swapped ? "swapped" : "found");
    if (!swapped) {
        say_optional(answer, kingtide_value_data(world->value), kingtide_value_len(world->value));
    }
    return status;
}

static bool writes(STEP) {
    kingtide_batch *batch = count > 1 ? find(world, BATCH, a[1].data) : NULL;
    if (is(a[0], "put") || is(a[0], "put_ttl") || is(a[0], "put_until")) {
        *status = put(world, a, count);
    } else if (is(a[0], "put_repeated")) {
        *status = put_repeated(world, a, count);
    } else if (is(a[0], "compare_and_swap")) {
        *status = swap(world, a, answer);
    } else if (is(a[0], "batch")) {
        bind(world, BATCH, a[1].data, must(kingtide_batch_new()));
    } else if (is(a[0], "batch_clear")) {
        kingtide_batch_clear(batch);
    } else if (is(a[0], "batch_count")) {
        say_number(answer, "count", kingtide_batch_count(batch));
    } else if (is(a[0], "write")) {
        *status = kingtide_db_write(world->db, batch, NULL, NULL, NULL);
    } else {
        return deletes(world, a, count, answer, status);
    }
    return true;
}

static kingtide_status get(struct world *world, struct text *a) {
    kingtide_family *family = need(world, FAMILY, a[2]);
    kingtide_snapshot *snapshot = find(world, SNAPSHOT, a[1].data);
    kingtide_txn *txn = find(world, TRANSACTION, a[1].data);
    return snapshot ? kingtide_family_get_at(family, snapshot, BYTES(a[3]), world->value, NULL)
           : txn    ? kingtide_txn_get(txn, family, BYTES(a[3]), world->value, NULL)
                    : kingtide_family_get(family, BYTES(a[3]), world->value, NULL);
}

static kingtide_status multi_get(struct world *world, struct text *a, size_t count, struct words *answer) {
    kingtide_family *family = need(world, FAMILY, a[2]);
    kingtide_txn *txn = find(world, TRANSACTION, a[1].data);
    size_t keys = count - 3;
    kingtide_slice *slices = must(calloc(keys + 1, sizeof *slices));
    kingtide_value **values = must(calloc(keys + 1, sizeof *values));
    for (size_t i = 0; i < keys; i++) {
        slices[i] = (kingtide_slice){a[3 + i].data, a[3 + i].len};
        values[i] = must(kingtide_value_new());
    }
    kingtide_status status = txn ? kingtide_txn_multi_get(txn, family, slices, keys, values, NULL, NULL)
                                 : kingtide_family_multi_get(family, slices, keys, values, NULL, NULL);
    say(answer, "values");
    for (size_t i = 0; i < keys; i++) {
        say_optional(answer, kingtide_value_data(values[i]), kingtide_value_len(values[i]));
        kingtide_value_free(values[i]);
    }
    free(values);
    free(slices);
    return status;
}

static kingtide_bound bound(struct text word) {
    int32_t kind = word.data[0] == '[' ? KINGTIDE_INCLUDED : word.data[0] == '(' ? KINGTIDE_EXCLUDED : KINGTIDE_UNBOUNDED;
    return (kingtide_bound){kind, word.data + 1, word.len - 1};
}

static kingtide_status open_iterator(struct world *world, struct text *a, kingtide_iter **iter) {
    kingtide_read_options options = {.size = sizeof options};
    if (is(a[0], "range")) {
        options.lower = bound(a[4]);
        options.upper = bound(a[5]);
    } else if (is(a[0], "prefix")) {
        options.prefix = a[4].data;
        options.prefix_len = a[4].len;
    }
    options.snapshot = find(world, SNAPSHOT, a[1].data);
    kingtide_txn *txn = find(world, TRANSACTION, a[1].data);
    kingtide_family *family = need(world, FAMILY, a[2]);
    return txn ? kingtide_txn_iter(txn, family, &options, iter, NULL) : kingtide_family_iter(family, &options, iter, NULL);
}

static kingtide_status say_entry(kingtide_iter *iter, struct words *answer) {
    size_t key_len = 0, value_len = 0;
    const uint8_t *value = NULL, *key = kingtide_iter_key(iter, &key_len);
    kingtide_status status = kingtide_iter_value(iter, &value, &value_len, NULL);
    say_bytes(answer, key, key_len);
    say_bytes(answer, value, value_len);
    return status;
}

static bool iterates(STEP) {
    bool range = is(a[0], "range") || is(a[0], "prefix");
    bool forward = range ? is(a[3], "forward") : is(a[0], "first");
    bool seek = is(a[0], "seek") || is(a[0], "seek_for_prev");
    (void)count;
    if (!range && !seek && !is(a[0], "first") && !is(a[0], "last")) {
        return false;
    }
    kingtide_iter *iter = NULL;
    *status = open_iterator(world, a, &iter);
    if (*status != KINGTIDE_OK) {
        return true;
    }
    bool valid = is(a[0], "seek")  ? kingtide_iter_seek(iter, BYTES(a[3]))
                 : seek            ? kingtide_iter_seek_for_prev(iter, BYTES(a[3]))
                 : forward         ? kingtide_iter_seek_to_first(iter)
                                   : kingtide_iter_seek_to_last(iter);
    if (range) {
        say(answer, "entries");
        while (valid && *status == KINGTIDE_OK) {
            *status = say_entry(iter, answer);
            valid = forward ? kingtide_iter_next(iter) : kingtide_iter_prev(iter);
        }
    } else if (valid) {
        say(answer, "entry");
        *status = say_entry(iter, answer);
    } else {
        say(answer, "none");
    }
    if (*status == KINGTIDE_OK) {
        *status = kingtide_iter_status(iter, NULL);
    }
    kingtide_iter_free(iter);
    return true;
}

static kingtide_status stream(struct world *world, struct text *a, struct words *answer) {
    kingtide_reader *reader = NULL;
    kingtide_status status = kingtide_family_get_reader(need(world, FAMILY, a[2]), find(world, SNAPSHOT, a[1].data),
                                                        BYTES(a[3]), &reader, NULL);
    if (!reader) {
        say(answer, "none");
    } else if (is(a[0], "length")) {
        say_number(answer, "count", kingtide_reader_len(reader));
    } else {
        size_t size = number(a[5]), got = 0;
        char *piece = must(malloc(size + 1));
        status = kingtide_reader_read(reader, number(a[4]), piece, size, &got, NULL);
        say(answer, "value");
        say_bytes(answer, piece, got);
        free(piece);
    }
    kingtide_reader_free(reader);
    return status;
}

static bool reads(STEP) {
    if (is(a[0], "get")) {
        *status = get(world, a);
        say_value(answer, world->value);
    } else if (is(a[0], "contains")) {
        *status = get(world, a);
        say(answer, kingtide_value_is_present(world->value) ? "true" : "false");
    } else if (is(a[0], "multi_get")) {
        *status = multi_get(world, a, count, answer);
    } else if (is(a[0], "length") || is(a[0], "read_at")) {
        *status = stream(world, a, answer);
    } else {
        return iterates(world, a, count, answer, status);
    }
    return true;
}

static kingtide_status begin(struct world *world, struct text *a, size_t count) {
    static const char *const levels[] = {"", "read-uncommitted", "read-committed", "repeatable-read", "snapshot", "serializable"};
    kingtide_txn_options options = {.size = sizeof options};
    for (int level = 1; level < 6; level++) {
        options.isolation = is(a[2], levels[level]) ? level : options.isolation;
    }
    for (size_t i = 3; i < count; i++) {
        options.locking |= is(a[i], "locking");
        options.read_only |= is(a[i], "read_only");
        options.lock_timeout_ms = is(a[i], "no_wait") ? KINGTIDE_NO_WAIT : options.lock_timeout_ms;
    }
    kingtide_txn *txn = NULL;
    kingtide_status status = kingtide_txn_begin(world->db, &options, &txn, NULL);
    if (txn) {
        bind(world, TRANSACTION, a[1].data, txn);
    }
    return status;
}

static kingtide_status say_prepared(struct world *world, struct words *answer) {
    kingtide_prepared_list *list = NULL;
    kingtide_status status = kingtide_db_prepared(world->db, &list, NULL);
    say(answer, "names");
    kingtide_prepared_info info = {.size = sizeof info};
    for (size_t i = 0; kingtide_prepared_list_get(list, i, &info); i++) {
        say_bytes(answer, info.xid, info.xid_len);
    }
    kingtide_prepared_list_free(list);
    return status;
}

static bool coordinates(STEP) {
    if (is(a[0], "begin")) {
        *status = begin(world, a, count);
    } else if (is(a[0], "free_transaction")) {
        unbind(world, TRANSACTION, a[1].data);
    } else if (is(a[0], "commit_prepared")) {
        *status = kingtide_db_commit_prepared(world->db, BYTES(a[1]), NULL, NULL);
    } else if (is(a[0], "rollback_prepared")) {
        *status = kingtide_db_rollback_prepared(world->db, BYTES(a[1]), NULL);
    } else if (is(a[0], "prepared")) {
        *status = say_prepared(world, answer);
    } else {
        return false;
    }
    return true;
}

static bool transactions(STEP) {
    if (coordinates(world, a, count, answer, status)) {
        return true;
    }
    kingtide_txn *txn = count > 1 ? find(world, TRANSACTION, a[1].data) : NULL;
    if (!txn) {
        return false;
    }
    if (is(a[0], "commit")) {
        *status = kingtide_txn_commit(txn, NULL, NULL);
    } else if (is(a[0], "rollback")) {
        *status = kingtide_txn_rollback(txn, NULL);
    } else if (is(a[0], "reset")) {
        *status = kingtide_txn_reset(txn, NULL);
    } else if (is(a[0], "savepoint")) {
        *status = kingtide_txn_set_savepoint(txn, a[2].data, NULL);
    } else if (is(a[0], "rollback_to")) {
        *status = kingtide_txn_rollback_to_savepoint(txn, a[2].data, NULL);
    } else if (is(a[0], "release")) {
        *status = kingtide_txn_release_savepoint(txn, a[2].data, NULL);
    } else if (is(a[0], "refresh")) {
        *status = kingtide_txn_refresh_snapshot(txn, NULL);
    } else if (is(a[0], "prepare")) {
        *status = kingtide_txn_prepare(txn, BYTES(a[2]), NULL);
    } else if (is(a[0], "get_for_update") || is(a[0], "get_for_share")) {
        kingtide_family *family = need(world, FAMILY, a[2]);
        *status = is(a[0], "get_for_update") ? kingtide_txn_get_for_update(txn, family, BYTES(a[3]), world->value, NULL)
                                             : kingtide_txn_get_for_share(txn, family, BYTES(a[3]), world->value, NULL);
        say_value(answer, world->value);
    } else if (is(a[0], "lock")) {
        int32_t mode = is(a[4], "shared") ? KINGTIDE_LOCK_SHARED : KINGTIDE_LOCK_EXCLUSIVE;
        *status = kingtide_txn_lock(txn, need(world, FAMILY, a[2]), BYTES(a[3]), mode, NULL);
    } else {
        return false;
    }
    return true;
}

void perform(struct world *world, const struct words *step, struct words *answer) {
    kingtide_status status = KINGTIDE_OK;
    struct text *a = step->all;
    size_t count = step->count;
    if (!families(world, a, count, answer, &status) && !snapshots(world, a, count, answer, &status) &&
        !writes(world, a, count, answer, &status) && !reads(world, a, count, answer, &status) &&
        !transactions(world, a, count, answer, &status)) {
        broken("no such operation", a[0].data);
    }
    finish(status, answer);
}
