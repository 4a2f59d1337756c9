// What the parts of the smoke test share: checks that say where they failed, and a directory for each part.

#ifndef CHECK_H
#define CHECK_H

#include "kingtide.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Ends the program unless `condition` holds.
#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

// Calls a function of the library, whose last argument is `&err`, and wants it to succeed.
#define OK(call)                                                                                             \
    do {                                                                                                     \
        kingtide_error *err = NULL;                                                                          \
        kingtide_status status_ = (call);                                                                    \
        if (status_ != KINGTIDE_OK) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, kingtide_status_name(status_), \
                    kingtide_error_message(err));                                                            \
            exit(1);                                                                                         \
        }                                                                                                    \
        CHECK(err == NULL);                                                                                  \
    } while (0)

// Calls a function and wants it to fail with a status and an error object of the same.
#define FAILS(expected, call)                                                                        \
    do {                                                                                             \
        kingtide_error *err = NULL;                                                                  \
        kingtide_status status_ = (call);                                                            \
        if (status_ != (expected)) {                                                                 \
            fprintf(stderr, "%s:%d: %s: %s instead of %s: %s\n", __FILE__, __LINE__, #call,          \
                    kingtide_status_name(status_), kingtide_status_name(expected),                   \
                    kingtide_error_message(err));                                                    \
            exit(1);                                                                                 \
        }                                                                                            \
        CHECK(err != NULL && kingtide_error_status(err) == (expected));                              \
        CHECK(strlen(kingtide_error_message(err)) > 0);                                              \
        kingtide_error_free(err);                                                                    \
    } while (0)

// A string as the library takes keys and values.
#define S(text) (text), strlen(text)

// A path below the test's directory.
const char *below(const char *name);

// Opens a new database below the test's directory, small enough to flush and merge.
kingtide_db *open_new(const char *name);

// Whether the place holds this text.
bool holds(const kingtide_value *value, const char *text);

// Whether the iterator's key and value are these.
bool is_at(kingtide_iter *iter, const char *key, const char *value);

// Reads a key of a family and compares; NULL for a key that is absent.
bool reads(const kingtide_family *family, const char *key, const char *expected);

void test_tables(void);
void test_data(void);
void test_iterators(void);
void test_families(void);
void test_transactions(void);
void test_locks(void);
void test_two_phase(void);
void test_changes(void);
void test_copies(void);
void test_verify(void);
void test_stats(void);
void test_observe(void);
void test_errors(void);
void test_null(void);

#endif
