"""Sessions that define, change and drop tables, and know at each moment what there may be if the server dies now.

A session has tables of its own: their names, and of each its rows and columns. While a statement runs, both what was before
it and what it leads to are allowed, for a definition changes as a whole or not at all. Only where the server itself works in
steps (CREATE OR REPLACE, partitions) something in between is allowed as well.
"""

import random
import threading
from collections import namedtuple

from harness.wire import ServerGone, SqlError

# `rows` is None where any number will do; `columns` are their names, in order.
Table = namedtuple("Table", "rows columns partitioned")
NAMES = 6
DEFINED = "id INT AUTO_INCREMENT, v INT, s VARCHAR(40)"
COLUMNS = ("id", "v", "s")
TOO_MUCH_MEMORY = 1206  # which undoes the statement
# Of tables that others have too: a row that they inserted as well, no such table, table exists already, lock wait timeout,
# deadlock, and what changed meanwhile.
SHARED_ERRORS = {1062, 1146, 1051, 1050, 1205, 1213, 1020, 1412, 1684, 1505, 1060, 1061, 1091, 1072, 1054, 1508, 1517, 1512, 1515}


class Definer(threading.Thread):
    """One session. With `shared` it works on names that others use as well, and does not know what there is."""

    def __init__(self, server, name, seed, tables=None, shared=False, partitions=False, rows=40):
        super().__init__(daemon=True)
        self.tables = dict(tables or {})
        self.allowed, self.statement, self.count, self.failure = [self.tables], None, 0, None
        self.owner, self._partitions, self._rows = name, partitions, rows
        self._server, self._shared, self._random = server, shared, random.Random(seed)

    def run(self):
        try:
            with self._server.connect("test") as c:
                while True:
                    self._step(c)
        except ServerGone:
            pass
        except Exception as e:  # whatever it was, the main thread must report it
            self.failure = f"{self.owner}: {type(e).__name__}: {e}, at {self.statement}"

    def _step(self, c):
        sql, after, between = self._choose()
        self.statement = sql
        self.allowed = [self.tables, *between, after]
        try:
            c.query(sql)
        except SqlError as e:
            if e.code != TOO_MUCH_MEMORY and not (self._shared and e.code in SHARED_ERRORS):
                raise
            after = self.tables
        self.tables, self.allowed = after, [after]
        self.count += 1

    def _choose(self):
        """A statement, what there is after it, and what there may be in the middle of it."""
        r = self._random
        if self._shared:  # whatever it believes: errors are forgiven
            self.tables = {n: Table(None, COLUMNS, self._partitions and r.random() < 0.3) for n in self._names() if r.random() < 0.6}
        names = sorted(self.tables)
        free = [n for n in self._names() if n not in self.tables]
        if not names or free and r.random() < 0.2:
            return self._create(r.choice(free))
        n = r.choice(names)
        kinds = [self._fill, self._fill, self._drop, self._truncate, self._replace, self._alter, self._alter, self._alter,
                 self._key]
        if self.tables[n].partitioned:
            kinds.append(self._partition)
        if free:
            kinds += [self._rename, self._alter_and_rename, self._select, self._like]
        if len(names) > 1:
            kinds.append(self._swap)
        return r.choice(kinds)(n)

    def _names(self):
        return [f"{self.owner}_{i}" for i in range(NAMES)]

    def _free(self):
        return self._random.choice([n for n in self._names() if n not in self.tables])

    def _with(self, **changed):
        """What there is, with some tables changed, and those gone that are None."""
        return {n: t for n, t in {**self.tables, **changed}.items() if t}

    def _definition(self):
        forms = ["PRIMARY KEY (id), KEY (v)", "KEY (id), KEY (s, v)", "PRIMARY KEY (id)"]
        if self._partitions:
            forms.append("PRIMARY KEY (id), KEY (v)) PARTITION BY HASH (id) PARTITIONS 3")
        form = self._random.choice(forms)
        partitioned = "PARTITION" in form
        return f"({DEFINED}, {form}" + ("" if partitioned else ")"), Table(0, COLUMNS, partitioned)

    def _create(self, n):
        text, table = self._definition()
        return f"CREATE TABLE {n} {text}", self._with(**{n: table}), []

    def _replace(self, n):
        text, table = self._definition()
        return f"CREATE OR REPLACE TABLE {n} {text}", self._with(**{n: table}), [self._with(**{n: None})]

    def _select(self, n):
        new, t = self._free(), self.tables[n]
        sql = f"CREATE TABLE {new} (PRIMARY KEY (id), KEY (v)) SELECT id, v FROM {n}"
        return sql, self._with(**{new: Table(t.rows, ("id", "v"), False)}), []

    def _like(self, n):
        new, t = self._free(), self.tables[n]
        return f"CREATE TABLE {new} LIKE {n}", self._with(**{new: t._replace(rows=0)}), []

    def _fill(self, n):
        t, count = self.tables[n], self._random.randint(1, self._rows)
        # Of tables without AUTO_INCREMENT (CREATE ... SELECT makes those) the key must be given.
        sql = (f"INSERT INTO {n} (id, v) SELECT (SELECT COALESCE(MAX(id), 0) FROM {n} AS old) + seq, seq "
               f"FROM seq_1_to_{count}")
        rows = None if t.rows is None else t.rows + count
        return sql, self._with(**{n: t._replace(rows=rows)}), []

    def _drop(self, n):
        return f"DROP TABLE {n}", self._with(**{n: None}), []

    def _truncate(self, n):
        t = self.tables[n]
        between = [self._with(**{n: t._replace(rows=None)})] if t.partitioned else []
        return f"TRUNCATE TABLE {n}", self._with(**{n: t._replace(rows=0)}), between

    def _rename(self, n):
        new = self._free()
        return f"RENAME TABLE {n} TO {new}", self._with(**{n: None, new: self.tables[n]}), []

    def _swap(self, n):
        other = self._random.choice([name for name in sorted(self.tables) if name != n])
        sql = f"RENAME TABLE {n} TO {self.owner}_x, {other} TO {n}, {self.owner}_x TO {other}"
        return sql, self._with(**{n: self.tables[other], other: self.tables[n]}), []

    def _column(self):
        return f"c{self._random.randrange(1 << 30)}"

    def _alter(self, n):
        t, r = self.tables[n], self._random
        how = r.choice((", ALGORITHM=COPY", "", "", ", FORCE"))
        new, old = self._column(), r.choice(t.columns)
        if old in ("id", "v") or r.random() < 0.5:
            change, columns = f"ADD COLUMN {new} INT DEFAULT 7", (*t.columns, new)
        elif r.random() < 0.5 or old == "s":  # which may be the first of a key's two columns
            change, columns = f"RENAME COLUMN {old} TO {new}", tuple(new if c == old else c for c in t.columns)
        else:
            change, columns = f"DROP COLUMN {old}", tuple(c for c in t.columns if c != old)
        return f"ALTER TABLE {n} {change}{how}", self._with(**{n: t._replace(columns=columns)}), []

    def _key(self, n):
        how = self._random.choice((", ALGORITHM=COPY", ""))
        return f"ALTER TABLE {n} ADD KEY {self._column()} (v, id), ADD KEY {self._column()} (v){how}", self._with(), []

    def _alter_and_rename(self, n):
        new, t = self._free(), self.tables[n]
        column, how = self._column(), self._random.choice((", ALGORITHM=COPY", ""))
        sql = f"ALTER TABLE {n} ADD COLUMN {column} INT, RENAME {new}{how}"
        return sql, self._with(**{n: None, new: t._replace(columns=(*t.columns, column))}), []

    def _partition(self, n):
        what = self._random.choice(("ADD PARTITION PARTITIONS 1", "COALESCE PARTITION 1", "REBUILD PARTITION ALL",
                                    "TRUNCATE PARTITION p0"))
        t = self.tables[n]
        if "COALESCE" in what:
            what = "REMOVE PARTITIONING"
            return f"ALTER TABLE {n} {what}", self._with(**{n: t._replace(partitioned=False)}), []
        if "TRUNCATE" in what:
            t = t._replace(rows=None)
        return f"ALTER TABLE {n} {what}", self._with(**{n: t}), []
