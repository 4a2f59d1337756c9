"""Transactions that stand in each other's way, on few rows: what a replica that applies them in parallel gets wrong first.

On the primary they run one after the other where they conflict. A replica that applies optimistically starts them at
once, and must find out which of them has to wait, or to be rolled back, for the order of the primary.
"""

import random
import threading

from harness.wire import ServerGone, SqlError
from ledger import RETRIED_ERRORS

TABLES = ("hot", "hot_no_key", "hot_unique")
ROWS = 12


def create(server):
    """Makes the tables, in the server's default engine."""
    with server.connect("test") as c:
        c.query("CREATE TABLE hot (id INT PRIMARY KEY, v INT NOT NULL, KEY (v))")
        c.query("CREATE TABLE hot_no_key (v INT NOT NULL, s VARCHAR(20))")
        c.query("CREATE TABLE hot_unique (id INT AUTO_INCREMENT PRIMARY KEY, u INT, w INT, UNIQUE KEY (u), KEY (w))")
        for i in range(ROWS):
            c.query(f"INSERT INTO hot VALUES ({i}, {i})")
            c.query(f"INSERT INTO hot_no_key VALUES ({i % 4}, 'row')")


class Session(threading.Thread):
    """Commits small transactions until it is stopped."""

    def __init__(self, server, seed):
        super().__init__(daemon=True)
        self.stopped, self.commits, self.failure = False, 0, None
        self._server, self._random = server, random.Random(seed)

    def run(self):
        try:
            with self._server.connect("test") as c:
                while not self.stopped:
                    self._transaction(c)
        except ServerGone:
            pass
        except Exception as e:  # whatever it was, the main thread must report it
            self.failure = f"{type(e).__name__}: {e}"

    def _transaction(self, c):
        try:
            c.query("BEGIN")
            for _ in range(self._random.randint(1, 4)):
                c.query(self._statement())
            c.query("COMMIT")
            self.commits += 1
        except SqlError as e:
            if e.code not in RETRIED_ERRORS:
                raise
            c.query("ROLLBACK")

    def _statement(self):
        r = self._random
        a, b = r.randrange(ROWS), r.randrange(ROWS)
        return r.choice((
            f"UPDATE hot SET v = v + 1 WHERE id = {a}",
            f"UPDATE hot SET v = v + 1 WHERE id IN ({a}, {b})",
            f"UPDATE hot SET v = {a} WHERE v BETWEEN {b} AND {b + 3} LIMIT 2",
            f"REPLACE INTO hot VALUES ({a}, {b})",
            f"UPDATE hot_no_key SET v = {b} WHERE v = {a % 4} LIMIT 1",
            f"INSERT INTO hot_no_key VALUES ({a % 4}, 'new')",
            f"DELETE FROM hot_no_key WHERE v <> {b % 4} LIMIT 2",
            f"INSERT INTO hot_unique (u, w) VALUES ({a}, {b}) ON DUPLICATE KEY UPDATE w = w + 1",
            f"DELETE FROM hot_unique WHERE u = {a}",
            f"DELETE FROM hot_unique WHERE w >= {b} LIMIT 1",
        ))


def start(server, sessions, seed):
    """Sessions that work until `stop`."""
    started = [Session(server, f"{seed} {n}") for n in range(sessions)]
    for s in started:
        s.start()
    return started


def stop(sessions):
    """Ends them: their commits, and what stopped them otherwise."""
    for s in sessions:
        s.stopped = True
    for s in sessions:
        s.join()
    return sum(s.commits for s in sessions), [s.failure for s in sessions if s.failure]
