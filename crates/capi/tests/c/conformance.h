// What the two parts of the conformance runner share: words of the table, and the world in which a case happens.

#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include "kingtide.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Bytes, with a NUL behind them.
struct text {
    char *data;
    size_t len;
};

// A step or an answer.
struct words {
    struct text *all;
    size_t count;
    size_t room;
};

// A case's directory, database and handles.
struct world;

// Memory, or the end of the program.
void *must(void *memory);

// Ends the program because of a line that no runner could run.
_Noreturn void broken(const char *what, const char *which);

// Adds a word.
void say(struct words *words, const char *text);
void say_bytes(struct words *words, const void *data, size_t len);

// Adds "=value", or "-" when `data` is NULL.
void say_optional(struct words *words, const void *data, size_t len);

// Removes all words.
void say_nothing(struct words *words);

// Whether a word is this one.
bool is(struct text text, const char *word);

// A world whose database will be in `path`.
struct world *world_new(const char *path);

// Frees all handles. NULL is allowed.
void world_free(struct world *world);

// Flushes all families if the database is open.
void world_flush(struct world *world);

// Does what a step says, and adds the answer.
void perform(struct world *world, const struct words *step, struct words *answer);

#endif
