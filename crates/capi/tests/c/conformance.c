// Runs the conformance table through the C API. Arguments: an empty directory, "plain" or "flushed", and the files of the table.
// `conformance/README.md` says what each line means. Exits with 1 when an answer differs.

#include "conformance.h"

#include <ctype.h>
#include <stdarg.h>

void *must(void *memory) {
    if (!memory) {
        fprintf(stderr, "no memory\n");
        exit(2);
    }
    return memory;
}

_Noreturn void broken(const char *what, const char *which) {
    fprintf(stderr, "the table cannot be run: %s: %s\n", what, which);
    exit(2);
}

void say_bytes(struct words *words, const void *data, size_t len) {
    if (words->count == words->room) {
        words->room = words->room ? 2 * words->room : 8;
        words->all = must(realloc(words->all, words->room * sizeof *words->all));
    }
    char *copy = must(malloc(len + 1));
    if (len) {
        memcpy(copy, data, len);
    }
    copy[len] = 0;
    words->all[words->count++] = (struct text){copy, len};
}

void say(struct words *words, const char *text) {
    say_bytes(words, text, strlen(text));
}

void say_optional(struct words *words, const void *data, size_t len) {
    if (!data) {
        say(words, "-");
        return;
    }
    char *joined = must(malloc(len + 1));
    joined[0] = '=';
    memcpy(joined + 1, data, len);
    say_bytes(words, joined, len + 1);
    free(joined);
}

void say_nothing(struct words *words) {
    for (size_t i = 0; i < words->count; i++) {
        free(words->all[i].data);
    }
    words->count = 0;
}

bool is(struct text text, const char *word) {
    return text.len == strlen(word) && memcmp(text.data, word, text.len) == 0;
}

static bool same(const struct words *a, const struct words *b) {
    if (a->count != b->count) {
        return false;
    }
    for (size_t i = 0; i < a->count; i++) {
        if (a->all[i].len != b->all[i].len || memcmp(a->all[i].data, b->all[i].data, a->all[i].len) != 0) {
            return false;
        }
    }
    return true;
}

static void show(const struct words *words) {
    for (size_t i = 0; i < words->count; i++) {
        fputs(" \"", stderr);
        for (size_t j = 0; j < words->all[i].len; j++) {
            unsigned char c = (unsigned char)words->all[i].data[j];
            if (isprint(c)) {
                fputc(c, stderr);
            } else {
                fprintf(stderr, "\\x%02x", c);
            }
        }
        fputc('"', stderr);
    }
}

// Reads the JSON string at `*at`, and moves behind it. Characters up to U+00FF stand for bytes.
static void read_string(const char **at, struct words *into) {
    const char *from = *at + 1;
    char *bytes = must(malloc(strlen(from) + 1));
    size_t len = 0;
    for (; *from != '"'; from++) {
        unsigned code = (unsigned char)*from;
        if (code == 0 || code >= 0x80) {
            broken("a string with a raw byte that is not ASCII, or without an end", *at);
        }
        if (code == '\\') {
            from++;
            static const char names[] = "nrtbf\"\\/", stands_for[] = "\n\r\t\b\f\"\\/";
            const char *name = *from ? strchr(names, *from) : NULL;
            if (name) {
                code = (unsigned char)stands_for[name - names];
            } else if (*from == 'u' && sscanf(from + 1, "%4x", &code) == 1 && code < 0x100) {
                from += 4;
            } else {
                broken("an unknown escape", *at);
            }
        }
        bytes[len++] = (char)code;
    }
    say_bytes(into, bytes, len);
    free(bytes);
    *at = from + 1;
}

// Reads a line: what stands before and behind `=>`.
static void read_line(const char *line, struct words *step, struct words *answer) {
    struct words *into = step;
    for (const char *at = line; *at && *at != '\n'; ) {
        if (*at != '"') {
            at++;
            continue;
        }
        read_string(&at, into);
        if (into == step && is(step->all[step->count - 1], "=>")) {
            free(step->all[--step->count].data);
            into = answer;
        }
    }
}

// Runs a file of the table, a directory for each case.
static int run_file(const char *path, const char *directory, bool flushed, unsigned *steps) {
    FILE *file = fopen(path, "r");
    if (!file) {
        broken("cannot open", path);
    }
    static char line[1 << 16];
    struct words step = {0}, wanted = {0}, got = {0};
    struct world *world = NULL;
    char name[200] = "";
    int failures = 0;
    static unsigned cases;
    for (unsigned number = 1; fgets(line, sizeof line, file); number++) {
        say_nothing(&step);
        say_nothing(&wanted);
        say_nothing(&got);
        read_line(line, &step, &wanted);
        if (step.count == 2 && is(step.all[0], "case")) {
            char below[4096];
            snprintf(below, sizeof below, "%s/case-%u", directory, cases++);
            snprintf(name, sizeof name, "%s", step.all[1].data);
            world_free(world);
            world = world_new(below);
        } else if (step.count > 0 && world) {
            if (flushed) {
                world_flush(world);
            }
            perform(world, &step, &got);
            ++*steps;
            if (!same(&wanted, &got)) {
                fprintf(stderr, "%s:%u (%s%s):", path, number, name, flushed ? ", flushed" : "");
                show(&step);
                fputs(" =>", stderr);
                show(&wanted);
                fputs(", but it is", stderr);
                show(&got);
                fputc('\n', stderr);
                failures++;
                world_free(world); // what follows in this case depends on it
                world = NULL;
            }
        }
    }
    world_free(world);
    fclose(file);
    say_nothing(&step);
    say_nothing(&wanted);
    say_nothing(&got);
    free(step.all);
    free(wanted.all);
    free(got.all);
    return failures;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: conformance DIRECTORY plain|flushed FILE...\n");
        return 2;
    }
    int failures = 0;
    unsigned steps = 0;
    for (int i = 3; i < argc; i++) {
        failures += run_file(argv[i], argv[1], strcmp(argv[2], "flushed") == 0, &steps);
    }
    printf("%u steps, %d failures\n", steps, failures);
    return failures ? 1 : 0;
}
