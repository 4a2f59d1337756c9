"""Sessions whose statements alternate in one order, the same in two engines: transactions at all levels read by every index what they
and others changed, before and after their snapshots. Nothing runs at the same time, so there is one right answer to each read."""

from ast import literal_eval
from collections import Counter

from plans import answer

SESSIONS = 3
LEVELS = ("repeatable read", "repeatable read", "repeatable read", "read committed", "read committed", "serializable", "read uncommitted")
LOCKED = ("error 1205", "error 1213")
WORDS = ("ab", "abc", "abd", "b", "B", "ba", "c ", "", "zz")
PRIMARY = ("id", "id", "id desc", "u", "c, id", "s(2), id", None)
# Of several kinds of keys over the same columns at most one is taken.
KEYS = (("a", "a desc"), ("b", "b, a", "b desc, c"), ("s", "s(2)", "s(1), b"), ("v",), ("w", "w(3)"))
# A transaction may see several rows with a unique value: one that it gave it, and those that had it in its snapshot. A search for one value
# then gives the first, with both engines, so the answer depends on the plan: reads of tables with such a key say which to use.
UNIQUE = ("b", "c, b", "s", "a", "a", "a desc", "v")


class Table:
    """A definition, and statements that fit it."""

    def __init__(self, rng):
        self.rng = rng
        self.primary = rng.choice(PRIMARY)
        self.computed = rng.random() < 0.4
        self.long = rng.random() < 0.12
        self.partitioned = self.primary in ("id", "id desc") and rng.random() < 0.15
        self.unique = rng.choice(UNIQUE) if not self.partitioned and rng.random() < 0.5 else None
        self.computed |= self.unique == "v"
        self.keys = {f"k{n}": rng.choice(kinds) for n, kinds in enumerate(KEYS[:5 if self.computed else 3]) if rng.random() < 0.8}
        self.columns = ["id", "a", "b", "c", "s", "u"] + ["t"] * self.long
        self.handled = bool(self.keys or self.unique) and not self.partitioned and rng.random() < 0.4

    def create(self, name, engine):
        """CREATE TABLE."""
        parts = ["id int not null", "a int", "b int", "c int not null default 0",
                 f"s varchar(20){' not null' if self.primary == 's(2), id' else ''}", "u varchar(10) not null"]
        parts += ["t longtext"] * self.long
        if self.computed:
            parts += ["v int as (a * 10 + c) virtual", "w varchar(40) as (concat(s, '-', a)) virtual"]
        parts += [f"key {name} ({columns})" for name, columns in self.keys.items()]
        parts += [f"unique key uk ({self.unique})"] if self.unique else []
        parts += [f"primary key ({self.primary})"] if self.primary else []
        partitions = " partition by hash (id) partitions 3" if self.partitioned else ""
        return f"create or replace table {name} ({', '.join(parts)}) engine={engine}{partitions}"

    def value(self, column):
        """A literal."""
        rng = self.rng
        if column in ("a", "b", "s", "t") and rng.random() < 0.12 and not (column == "s" and self.primary == "s(2), id"):
            return "null"
        if column in ("id", "u"):
            n = rng.randint(1, 30)
            return str(n) if column == "id" else f"'u{n}'"
        if column == "s":
            return f"'{rng.choice(WORDS)}'"
        if column == "t":
            return f"repeat('{rng.choice('xyz')}', {rng.choice([10, 70000, 70000, 4300000])})"
        return str(rng.randint(0, 6))

    def row(self):
        """The values of a row. Without a unique key its `u` follows its `id`."""
        values = {column: self.value(column) for column in self.columns}
        if self.primary != "u":
            values["u"] = f"'u{values['id']}'"
        return f"({', '.join(values.values())})"

    def one(self):
        """A condition that few rows match."""
        return f"u = {self.value('u')}" if self.primary == "u" else f"id = {self.value('id')}"

    def some(self):
        """A condition on a column that may be indexed. Rows may match it: where the server knows that none can, InnoDB takes no snapshot."""
        rng, column = self.rng, self.rng.choice(["a", "a", "b", "s", "c"] + ["v"] * self.computed)
        value = str(rng.randint(0, 66)) if column == "v" else self.value(column)
        kind = rng.random()
        if value == "null":
            return f"{column} is null"
        if kind < 0.6:
            return f"{column} = {value}"
        if kind < 0.85:
            return f"{column} {rng.choice(['<', '>', '<=', '>='])} {value}"
        if kind < 0.9 and column != "s":
            return f"{column} between {value} and {value} + {rng.randint(1, 5)}"
        return f"({column} = {value} or a = {rng.randint(0, 6)})"

    def read(self):
        """A SELECT by some index, or by none."""
        rng = self.rng
        every = "id, a, b, c, hex(s), u" + ", md5(t)" * self.long + ", v, hex(w)" * self.computed
        what = rng.choice([every, every, "id", "count(*)", "id, a", "b", "a, c", "id, hex(s)", "max(a), min(a)", "count(*), sum(id)"]
                          + ["v", "id, v"] * self.computed)
        scans = ["use index ()"] + [""] * (self.unique is None)
        names = list(self.keys) + ["uk", "uk"] * bool(self.unique)
        hint = f"force index ({rng.choice(names)})" if names and rng.random() < 0.8 else rng.choice(scans)
        where = rng.choice([self.some, self.some, self.one])() if rng.random() < 0.9 else "1"
        if "uk" in hint and rng.random() < 0.5:
            column = self.unique.split()[0].rstrip(",")
            where = f"{column} >= {'-5' if column != 's' else chr(39) * 2}"
            order = rng.choice(["", f" order by {column}", f" order by {column} desc"])
            return f"select {every if rng.random() < 0.8 else column} from {{}} {hint} where {where}{order}"
        if "uk" in hint and rng.random() < 0.3 and self.unique in ("a", "b", "v"):
            join = f"(select 1 n union select 2 union select 3 union select 40) n straight_join {{}} {hint} on {self.unique} = n"
            return f"select {every} from {join} where {where if 'null' not in where else '1'}"  # not what can never be: see `some`
        return f"select {what} from {{}} {hint} where {where}"

    def handler(self):
        """HANDLER statements that read by a key, in a row: InnoDB continues at a place in the index, which changes in between may move."""
        rng = self.rng
        key, column = rng.choice([(name, kinds.split()[0].rstrip(",").split("(")[0]) for name, kinds in
                                  [*self.keys.items(), ("uk", self.unique or "")] if kinds])
        place = rng.choice(["first", "last", "=", "=", "="])
        place = f"{rng.choice(['=', '>=', '<=', '>', '<'])} ({self.value(column) if column not in 'vw' else '3'})" if place == "=" else place
        places = [place, *(rng.choice(["next", "next", "prev"]) for _ in range(rng.randint(0, 3)))]
        return [f"handler h read {key} {place} limit {rng.choice([1, 1, 3])}" for place in places]

    def change(self):
        """A statement that changes rows, and its kind."""
        rng = self.rng
        kind = rng.choice(["update", "update", "update", "move", "delete", "insert", "insert", "replace", "upsert"])
        where = self.one() if rng.random() < 0.75 else self.some()
        rows = f"into {{}} ({', '.join(self.columns)}) values {self.row()}"
        if kind == "update":
            column = rng.choice(["a", "b", "c", "s"] + ["t"] * self.long)
            value = f"{column} + 1" if column in "abc" and rng.random() < 0.3 else self.value(column)
            return kind, f"update {{}} set {column} = {value} where {where} order by id, u"
        if kind == "move":
            column = "u" if self.primary == "u" else "id"
            return kind, f"update {{}} set {column} = {self.value(column)} where {self.one()} order by id, u limit 1"
        if kind == "delete":
            return kind, f"delete from {{}} where {where} order by id, u"
        if kind == "upsert":
            return kind, f"insert {rows} on duplicate key update {rng.choice('abc')} = {self.value('c')}"
        return kind, f"replace {rows}" if kind == "replace" else f"insert {rng.choice(['', 'ignore '])}{rows}"


class Play:
    """One pair of tables, and the sessions that use it."""

    def __init__(self, rng, servers_sessions, engines):
        self.rng, self.engines = rng, engines
        self.sessions = servers_sessions
        self.names = [f"s_{engine}" for engine in engines]
        self.table = Table(rng)
        self.levels = [None] * SESSIONS
        self.counted, self.story = Counter(), []

    def both(self, n, sql):
        """What a statement of one session answers in both engines."""
        self.story.append(f"{n}: {sql.format('t')}")
        return [answer(pair[n], sql.format(name)) for pair, name in zip(self.sessions, self.names)]

    def prepare(self):
        """Makes and fills the tables: a complaint, or None."""
        for n in range(SESSIONS):
            self.both(n, "rollback")
        self.close_handlers()
        for pair, name, engine in zip(self.sessions, self.names, self.engines):
            pair[0].query(self.table.create(name, engine))
        for _ in range(15):
            rows = f"insert ignore into {{}} ({', '.join(self.table.columns)}) values {self.table.row()}"
            done = self.both(0, rows)
            if done[0] != done[1]:
                return f"{done}"
        for n in range(SESSIONS if self.table.handled else 0):
            self.both(n, "handler {} open h")
        self.counted["tables"] += 1
        for what in ("computed", "handled", "long", "partitioned", "unique"):
            self.counted[f"tables: {what}"] += bool(getattr(self.table, what))
        self.counted[f"tables: primary key ({self.table.primary})"] += 1
        return None

    def close_handlers(self):
        """No table is replaced while a HANDLER is open in another session."""
        for n in range(SESSIONS):
            self.both(n, "handler h close")

    def begin(self, n):
        """Begins a transaction."""
        self.levels[n] = self.rng.choice(LEVELS)
        self.both(n, f"set session transaction isolation level {self.levels[n]}")
        self.both(n, self.rng.choice(["begin", "begin", "start transaction with consistent snapshot"]))
        self.counted[f"transactions: {self.levels[n]}"] += 1

    def statement(self, n):
        """The next statement of a session, and what to count it as."""
        rng, inside = self.rng, self.levels[n]
        kind = rng.random()
        if inside and kind < 0.12:
            return "ends", rng.choice(["commit", "commit", "rollback"])
        if inside and kind < 0.2:
            return "savepoints", rng.choice(["savepoint x", "savepoint y", "rollback to x", "rollback to y", "release savepoint x"])
        if kind < 0.6:
            lock = rng.choice([" for update", " lock in share mode"]) if inside and rng.random() < 0.12 else ""
            return f"reads: {'locking' if lock else inside or 'autocommit'}", self.table.read() + lock
        what, sql = self.table.change()
        return f"changes: {what}", sql

    def count_shared(self, sql, rows):
        """Counts a read that found several rows with one unique value: see UNIQUE."""
        names = [part.split()[0] for part in (self.table.unique or "").split(", ") if part]
        columns = ["id", "a", "b", "c", "hex(s)", "u"]
        if not names or not isinstance(rows, list) or not sql.startswith("select id, a, b, c, hex(s), u"):
            return
        computed = {"s": "hex(s)", "v": "v"}
        columns += ["t"] * self.table.long + ["v", "w"] * self.table.computed
        values = Counter()
        for row in map(literal_eval, rows):
            value = tuple(row[columns.index(computed.get(name, name))] for name in names)
            values[value] += None not in value
        if any(n > 1 for n in values.values()):
            self.counted["reads that found several rows with one unique value"] += 1
            self.counted["reads that found several rows with one unique value, by that key"] += "(uk)" in sql

    def take_value(self, n):
        """Statements by which a session takes a unique value that another row has in its snapshot."""
        rng, idle = self.rng, [m for m in range(SESSIONS) if self.levels[m] is None]
        names = [part.split()[0] for part in self.table.unique.split(", ")]
        columns = ["a", "c"] if names == ["v"] else names
        rows = self.both(n, f"select id, {', '.join(columns)} from {{}} use index ()")[0]
        rows = [row for row in map(literal_eval, rows)] if isinstance(rows, list) else []
        rows = [row for row in rows if None not in row]
        if not idle or not rows:
            return []
        row, other = rng.choice(rows), rng.choice(idle)
        values = dict(zip(["id", *columns], row))
        literal = {name: f"'{value}'" if name == "s" else str(value) for name, value in values.items()}
        gone = rng.choice([f"update {{}} set {columns[0]} = {chr(39) + 'q' if columns[0] == 's' else ''}{rng.randint(7, 99)}"
                           f"{chr(39) if columns[0] == 's' else ''}", "delete from {}"]) + f" where id = {values['id']}"
        new = {name: self.table.value(name) for name in self.table.columns} | literal
        new["id"] = str(rng.randint(1, 60))
        if self.table.primary != "u":
            new["u"] = f"'u{new['id']}'"
        sets = ", ".join(f"{name} = {literal[name]}" for name in columns)
        take = rng.choice([f"{rng.choice(['insert', 'insert ignore', 'replace'])} into {{}} ({', '.join(new)}) values ({', '.join(new.values())})",
                           f"update {{}} set {sets} where id = {rng.randint(1, 30)} order by id, u limit 1"])
        every = "id, a, b, c, hex(s), u" + ", md5(t)" * self.table.long + ", v, hex(w)" * self.table.computed
        where = f"{names[0]} >= {'-5' if names[0] != 's' else chr(39) * 2}"
        return [(other, "begin"), (other, gone), (other, "commit"), (n, take),
                (n, f"select {every} from {{}} force index (uk) where {where}"),
                (n, f"select {every} from {{}} force index (uk) where {' and '.join(f'{k} = {literal.get(k, 3)}' for k in names)}")]

    def gave_up(self, n, answers):
        """Ends a transaction of which a statement had to wait with one engine or both: they may lock different gaps."""
        if not any(a in LOCKED for a in answers):
            return False
        self.both(n, "rollback")
        self.levels[n] = None
        self.counted["left out, as one waits for a lock"] += 1
        return True

    def in_a_row(self, statements, what):
        """Statements of several sessions, up to one that must wait: a complaint, or None."""
        for n, sql in statements:
            answers = self.both(n, sql)
            if self.gave_up(n, answers):
                return None
            if answers[0] != answers[1]:
                return f"innodb answers {answers[0]}\n{self.engines[1]} answers {answers[1]}"
            self.count_shared(sql, answers[1])
        self.counted[what] += bool(statements)
        return None

    def step(self):
        """A few statements: a complaint, or None."""
        n = self.rng.randrange(SESSIONS)
        if self.levels[n] and self.table.unique and self.rng.random() < 0.12:
            return self.in_a_row(self.take_value(n), "values taken")
        if self.levels[n] is None and self.rng.random() < 0.5:
            self.begin(n)
            return None
        if self.table.handled and self.levels[n] == "repeatable read" and self.rng.random() < 0.12:
            return self.in_a_row([(n, sql) for sql in self.table.handler()], "reads: handler")
        what, sql = self.statement(n)
        alone = self.levels[n] is None and what.startswith("changes")
        if alone:
            self.both(n, "begin")
        answers = self.both(n, sql)
        if self.gave_up(n, answers):
            return None
        if answers[0] != answers[1]:
            return f"innodb answers {answers[0]}\n{self.engines[1]} answers {answers[1]}"
        self.counted[what] += 1
        self.count_shared(sql, answers[1])
        if alone:
            self.both(n, "commit")
        if what == "ends":
            self.levels[n] = None
        return None

    def finish(self):
        """Ends everything: a complaint if the tables differ then, or None."""
        for n in range(SESSIONS):
            self.both(n, "rollback")
        self.close_handlers()
        for hint in ("use index ()", *(f"force index ({name})" for name in [*self.table.keys, *["uk"] * bool(self.table.unique)])):
            held = self.both(0, f"select id, a, b, c, hex(s), u from {{}} {hint}")
            if held[0] != held[1]:
                return f"innodb holds {held[0]}\n{self.engines[1]} holds {held[1]}"
        checked = self.sessions[1][0].query(f"check table {self.names[1]} extended")
        return None if "OK" in str(checked[-1][-1]) else f"check table: {checked}"


def compare(rng, sessions, engines, statements):
    """One pair of tables: a complaint or None, and what was counted. `sessions` has a list of sessions for each engine."""
    play = Play(rng, sessions, engines)
    complaint = play.prepare()
    for _ in range(statements):
        complaint = complaint or play.step()
    complaint = complaint or play.finish()
    story = [play.table.create("t", "..."), *play.story]
    return complaint and complaint + "\nto the last of\n" + ";\n".join(story), play.counted
