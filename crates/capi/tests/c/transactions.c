// Transactions: what they see, locks, deadlocks, interrupts, two-phase commit.

#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

static kingtide_txn *begin(kingtide_db *db, int isolation, int locking) {
    kingtide_txn_options options = {.size = sizeof options, .isolation = isolation, .locking = locking};
    kingtide_txn *txn = NULL;
    OK(kingtide_txn_begin(db, &options, &txn, &err));
    return txn;
}

static void writes_and_reads(kingtide_db *db, const kingtide_family *family) {
    kingtide_value *value = kingtide_value_new();
    kingtide_txn *txn = NULL;
    OK(kingtide_txn_begin(db, NULL, &txn, &err));
    CHECK(kingtide_txn_id(txn) > 0 && kingtide_txn_snapshot_sequence(txn) == kingtide_db_latest_sequence(db));
    OK(kingtide_txn_put(txn, family, S("a"), S("1"), &err));
    OK(kingtide_txn_put_ttl(txn, family, S("b"), S("2"), 3600000, &err));
    OK(kingtide_txn_put(txn, family, S("c"), S("3"), &err));
    OK(kingtide_txn_put(txn, family, S("d"), S("4"), &err));
    OK(kingtide_txn_put(txn, family, S("p/1"), S("5"), &err));
    OK(kingtide_txn_put_until(txn, family, S("r1"), S("6"), 4102444800000, &err));
    OK(kingtide_txn_delete(txn, family, S("c"), &err));
    OK(kingtide_txn_single_delete(txn, family, S("d"), &err));
    OK(kingtide_txn_delete_prefix(txn, family, S("p/"), &err));
    OK(kingtide_txn_delete_range(txn, family, S("r"), S("s"), &err));
    CHECK(kingtide_txn_count(txn) == 10);
    OK(kingtide_txn_get(txn, family, S("a"), value, &err));
    CHECK(holds(value, "1") && reads(family, "a", NULL));
    OK(kingtide_txn_get_for_update(txn, family, S("b"), value, &err));
    CHECK(holds(value, "2"));
    OK(kingtide_txn_get_for_share(txn, family, S("c"), value, &err));
    CHECK(!kingtide_value_is_present(value));
    kingtide_value *pair[2] = {value, kingtide_value_new()};
    kingtide_slice keys[2] = {{S("a")}, {S("r1")}};
    OK(kingtide_txn_multi_get(txn, family, keys, 2, pair, NULL, &err));
    CHECK(holds(pair[0], "1") && !kingtide_value_is_present(pair[1]));
    kingtide_value_free(pair[1]);

    kingtide_iter *iter = NULL;
    OK(kingtide_txn_iter(txn, family, NULL, &iter, &err));
    CHECK(kingtide_iter_seek_to_first(iter) && is_at(iter, "a", "1"));
    CHECK(kingtide_iter_next(iter) && is_at(iter, "b", "2") && kingtide_iter_expires_at_ms(iter) > 0);
    CHECK(!kingtide_iter_next(iter) && kingtide_iter_expires_at_ms(iter) == 0);
    CHECK(kingtide_iter_seek_for_prev(iter, S("zz")) && is_at(iter, "b", "2"));
    CHECK(kingtide_iter_seek_to_last(iter) && kingtide_iter_prev(iter) && is_at(iter, "a", "1"));
    CHECK(kingtide_iter_expires_at_ms(iter) == 0);
    kingtide_entry entries[4];
    CHECK(kingtide_iter_walk(iter, true, entries, 4, 1000) == 1 && entries[0].key[0] == 'b' && entries[0].value[0] == '2');
    CHECK(entries[0].expires_at_ms > 0 && kingtide_iter_valid(iter) && kingtide_iter_walk(iter, true, entries, 4, 1000) == 0);
    CHECK(!kingtide_iter_valid(iter) && kingtide_iter_seek_to_first(iter));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_iter_refresh(iter, family, &err));

    OK(kingtide_txn_set_savepoint(txn, "s", &err));
    OK(kingtide_txn_put(txn, family, S("e"), S("5"), &err));
    OK(kingtide_txn_rollback_to_savepoint(txn, "s", &err));
    OK(kingtide_txn_release_savepoint(txn, "s", &err));
    FAILS(KINGTIDE_NOT_FOUND, kingtide_txn_release_savepoint(txn, "s", &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_txn_lock_range(txn, family, NULL, NULL, KINGTIDE_LOCK_SHARED, &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_txn_set_durability(txn, 9, &err));
    OK(kingtide_txn_set_durability(txn, KINGTIDE_DURABILITY_POWER, &err));
    uint64_t sequence = 0;
    OK(kingtide_txn_commit(txn, &sequence, &err));
    CHECK(sequence == kingtide_db_latest_sequence(db));
    CHECK(reads(family, "a", "1") && reads(family, "b", "2") && reads(family, "c", NULL) && reads(family, "e", NULL));
    FAILS(KINGTIDE_FINISHED, kingtide_txn_put(txn, family, S("z"), S("z"), &err));
    CHECK(kingtide_iter_walk(iter, true, entries, 4, 1000) == 0);
    CHECK(!kingtide_iter_seek_to_first(iter));
    FAILS(KINGTIDE_FINISHED, kingtide_iter_status(iter, &err));
    OK(kingtide_txn_reset(txn, &err));
    OK(kingtide_txn_put(txn, family, S("z"), S("z"), &err));
    OK(kingtide_txn_rollback(txn, &err));
    kingtide_txn_free(txn);
    kingtide_iter_free(iter);
    CHECK(reads(family, "z", NULL));
    kingtide_value_free(value);
}

static void levels(kingtide_db *db, const kingtide_family *family) {
    kingtide_value *value = kingtide_value_new();
    OK(kingtide_family_put(family, S("level"), S("old"), &err));
    kingtide_txn *rr = begin(db, KINGTIDE_REPEATABLE_READ, 1), *rc = begin(db, KINGTIDE_READ_COMMITTED, 0);
    kingtide_txn *first = begin(db, KINGTIDE_SNAPSHOT, 0), *second = begin(db, KINGTIDE_SERIALIZABLE, 0);
    OK(kingtide_txn_refresh_snapshot(rr, &err)); // taken now, not with the first read
    OK(kingtide_txn_get(second, family, S("level"), value, &err));
    OK(kingtide_family_put(family, S("level"), S("new"), &err));
    OK(kingtide_txn_get(rr, family, S("level"), value, &err));
    CHECK(holds(value, "old"));
    OK(kingtide_txn_get(rc, family, S("level"), value, &err));
    CHECK(holds(value, "new"));
    kingtide_read_options newest = {.size = sizeof newest, .newest = 1};
    kingtide_iter *iter = NULL;
    OK(kingtide_txn_iter(rr, family, &newest, &iter, &err));
    CHECK(kingtide_iter_seek(iter, S("level")) && is_at(iter, "level", "new"));
    kingtide_iter_free(iter);
    bool changed = false;
    OK(kingtide_txn_changed_since_snapshot(rr, family, S("level"), &changed, &err));
    CHECK(changed);
    OK(kingtide_txn_changed_since_snapshot(rc, family, S("level"), &changed, &err));
    CHECK(!changed);
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_txn_changed_since_snapshot(rr, family, S("level"), NULL, &err));
    OK(kingtide_txn_refresh_snapshot(rr, &err)); // the next statement's view
    changed = true;
    OK(kingtide_txn_changed_since_snapshot(rr, family, S("level"), &changed, &err));
    CHECK(!changed);
    OK(kingtide_txn_get(rr, family, S("level"), value, &err));
    CHECK(holds(value, "new"));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_txn_refresh_snapshot(first, &err));
    bool found = false;
    kingtide_reader *reader = NULL;
    OK(kingtide_txn_contains(rr, family, S("level"), &found, &err));
    CHECK(found);
    OK(kingtide_txn_contains_for_share(rr, family, S("absent"), &found, &err));
    CHECK(!found);
    OK(kingtide_txn_contains_for_update(rr, family, S("level"), &found, &err));
    CHECK(found);
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_txn_contains_for_update(rr, family, S("level"), NULL, &err));
    OK(kingtide_txn_get_reader_for_update(rr, family, S("absent"), &reader, &err));
    CHECK(!reader);
    OK(kingtide_txn_get_reader_for_share(rr, family, S("level"), &reader, &err));
    CHECK(kingtide_reader_len(reader) == 3);
    kingtide_reader_free(reader);
    OK(kingtide_txn_rollback(rr, &err)); // `first` and `second` write the key

    OK(kingtide_txn_put(first, family, S("level"), S("lost"), &err));
    kingtide_error *err = NULL;
    CHECK(kingtide_txn_commit(first, NULL, &err) == KINGTIDE_CONFLICT);
    CHECK(kingtide_error_is_transient_conflict(err) && !kingtide_error_is_retryable(err));
    kingtide_error_free(err);
    OK(kingtide_txn_put(second, family, S("other"), S("lost"), &err));
    FAILS(KINGTIDE_CONFLICT, kingtide_txn_commit(second, NULL, &err));
    kingtide_txn_free(rr);
    kingtide_txn_free(rc);
    kingtide_txn_free(first);
    kingtide_txn_free(second);

    kingtide_snapshot *snapshot = NULL;
    OK(kingtide_db_snapshot(db, &snapshot, &err));
    OK(kingtide_family_put(family, S("level"), S("newest"), &err));
    kingtide_txn_options options = {.size = sizeof options, .snapshot = snapshot, .read_only = 1, .timeout_ms = 3600000};
    kingtide_txn *past = NULL;
    OK(kingtide_txn_begin(db, &options, &past, &err));
    kingtide_snapshot_free(snapshot);
    OK(kingtide_txn_get(past, family, S("level"), value, &err));
    CHECK(holds(value, "new"));
    FAILS(KINGTIDE_READ_ONLY, kingtide_txn_put(past, family, S("a"), S("b"), &err));
    kingtide_txn_free(past);
    const int32_t no_levels[] = {17, 6, -1, INT32_MIN, INT32_MAX};
    for (int i = 0; i < 5; i++) {
        options = (kingtide_txn_options){.size = sizeof options, .isolation = no_levels[i]};
        FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_txn_begin(db, &options, &past, &err));
    }
    options = (kingtide_txn_options){.size = sizeof options, .lock_timeout_ms = -2};
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_txn_begin(db, &options, &past, &err));
    options = (kingtide_txn_options){.size = sizeof options, .reserved = 1};
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_txn_begin(db, &options, &past, &err));
    kingtide_value_free(value);
}

static void tickets(kingtide_db *db, const kingtide_family *family) {
    kingtide_txn_options options = {.size = sizeof options, .durability = KINGTIDE_DURABILITY_POWER};
    kingtide_txn *a = NULL, *b = NULL;
    kingtide_ticket *one = NULL, *two = NULL;
    OK(kingtide_txn_begin(db, &options, &a, &err));
    OK(kingtide_txn_begin(db, &options, &b, &err));
    OK(kingtide_txn_put(a, family, S("t1"), S("1"), &err));
    OK(kingtide_txn_put(b, family, S("t2"), S("2"), &err));
    OK(kingtide_txn_commit_ordered(b, &two, &err));
    OK(kingtide_txn_commit_ordered(a, &one, &err));
    CHECK(kingtide_ticket_sequence(two) < kingtide_ticket_sequence(one));
    CHECK(reads(family, "t1", "1") && reads(family, "t2", "2"));
    OK(kingtide_ticket_wait(one, &err));
    OK(kingtide_ticket_wait(two, &err));
    FAILS(KINGTIDE_FINISHED, kingtide_ticket_wait(two, &err));
    kingtide_ticket_free(one);
    kingtide_ticket_free(two);
    kingtide_txn_free(a);
    kingtide_txn_free(b);
}

// Two threads add to one counter, each in transactions that are run again after conflicts.
struct adder {
    kingtide_db *db;
    const kingtide_family *family;
    int locking;
};

static void *add(void *argument) {
    struct adder *adder = argument;
    kingtide_txn *txn = begin(adder->db, KINGTIDE_SNAPSHOT, adder->locking);
    kingtide_value *value = kingtide_value_new();
    for (int done = 0; done < 200;) {
        kingtide_error *err = NULL;
        kingtide_status status = kingtide_txn_get_for_update(txn, adder->family, S("counter"), value, &err);
        if (status == KINGTIDE_OK) {
            char text[16] = {0};
            memcpy(text, kingtide_value_data(value), kingtide_value_len(value));
            snprintf(text, sizeof text, "%d", atoi(text) + 1);
            status = kingtide_txn_put(txn, adder->family, S("counter"), S(text), &err);
        }
        if (status == KINGTIDE_OK) status = kingtide_txn_commit(txn, NULL, &err);
        CHECK(status == KINGTIDE_OK || kingtide_error_is_transient_conflict(err));
        kingtide_error_free(err);
        done += status == KINGTIDE_OK;
        OK(kingtide_txn_reset(txn, &err));
    }
    kingtide_value_free(value);
    kingtide_txn_free(txn);
    return NULL;
}

void test_transactions(void) {
    kingtide_db *db = open_new("transactions");
    kingtide_family *family = NULL;
    OK(kingtide_db_default_family(db, &family, &err));
    writes_and_reads(db, family);
    levels(db, family);
    tickets(db, family);
    OK(kingtide_family_put(family, S("counter"), S("0"), &err));
    for (int locking = 0; locking < 2; locking++) {
        pthread_t threads[2];
        struct adder adder = {db, family, locking};
        for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, add, &adder) == 0);
        for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(reads(family, "counter", "800"));

    // One that is left behind answers when the database is gone, and can still be freed.
    kingtide_txn *left = begin(db, KINGTIDE_SNAPSHOT, 1);
    OK(kingtide_txn_put(left, family, S("left"), S("behind"), &err));
    OK(kingtide_db_close(db, &err));
    kingtide_db_free(db);
    FAILS(KINGTIDE_CLOSED, kingtide_txn_commit(left, NULL, &err));
    FAILS(KINGTIDE_CLOSED, kingtide_family_put(family, S("a"), S("b"), &err));
    kingtide_txn_free(left);
    kingtide_family_free(family);
}

struct waiter {
    kingtide_txn *txn;
    const kingtide_family *family;
    kingtide_status status;
};

static void *wait_for_key(void *argument) {
    struct waiter *waiter = argument;
    kingtide_error *err = NULL;
    waiter->status = kingtide_txn_put(waiter->txn, waiter->family, S("k"), S("waiter"), &err);
    kingtide_error_free(err);
    return NULL;
}

// Waits until a transaction waits for a lock, and checks what is said of it.
static void see_wait(kingtide_db *db, uint64_t waiter, uint64_t holder) {
    for (;;) {
        kingtide_lock_wait_list *waits = NULL;
        OK(kingtide_db_lock_waits(db, &waits, &err));
        size_t count = kingtide_lock_wait_list_count(waits);
        kingtide_lock_wait_info info = {.size = sizeof info};
        CHECK(!kingtide_lock_wait_list_get(waits, count, &info));
        if (count == 1) {
            CHECK(kingtide_lock_wait_list_get(waits, 0, &info));
            CHECK(info.waiter == waiter && info.mode == KINGTIDE_LOCK_EXCLUSIVE && !info.is_range);
            CHECK(info.holder_count == 1 && info.holders[0] == holder);
            CHECK(info.lower.kind == KINGTIDE_INCLUDED && info.lower.key_len == 1 && *(const char *)info.lower.key == 'k');
        }
        kingtide_lock_wait_list_free(waits);
        if (count == 1) return;
    }
}

// What the hook was told last. The waiting thread writes it; it is read when that thread was joined.
struct told {
    _Atomic int times; // raised last
    int destroyed;
    uint64_t waiter, holder;
};

static void hear_of_wait(void *context, uint64_t waiter, const uint64_t *holders, size_t holder_count) {
    struct told *told = context;
    told->waiter = waiter;
    told->holder = holder_count == 1 ? holders[0] : 0;
    told->times++;
}

static void no_more_told(void *context) { ((struct told *)context)->destroyed++; }

// A deadlock as the hook was told of it. The victim's thread writes it, which is the one that reads it.
struct deadlock_told {
    int times, destroyed;
    size_t count;
    uint64_t waiter[2], holder[2];
    int32_t mode[2];
    char wanted[2], held[2];
};

static void hear_of_deadlock(void *context, const kingtide_deadlock *deadlock) {
    struct deadlock_told *told = context;
    told->times++;
    told->count = kingtide_deadlock_count(deadlock);
    kingtide_lock_info info = {.size = sizeof info};
    for (size_t i = 0; i < 2 && kingtide_deadlock_wanted(deadlock, i, &info); i++) {
        told->waiter[i] = info.txn;
        told->wanted[i] = *(const char *)info.lower.key;
        if (!kingtide_deadlock_held(deadlock, i, &info)) continue;
        told->holder[i] = info.txn;
        told->held[i] = *(const char *)info.lower.key;
        told->mode[i] = info.mode;
    }
}

static void no_deadlock_told(void *context) { ((struct deadlock_told *)context)->destroyed++; }

// Two transactions that wait for each other: the hook names both, the victim first.
static void deadlock(kingtide_db *db, const kingtide_family *family) {
    kingtide_txn *other = begin(db, KINGTIDE_REPEATABLE_READ, 1), *victim = begin(db, KINGTIDE_REPEATABLE_READ, 1);
    struct deadlock_told told = {0};
    kingtide_lock_hooks hooks = {0};
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_db_set_lock_hooks(db, &hooks, &err));
    hooks = (kingtide_lock_hooks){sizeof hooks, &told, NULL, hear_of_deadlock, no_deadlock_told};
    OK(kingtide_db_set_lock_hooks(db, &hooks, &err));
    const pid_t child = fork();
    if (child == 0) {
        uint64_t quantile = 7;
        if (kingtide_db_set_lock_hooks(db, &hooks, NULL) != KINGTIDE_CLOSED || told.destroyed != 0) _exit(1);
        if (kingtide_db_histogram_quantile(db, "write", 0.5, &quantile, NULL) != KINGTIDE_CLOSED || quantile != 7) _exit(2);
        _exit(0);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    OK(kingtide_txn_set_lock_timeout(other, 3600000, &err));
    OK(kingtide_txn_set_lock_timeout(victim, 3600000, &err));
    OK(kingtide_txn_put(other, family, S("x"), S("1"), &err));
    OK(kingtide_txn_put(other, family, S("y"), S("1"), &err));
    OK(kingtide_txn_put(victim, family, S("k"), S("2"), &err));
    struct waiter waiter = {other, family, KINGTIDE_OK};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_for_key, &waiter) == 0);
    see_wait(db, kingtide_txn_id(other), kingtide_txn_id(victim));
    const uint64_t victims_id = kingtide_txn_id(victim);
    FAILS(KINGTIDE_DEADLOCK, kingtide_txn_put(victim, family, S("x"), S("2"), &err));
    CHECK(pthread_join(thread, NULL) == 0 && waiter.status == KINGTIDE_OK);
    CHECK(told.times == 1 && told.count == 2);
    CHECK(told.waiter[0] == victims_id && told.holder[0] == kingtide_txn_id(other));
    CHECK(told.waiter[1] == kingtide_txn_id(other) && told.holder[1] == victims_id);
    CHECK(told.wanted[0] == 'x' && told.held[0] == 'x' && told.wanted[1] == 'k' && told.held[1] == 'k');
    CHECK(told.mode[0] == KINGTIDE_LOCK_EXCLUSIVE);
    OK(kingtide_db_set_lock_hooks(db, NULL, &err));
    CHECK(told.destroyed == 1);
    OK(kingtide_txn_rollback(other, &err));
    kingtide_txn_free(other);
    kingtide_txn_free(victim);
}

static void waits(kingtide_db *db, const kingtide_family *family) {
    kingtide_txn *holder = begin(db, KINGTIDE_REPEATABLE_READ, 1), *txn = begin(db, KINGTIDE_REPEATABLE_READ, 1);
    struct told told = {0};
    OK(kingtide_db_set_lock_wait_hook(db, hear_of_wait, &told, no_more_told, &err));
    OK(kingtide_txn_set_lock_timeout(txn, 3600000, &err));
    kingtide_txn_handle *handle = NULL;
    OK(kingtide_txn_get_handle(txn, &handle, &err));
    CHECK(kingtide_txn_handle_id(handle) == kingtide_txn_id(txn));
    OK(kingtide_txn_put(holder, family, S("k"), S("holder"), &err));

    struct waiter waiter = {txn, family, KINGTIDE_OK};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_for_key, &waiter) == 0);
    see_wait(db, kingtide_txn_id(txn), kingtide_txn_id(holder));
    while (told.times == 0) sched_yield(); // a wait is listed before the hook hears of it, and one that is interrupted first never is told
    OK(kingtide_txn_handle_interrupt(handle, &err));
    CHECK(pthread_join(thread, NULL) == 0 && waiter.status == KINGTIDE_CANCELLED);
    CHECK(told.times > 0 && told.waiter == kingtide_txn_id(txn) && told.holder == kingtide_txn_id(holder));
    OK(kingtide_db_set_lock_wait_hook(db, NULL, NULL, NULL, &err));
    CHECK(told.destroyed == 1);
    OK(kingtide_txn_put(txn, family, S("mine"), S("goes on"), &err));
    // One that meets no wait ends the next, unless it is forgotten.
    OK(kingtide_txn_handle_interrupt(handle, &err));
    wait_for_key(&waiter);
    CHECK(waiter.status == KINGTIDE_CANCELLED);
    OK(kingtide_txn_handle_interrupt(handle, &err));
    kingtide_txn_clear_interrupt(txn);
    OK(kingtide_txn_set_lock_timeout(txn, 1, &err));
    FAILS(KINGTIDE_LOCK_TIMEOUT, kingtide_txn_put(txn, family, S("k"), S("waiter"), &err));
    OK(kingtide_txn_set_lock_timeout(txn, KINGTIDE_NO_WAIT, &err));
    FAILS(KINGTIDE_LOCK_HELD, kingtide_txn_put(txn, family, S("k"), S("waiter"), &err));
    kingtide_value *value = kingtide_value_new();
    FAILS(KINGTIDE_LOCK_HELD, kingtide_txn_get_for_share(txn, family, S("k"), value, &err));
    kingtide_value_free(value);
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_txn_set_lock_timeout(txn, -2, &err));

    OK(kingtide_txn_set_lock_timeout(txn, 3600000, &err));
    CHECK(pthread_create(&thread, NULL, wait_for_key, &waiter) == 0);
    see_wait(db, kingtide_txn_id(txn), kingtide_txn_id(holder));
    OK(kingtide_txn_handle_abort(handle, &err));
    CHECK(pthread_join(thread, NULL) == 0 && waiter.status == KINGTIDE_ABORTED);
    FAILS(KINGTIDE_NOT_FOUND, kingtide_txn_handle_abort(handle, &err));
    FAILS(KINGTIDE_NOT_FOUND, kingtide_txn_handle_interrupt(handle, &err));
    kingtide_txn_handle_free(handle);

    // The holder waits for the one that waits for it: one of them is told, and the other goes on.
    OK(kingtide_txn_reset(txn, &err));
    OK(kingtide_txn_put(txn, family, S("mine"), S("2"), &err));
    CHECK(pthread_create(&thread, NULL, wait_for_key, &waiter) == 0);
    see_wait(db, kingtide_txn_id(txn), kingtide_txn_id(holder));
    kingtide_error *err = NULL;
    kingtide_status status = kingtide_txn_put(holder, family, S("mine"), S("x"), &err);
    kingtide_error_free(err);
    if (status == KINGTIDE_OK) OK(kingtide_txn_commit(holder, NULL, &err));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK((status == KINGTIDE_DEADLOCK) != (waiter.status == KINGTIDE_DEADLOCK));
    kingtide_txn_free(holder);
    kingtide_txn_free(txn);
}

// Values that are written in pieces, in prepared transactions, through a close.
static void prepared_in_pieces(void) {
    enum { PIECES = 40, PIECE = 50000 };
    static char piece[PIECE];
    kingtide_db *db = open_new("prepared_in_pieces");
    kingtide_family *family = NULL;
    OK(kingtide_db_default_family(db, &family, &err));
    const char *names[] = {"keep", "drop"};
    for (int i = 0; i < 2; i++) {
        kingtide_value_writer *writer = NULL;
        kingtide_staged_value *value = NULL;
        OK(kingtide_family_value_writer(family, &writer, &err));
        for (int n = 0; n < PIECES; n++) {
            memset(piece, 'A' + n, PIECE);
            OK(kingtide_value_writer_write(writer, piece, PIECE, &err));
        }
        OK(kingtide_value_writer_finish(writer, &value, &err));
        kingtide_value_writer_free(writer);
        kingtide_txn *txn = begin(db, KINGTIDE_SNAPSHOT, i);
        OK(kingtide_txn_put_staged(txn, family, S(names[i]), value, 0, &err));
        OK(kingtide_txn_prepare(txn, S(names[i]), &err));
        kingtide_txn_free(txn);
        FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_family_put_staged(family, S("again"), value, &err));
        kingtide_staged_value_free(value);
    }
    kingtide_family_free(family);
    OK(kingtide_db_close(db, &err));
    kingtide_db_free(db);

    OK(kingtide_db_open(below("prepared_in_pieces"), NULL, &db, &err));
    OK(kingtide_db_default_family(db, &family, &err));
    CHECK(reads(family, "keep", NULL));
    OK(kingtide_db_commit_prepared(db, S("keep"), NULL, &err));
    OK(kingtide_db_rollback_prepared(db, S("drop"), &err));
    kingtide_reader *reader = NULL;
    char end[4];
    size_t got = 0;
    OK(kingtide_family_get_reader(family, NULL, S("keep"), &reader, &err));
    CHECK(kingtide_reader_len(reader) == (uint64_t)PIECES * PIECE);
    OK(kingtide_reader_read(reader, (uint64_t)PIECES * PIECE - 3, end, 4, &got, &err));
    CHECK(got == 3 && end[0] == 'A' + PIECES - 1);
    kingtide_reader_free(reader);
    CHECK(reads(family, "drop", NULL));
    kingtide_family_free(family);
    kingtide_db_free(db);
}

// What statements with SKIP LOCKED do, and those that give back what they do not want.
static void rows(kingtide_db *db, const kingtide_family *family) {
    kingtide_txn *one = begin(db, KINGTIDE_REPEATABLE_READ, 1), *two = begin(db, KINGTIDE_REPEATABLE_READ, 1);
    OK(kingtide_family_put(family, S("r1"), S("1"), &err));
    OK(kingtide_family_put(family, S("r2"), S("2"), &err));
    OK(kingtide_txn_lock(one, family, S("r1"), KINGTIDE_LOCK_EXCLUSIVE, &err));
    OK(kingtide_txn_set_lock_timeout(two, KINGTIDE_NO_WAIT, &err));
    kingtide_value *values[2] = {kingtide_value_new(), kingtide_value_new()};
    kingtide_slice keys[2] = {{S("r1")}, {S("r2")}};
    int32_t statuses[2] = {9, 9};
    FAILS(KINGTIDE_LOCK_HELD, kingtide_txn_multi_get_for_update(two, family, keys, 2, values, statuses, &err));
    CHECK(statuses[0] == KINGTIDE_LOCK_HELD && statuses[1] == KINGTIDE_OK);
    CHECK(!kingtide_value_is_present(values[0]) && holds(values[1], "2"));
    bool released = false;
    OK(kingtide_txn_unlock_last(one, &released, &err));
    CHECK(released);
    OK(kingtide_txn_multi_get_for_share(two, family, keys, 2, values, statuses, &err));
    CHECK(statuses[0] == KINGTIDE_OK && holds(values[0], "1"));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_txn_lock(one, family, S("r1"), 3, &err));
    for (int i = 0; i < 2; i++) kingtide_value_free(values[i]);
    kingtide_txn_free(one);
    kingtide_txn_free(two);
}

void test_locks(void) {
    kingtide_db *db = open_new("locks");
    kingtide_family *family = NULL;
    OK(kingtide_db_default_family(db, &family, &err));
    kingtide_txn *txn = begin(db, KINGTIDE_SERIALIZABLE, 1);
    kingtide_bound lower = {KINGTIDE_INCLUDED, S("a")}, upper = {KINGTIDE_EXCLUDED, S("m")};
    OK(kingtide_txn_lock_range(txn, family, &lower, &upper, KINGTIDE_LOCK_SHARED, &err));
    FAILS(KINGTIDE_INVALID_ARGUMENT, kingtide_txn_lock_range(txn, family, &lower, &upper, 0, &err));
    OK(kingtide_txn_put(txn, family, S("z"), S("1"), &err));

    kingtide_lock_list *locks = NULL;
    OK(kingtide_db_locks(db, &locks, &err));
    size_t ranges = 0, count = kingtide_lock_list_count(locks);
    CHECK(count == 2);
    for (size_t i = 0; i < count; i++) {
        kingtide_lock_info info = {.size = sizeof info};
        CHECK(kingtide_lock_list_get(locks, i, &info) && info.txn == kingtide_txn_id(txn));
        CHECK(info.family == kingtide_family_id(family));
        CHECK(info.mode == (info.is_range ? KINGTIDE_LOCK_SHARED : KINGTIDE_LOCK_EXCLUSIVE));
        CHECK(!info.is_range || (info.upper.kind == KINGTIDE_EXCLUDED && *(const char *)info.upper.key == 'm'));
        ranges += info.is_range != 0;
    }
    kingtide_lock_info unsized_info = {0};
    CHECK(ranges == 1 && !kingtide_lock_list_get(locks, 0, &unsized_info));
    kingtide_lock_list_free(locks);

    kingtide_txn_list *list = NULL;
    kingtide_txn_info info = {.size = sizeof info};
    OK(kingtide_db_transactions(db, &list, &err));
    CHECK(kingtide_txn_list_count(list) == 1 && kingtide_txn_list_get(list, 0, &info));
    CHECK(info.id == kingtide_txn_id(txn) && info.isolation == KINGTIDE_SERIALIZABLE && info.locking && info.writes == 1);
    CHECK(info.xid == NULL && !kingtide_txn_list_get(list, 1, &info));
    kingtide_txn_list_free(list);
    OK(kingtide_db_abort_transaction(db, kingtide_txn_id(txn), &err));
    FAILS(KINGTIDE_NOT_FOUND, kingtide_db_abort_transaction(db, kingtide_txn_id(txn), &err));
    FAILS(KINGTIDE_ABORTED, kingtide_txn_put(txn, family, S("z"), S("1"), &err));
    kingtide_txn_free(txn);
    waits(db, family);
    deadlock(db, family);
    rows(db, family);
    kingtide_family_free(family);
    kingtide_db_free(db);
}

void test_two_phase(void) {
    kingtide_db *db = open_new("two_phase");
    kingtide_family *family = NULL;
    OK(kingtide_db_default_family(db, &family, &err));
    const char *names[] = {"keep", "drop", "own"};
    for (int i = 0; i < 3; i++) {
        kingtide_txn *txn = begin(db, KINGTIDE_REPEATABLE_READ, i % 2);
        OK(kingtide_txn_put(txn, family, S(names[i]), S("prepared"), &err));
        OK(kingtide_txn_prepare(txn, S(names[i]), &err));
        if (i == 2) OK(kingtide_txn_commit(txn, NULL, &err));
        kingtide_txn_free(txn);
    }
    CHECK(reads(family, "own", "prepared") && reads(family, "keep", NULL));
    kingtide_family_free(family);
    kingtide_db_free(db);

    OK(kingtide_db_open(below("two_phase"), NULL, &db, &err));
    OK(kingtide_db_default_family(db, &family, &err));
    kingtide_prepared_list *prepared = NULL;
    kingtide_prepared_info info = {.size = sizeof info};
    OK(kingtide_db_prepared(db, &prepared, &err));
    CHECK(kingtide_prepared_list_count(prepared) == 2 && kingtide_prepared_list_get(prepared, 0, &info));
    CHECK(info.xid_len == 4 && memcmp(info.xid, "keep", 4) == 0 && info.operations == 1 && info.sequence > 0);
    CHECK(info.isolation == KINGTIDE_REPEATABLE_READ && !kingtide_prepared_list_get(prepared, 2, &info));
    kingtide_prepared_list_free(prepared);
    uint64_t sequence = 0;
    OK(kingtide_db_commit_prepared(db, S("keep"), &sequence, &err));
    CHECK(sequence > 0);
    OK(kingtide_db_rollback_prepared(db, S("drop"), &err));
    FAILS(KINGTIDE_NOT_FOUND, kingtide_db_rollback_prepared(db, S("drop"), &err));
    FAILS(KINGTIDE_NOT_FOUND, kingtide_db_commit_prepared(db, S("drop"), NULL, &err));
    CHECK(reads(family, "keep", "prepared") && reads(family, "drop", NULL));
    kingtide_family_free(family);
    kingtide_db_free(db);
    prepared_in_pieces();
}
