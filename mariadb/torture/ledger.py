"""Clients whose transactions are numbered, so that after a crash it can be told exactly which of them survived.

Each client commits transactions 1, 2, 3, ... Its transaction n inserts row n, deletes a row that is old by now, and
updates the client's head row: three changes in two tables that must be seen together or not at all. The client remembers,
outside the server, which commits were acknowledged. After a crash the rows of a client must therefore be one unbroken run
of numbers that ends at the last acknowledged transaction, or at the one that was in flight.
"""

import random
import threading

from harness.server import index_complaints
from harness.wire import ServerGone, SqlError

KEPT_ROWS = 200
TABLES = ("ledger", "head")
# Deadlock, lock wait timeout, record changed since the snapshot: roll back and try again.
RETRIED_ERRORS = {1213, 1205, 1020}


class Client(threading.Thread):
    """One session that commits its transactions as fast as it can until it is stopped or the server is gone."""

    def __init__(self, server, number, last, seed, savepoints):
        super().__init__(daemon=True)
        self.number, self.acknowledged, self.tried = number, last, last
        self.retries, self.failure, self.stopped = 0, None, False
        self._server, self._savepoints = server, savepoints
        self._random = random.Random(f"{seed} {number} {last}")

    def run(self):
        try:
            with self._server.connect("test") as session:
                while not self.stopped:
                    self._attempt(session, self.acknowledged + 1)
        except ServerGone:
            pass
        except Exception as e:  # whatever it was, the main thread must report it
            self.failure = f"client {self.number}: {type(e).__name__}: {e}"

    def _attempt(self, session, n):
        try:
            session.query("BEGIN")
            if self._random.random() < 0.1:
                self._undone(session, n)
            self._change(session, n)
            self.tried = n
            session.query("COMMIT")
            self.acknowledged = n
        except SqlError as e:
            if e.code not in RETRIED_ERRORS:
                raise
            self.retries += 1
            session.query("ROLLBACK")

    def _change(self, session, n):
        first, client = max(1, n - KEPT_ROWS + 1), self.number
        session.query(f"INSERT INTO ledger VALUES ({client}, {n}, {_note(client, n)}, REPEAT(note, {n} % 40))")
        session.query(f"DELETE FROM ledger WHERE client = {client} AND seq = {first - 1}")
        session.query(f"UPDATE head SET first = {first}, last = {n} WHERE client = {client}")

    def _undone(self, session, n):
        """Work that must leave no trace: rows with a negative number."""
        insert = f"INSERT INTO ledger VALUES ({self.number}, -{n}, 'undone', '')"
        if self._savepoints:
            session.query("SAVEPOINT s")
            session.query(insert)
            session.query("ROLLBACK TO SAVEPOINT s")
        else:
            session.query(insert)
            session.query("ROLLBACK")
            session.query("BEGIN")


def _note(client, n):
    return f"MD5('{client} {n}')"


class Ledger:
    """The tables, their clients, and what is known about them outside the server."""

    def __init__(self, server, clients, seed):
        self._server, self._seed = server, seed
        self._savepoints = server.engine.savepoints
        self.last = dict.fromkeys(range(1, clients + 1), 0)
        self._clients = []
        self.commits = self.retries = 0

    def create(self):
        """Makes the tables, in the server's default engine."""
        with self._server.connect("test") as c:
            c.query("CREATE TABLE ledger (client INT NOT NULL, seq BIGINT NOT NULL, note CHAR(32) NOT NULL, "
                    "body VARCHAR(2000) NOT NULL, PRIMARY KEY (client, seq), UNIQUE KEY by_note (note, seq))")
            c.query("CREATE TABLE head (client INT PRIMARY KEY, first BIGINT NOT NULL, last BIGINT NOT NULL)")
            for client in self.last:
                c.query(f"INSERT INTO head VALUES ({client}, 1, 0)")

    def start(self):
        """Lets the clients work, until `stop` or until the server is gone."""
        self._clients = [Client(self._server, n, last, self._seed, self._savepoints) for n, last in self.last.items()]
        for client in self._clients:
            client.start()

    def stop(self):
        """Tells the clients to end after the transaction that they are at; `join` waits for them."""
        for client in self._clients:
            client.stopped = True

    def join(self):
        """Waits until all clients ended or noticed that the server is gone; what stopped them otherwise is the result."""
        for client in self._clients:
            client.join()
        self.commits += sum(c.acknowledged - self.last[c.number] for c in self._clients)
        self.retries += sum(c.retries for c in self._clients)
        return [c.failure for c in self._clients if c.failure]

    def verify(self, binlog):
        """Compares what the tables hold with what was acknowledged and with what the binlog got since the last call.
        `binlog` maps clients to their numbers there, in order. Returns complaints."""
        wrong = []
        with self._server.connect("test") as c:
            heads = {client: (first, last) for client, first, last in c.query("SELECT * FROM head")}
            rows = {client: found for client, *found in c.query(
                "SELECT client, COUNT(*), MIN(seq), MAX(seq) FROM ledger FORCE INDEX (PRIMARY) GROUP BY client")}
            broken = c.value("SELECT COUNT(*) FROM ledger WHERE note <> MD5(CONCAT(client, ' ', seq)) "
                             "OR body <> REPEAT(note, seq % 40)")
            wrong += index_complaints(c, "ledger", "by_note", "client, seq, note")
        if broken:
            wrong.append(f"{broken} rows of the ledger hold other than what was written")
        for client in self._clients:
            count, low, high = rows.get(client.number, (0, 1, 0))
            wrong += self._verify_client(client, heads.get(client.number), (count, low, high), binlog)
            self.last[client.number] = max(high, 0)
        return wrong

    def _verify_client(self, client, head, found, binlog):
        label, (count, low, high), wrong = f"client {client.number}", found, []
        if head != (max(1, high - KEPT_ROWS + 1), high):
            wrong.append(f"{label}: the head row is {head}, but the last row of the ledger is {high}")
        if (low, count) != (max(1, high - KEPT_ROWS + 1), min(high, KEPT_ROWS)):
            wrong.append(f"{label}: {count} rows from {low} to {high}: some are missing, or some were not to be seen")
        if high < client.acknowledged:
            wrong.append(f"{label}: {client.acknowledged} was acknowledged, but {high} is the last")
        if high > client.tried:
            wrong.append(f"{label}: {high} is there, but {client.tried} was the last that was tried")
        logged, expected = binlog.get(client.number, []), list(range(self.last[client.number] + 1, high + 1))
        if logged != expected:
            odd = sorted(set(logged) ^ set(expected))[:5]
            wrong.append(f"{label}: the binlog has {len(logged)} transactions and the table {len(expected)} since the "
                         f"last crash; they differ at {odd or 'their order'}")
        return wrong
