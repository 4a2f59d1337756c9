// A bank: threads move money between accounts, each move in a transaction that is run again when another one was first. In the
// end nothing was lost or made.
//
//     cc bank.c $(pkg-config --cflags --libs kingtide) -o bank && ./bank bank.db

#include <kingtide.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ACCOUNTS = 100, THREADS = 4, MOVES = 250, START = 1000 };

static void check(kingtide_status status, kingtide_error *err) {
    if (status == KINGTIDE_OK) return;
    fprintf(stderr, "%s: %s\n", kingtide_status_name(status), kingtide_error_message(err));
    exit(1);
}

static void name_of(int account, char name[16]) { snprintf(name, 16, "account%03d", account); }

static long amount(const kingtide_value *value) {
    char text[32] = {0};
    size_t len = kingtide_value_len(value);
    memcpy(text, kingtide_value_data(value), len < sizeof text ? len : sizeof text - 1);
    return atol(text);
}

// Moves money in a transaction; the caller commits it.
static kingtide_status move(kingtide_txn *txn, const kingtide_family *accounts, kingtide_value *value, int from, int to,
                            long sum, kingtide_error **err) {
    int which[2] = {from, to};
    for (int i = 0; i < 2; i++) {
        char name[16], text[32];
        name_of(which[i], name);
        kingtide_status status = kingtide_txn_get_for_update(txn, accounts, name, strlen(name), value, err);
        if (status != KINGTIDE_OK) return status;
        snprintf(text, sizeof text, "%ld", amount(value) + (i == 0 ? -sum : sum));
        status = kingtide_txn_put(txn, accounts, name, strlen(name), text, strlen(text), err);
        if (status != KINGTIDE_OK) return status;
    }
    return KINGTIDE_OK;
}

struct clerk {
    kingtide_db *db;
    const kingtide_family *accounts;
    unsigned random;
    int conflicts;
};

static void *work(void *argument) {
    struct clerk *clerk = argument;
    // A transaction and a place for values are for one thread at a time, and made once.
    kingtide_txn_options options = {.size = sizeof options, .isolation = KINGTIDE_SERIALIZABLE, .locking = 1};
    kingtide_txn *txn = NULL;
    kingtide_error *err = NULL;
    kingtide_value *value = kingtide_value_new();
    check(kingtide_txn_begin(clerk->db, &options, &txn, &err), err);
    for (int done = 0; done < MOVES;) {
        clerk->random = clerk->random * 1103515245u + 12345u;
        int from = clerk->random / 65536 % ACCOUNTS, to = (from + 1 + clerk->random % 7) % ACCOUNTS;
        kingtide_status status = move(txn, clerk->accounts, value, from, to, 10, &err);
        if (status == KINGTIDE_OK) status = kingtide_txn_commit(txn, NULL, &err);
        if (status == KINGTIDE_OK) {
            done++;
        } else if (kingtide_error_is_transient_conflict(err)) {
            clerk->conflicts++; // another transaction was first, or we waited for one another: again
            kingtide_error_free(err);
            err = NULL;
        } else {
            check(status, err);
        }
        check(kingtide_txn_reset(txn, &err), err);
    }
    kingtide_value_free(value);
    kingtide_txn_free(txn);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: bank DIRECTORY\n");
        return 2;
    }
    kingtide_error *err = NULL;
    kingtide_options *options = kingtide_options_new();
    check(kingtide_options_set(options, "block_cache_size", "16M", &err), err);
    kingtide_db *db = NULL;
    check(kingtide_db_open(argv[1], options, &db, &err), err);
    kingtide_options_free(options);

    kingtide_family *accounts = NULL;
    check(kingtide_db_create_family(db, "accounts", NULL, NULL, &accounts, &err), err);
    kingtide_batch *batch = kingtide_batch_new();
    for (int i = 0; i < ACCOUNTS; i++) {
        char name[16], text[32];
        name_of(i, name);
        snprintf(text, sizeof text, "%d", START);
        check(kingtide_batch_put(batch, accounts, name, strlen(name), text, strlen(text), &err), err);
    }
    kingtide_write_options durable = {.size = sizeof durable, .durability = KINGTIDE_DURABILITY_POWER};
    check(kingtide_db_write(db, batch, &durable, NULL, &err), err);
    kingtide_batch_free(batch);

    pthread_t threads[THREADS];
    struct clerk clerks[THREADS];
    for (int i = 0; i < THREADS; i++) {
        clerks[i] = (struct clerk){.db = db, .accounts = accounts, .random = (unsigned)i + 1};
        if (pthread_create(&threads[i], NULL, work, &clerks[i]) != 0) return 1;
    }
    int conflicts = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        conflicts += clerks[i].conflicts;
    }

    long total = 0;
    kingtide_iter *iter = NULL;
    check(kingtide_family_iter(accounts, NULL, &iter, &err), err);
    for (bool at = kingtide_iter_seek_to_first(iter); at; at = kingtide_iter_next(iter)) {
        const uint8_t *data = NULL;
        size_t len = 0;
        char text[32] = {0};
        check(kingtide_iter_value(iter, &data, &len, &err), err);
        memcpy(text, data, len < sizeof text ? len : sizeof text - 1);
        total += atol(text);
    }
    check(kingtide_iter_status(iter, &err), err); // the loop may have ended because of an error
    kingtide_iter_free(iter);
    kingtide_family_free(accounts);
    check(kingtide_db_close(db, &err), err);
    kingtide_db_free(db);
    printf("%d moves, %d run again, %ld in all accounts\n", THREADS * MOVES, conflicts, total);
    return total == (long)ACCOUNTS * START ? 0 : 1;
}
