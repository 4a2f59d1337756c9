"""Sessions that write to tables of which indexes are added and dropped meanwhile.

No two rows have one value in `w` at the end of any transaction, though there is not always an index that says so: each session
gives out values of its own, and exchanges those of two rows that it has locked. `u` is whatever it happens to be.
"""

import random
import threading
import time

from harness.wire import ServerGone, SqlError

DUPLICATE, LOCK_TIMEOUT, DEADLOCK, TABLE_CHANGED = 1062, 1205, 1213, 1412
# Of XA transactions that were rolled back meanwhile; no such XA transaction.
XA_ERRORS = {1614, 1402, 1397}
FORGIVEN = {DUPLICATE, LOCK_TIMEOUT, DEADLOCK, TABLE_CHANGED} | XA_ERRORS
HOT_ROWS = 60
COLLATE = "CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci"
COLUMNS = f"u INT, v INT NOT NULL, w BIGINT, s VARCHAR(60) {COLLATE}, b BLOB, x DECIMAL(9,2)"
TABLES = {
    "plain": f"CREATE TABLE plain (id INT PRIMARY KEY, {COLUMNS})",
    "text": f"CREATE TABLE text (id VARCHAR(20) {COLLATE} PRIMARY KEY, {COLUMNS})",
    "hidden": f"CREATE TABLE hidden (id INT, {COLUMNS}, KEY (id))",
    "pairs": f"CREATE TABLE pairs (id INT, {COLUMNS}, PRIMARY KEY (v DESC, id), KEY (id))",
    "parts": f"CREATE TABLE parts (id INT PRIMARY KEY, {COLUMNS}) PARTITION BY HASH (id) PARTITIONS 4",
}


class Writer(threading.Thread):
    """One session. It goes on until it is told to stop or the server dies."""

    def __init__(self, server, number, seed, rows):
        super().__init__(daemon=True)
        self.count, self.failure, self.statement, self.stop = 0, None, None, False
        self._server, self._number, self._rows, self._random = server, number, rows, random.Random(seed)
        self._next = 0

    def run(self):
        try:
            c = None
            while not self.stop:
                c = c or self._connect()
                try:
                    c = self._transaction(c)
                    self.count += 1
                except SqlError as e:
                    if e.code not in FORGIVEN:
                        raise
                    c.close()
                    c = None
            if c:
                c.close()
        except ServerGone:
            pass
        except Exception as e:  # whatever it was, the main thread must report it
            self.failure = f"writer {self._number}: {type(e).__name__}: {e}, at {self.statement}"

    def _connect(self):
        c = self._server.connect("test")
        level = self._random.choice(["READ COMMITTED", "REPEATABLE READ"])
        c.query(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        return c

    def _transaction(self, c):
        """Does one, and gives the connection back that the next one uses, or None for a new one."""
        r, kind = self._random, self._random.random()
        if kind < 0.3:
            self._change(c)
            return c
        if kind < 0.4:
            return self._xa(c)
        if kind < 0.55:
            self._borrow(c)
            return c
        self._do(c, "BEGIN")
        for _ in range(r.randint(1, 5)):
            if r.random() < 0.2:
                self._do(c, "SAVEPOINT s")
                self._change(c)
                self._do(c, "ROLLBACK TO s")
            elif r.random() < 0.6:
                self._exchange(c)
            else:
                self._change(c)
        self._do(c, "COMMIT" if r.random() < 0.85 else "ROLLBACK")
        return c

    def _xa(self, c):
        name = f"x{self._number}_{self._random.randrange(1 << 40)}"
        self._do(c, f"XA START '{name}'")
        self._change(c)
        self._change(c)
        self._do(c, f"XA END '{name}'")
        self._do(c, f"XA PREPARE '{name}'")
        end = f"XA {'COMMIT' if self._random.random() < 0.7 else 'ROLLBACK'} '{name}'"
        if self._random.random() < 0.5:
            self._do(c, end)
            return c
        c.close()  # and another connection ends it
        other = self._connect()
        for _ in range(1000):
            try:
                self._do(other, end)
                return other
            except SqlError as e:
                if e.code != 1397:  # not given free yet by the connection that was closed
                    raise
                time.sleep(0.02)
        raise RuntimeError(f"the prepared transaction {name} was lost")

    def _do(self, c, sql):
        self.statement = sql
        return c.query(sql)

    def _change(self, c):
        """One statement that changes rows; a duplicate is no matter."""
        self._change_to(c, self._statement(self._random.choice(list(TABLES))))

    def _change_to(self, c, sql):
        try:
            self._do(c, sql)
        except SqlError as e:
            if e.code != DUPLICATE:
                raise

    def _id(self, table):
        """Half of what is done concerns few rows, which so are changed again and again."""
        n = self._random.randrange(self._rows if self._random.random() < 0.5 else HOT_ROWS)
        return f"'Key {n}'" if table == "text" else str(n)

    def _values(self):
        r = self._random
        self._next += 1
        w = self._number << 40 | r.randrange(1 << 20) << 20 | self._next
        u = r.choice(["NULL", str(r.randrange(self._rows * 50))])
        s = r.choice(["NULL", f"'{r.choice(['a', 'A', 'ä', 'b '])}{r.randrange(100)}'", f"REPEAT('x{r.randrange(9)}', 25)"])
        return f"{u}, {r.randrange(20)}, {w}, {s}, REPEAT('b', {r.choice([0, 5, 900])}), {r.randrange(-999, 999) / 4}"

    def _statement(self, table):
        r, kind, row = self._random, self._random.random(), self._id(table)
        if kind < 0.3:
            verb = r.choice(["INSERT INTO", "INSERT IGNORE INTO", "REPLACE INTO"])
            return f"{verb} {table} VALUES ({row}, {self._values()})"
        if kind < 0.35:
            return f"INSERT INTO {table} VALUES ({row}, {self._values()}) ON DUPLICATE KEY UPDATE v = v + 1, s = 'dup'"
        if kind < 0.5:
            return f"DELETE FROM {table} WHERE id = {row}"
        if kind < 0.6:
            return f"UPDATE {table} SET id = {self._id(table)} WHERE id = {row}"
        change = r.choice(["v = (v + 1) % 20", f"u = {r.randrange(self._rows * 50)}", "u = NULL", "s = CONCAT(LEFT(s, 50), 'z')",
                           "b = REPEAT('c', 700), x = x + 1", "x = -x", "s = NULL"])
        if kind < 0.9 or table == "text":
            return f"UPDATE {table} SET {change} WHERE id = {row}"
        return f"UPDATE {table} SET {change} WHERE id BETWEEN {row} AND {row} + {r.randrange(30)}"

    def _borrow(self, c):
        """For a moment two rows have one value in `u`, if there is no index that says no."""
        table = self._random.choice(list(TABLES))
        a, b = self._random.sample(range(HOT_ROWS), 2)
        a, b = (f"'Key {n}'" if table == "text" else str(n) for n in (a, b))
        own = self._number << 16 | self._random.randrange(1 << 16)
        self._change_to(c, f"UPDATE {table} SET u = (SELECT MAX(u) FROM {table} AS other WHERE id = {b}) WHERE id = {a}")
        time.sleep(self._random.uniform(0, 0.05))
        self._change_to(c, f"UPDATE {table} SET u = {own} WHERE id = {a}")

    def _exchange(self, c):
        """Two rows exchange what is unique, in a way that an index, if there is one, lets pass."""
        table = self._random.choice(list(TABLES))
        ids = [f"'Key {n}'" if table == "text" else str(n) for n in sorted(self._random.sample(range(HOT_ROWS), 2))]
        found = self._do(c, f"SELECT id, w FROM {table} WHERE id IN ({', '.join(ids)}) AND w IS NOT NULL ORDER BY id FOR UPDATE")
        if len(found) != 2 or found[0][0] == found[1][0]:
            return
        (a, wa), (b, wb) = found
        for key, old, new in ((a, wa, "NULL"), (b, wb, wa), (a, None, wb)):
            where = f"w = {old}" if old is not None else "w IS NULL"
            self._do(c, f"UPDATE {table} SET w = {new} WHERE id = '{key}' AND {where}")
