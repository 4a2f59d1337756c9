"""Plays statements of several sessions in a fixed order, and notes what each got, which waited, and which were refused."""

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Callable

from harness.wire import SqlError

LEVELS = {"RC": "READ COMMITTED", "RR": "REPEATABLE READ", "SER": "SERIALIZABLE"}
ROWS = [(1, 10), (2, 20)]
# Long enough never to end a wait of its own accord; a scenario that wants it short says so.
LOCK_WAIT_SECONDS = 10
STEP = re.compile(r"(\d): (.*?)(?: -> (\w+))?$")


@dataclass(frozen=True)
class Scenario:
    """One line of a step is `session: statement -> label`; each session's transaction has begun before, unless `begin`
    is false. While a session waits for a lock, its further steps wait too, and the others go on; `AWAIT` holds all up
    until the session's statement has ended. `timeout` in a statement stands for the engine's lock wait timeout variable,
    `id1` for session 1's id.

    An anomaly is judged by `seen`, which gets an Outcome. A behaviour is judged by `holds`; there, unlike in an anomaly,
    a session goes on after an error."""

    name: str
    title: str
    steps: str
    seen: Callable = None
    holds: Callable = None
    levels: tuple = tuple(LEVELS)
    begin: bool = True
    ddl: tuple = ()


class Outcome:
    """What a scenario led to. `got` has each labelled step's rows, affected rows, or error (`"error 1213"`); None is the
    result of a step that was left out, because its transaction had been refused before."""

    def __init__(self):
        self.got, self.waited, self.errors, self.committed, self.log = {}, set(), [], set(), []
        self.final = None

    def __getitem__(self, label):
        return self.got.get(label)

    def value(self, label):
        """The last column of the only row that the step returned."""
        rows = self.got.get(label)
        return rows[0][-1] if isinstance(rows, list) and len(rows) == 1 else None

    def rows(self, label):
        """The step's rows; none if it was refused."""
        rows = self.got.get(label)
        return rows if isinstance(rows, list) else []

    @property
    def means(self):
        """What kept an anomaly from happening: an error, a wait, or the view that reads have."""
        return self.errors[0] if self.errors else "waits" if self.waited else "view"


class Player:
    """Plays scenarios on one server. A statement that is not answered within `patience` seconds counts as waiting."""

    def __init__(self, server, patience):
        self._server, self._patience = server, patience

    def play(self, scenario, level):
        self._create(scenario)
        steps = [STEP.match(line.strip()).groups() for line in scenario.steps.strip().splitlines()]
        self._scenario, self._outcome = scenario, Outcome()
        self._aborted, self._pending, self._backlog = set(), {}, defaultdict(list)
        self._sessions = {n: self._session(level, scenario.begin) for n in sorted({s[0] for s in steps})}
        try:
            for number, sql, label in steps:
                self._step(number, sql, label)
            while self._pending:
                self._settle(LOCK_WAIT_SECONDS)
        finally:
            for session in self._sessions.values():
                session.close()
        with self._server.connect("test") as c:
            self._outcome.final = c.query("SELECT id, value FROM t ORDER BY id")
        return self._outcome

    def _create(self, scenario):
        with self._server.connect("test") as c:
            c.query("DROP TABLE IF EXISTS t")
            c.query("CREATE TABLE t (id INT PRIMARY KEY, value INT)")
            c.query("INSERT INTO t VALUES " + ", ".join(map(str, ROWS)))
            for statement in scenario.ddl:
                c.query(statement)

    def _session(self, level, begin):
        session = self._server.connect("test", timeout=4 * LOCK_WAIT_SECONDS)
        session.query(f"SET SESSION TRANSACTION ISOLATION LEVEL {LEVELS[level]}")
        session.query(f"SET SESSION {self._server.engine.lock_wait_timeout} = {LOCK_WAIT_SECONDS}")
        if begin:
            session.query("BEGIN")
        return session

    def _step(self, number, sql, label):
        if number in self._pending:
            if sql == "AWAIT":
                self._sessions[number].answered(2 * LOCK_WAIT_SECONDS)
                self._finish(number)
            else:
                self._backlog[number].append((sql, label))
        elif number in self._aborted:
            self._note(number, sql, label, None)
        elif sql != "AWAIT":
            self._send(number, sql, label)
        self._settle(self._patience if sql in ("COMMIT", "ROLLBACK") or sql.startswith("KILL") or self._aborted else 0)

    def _send(self, number, sql, label):
        session = self._sessions[number]
        sql = sql.replace("timeout", self._server.engine.lock_wait_timeout)
        sql = re.sub(r"\bid(\d)$", lambda m: str(self._sessions[m.group(1)].id), sql)
        self._pending[number] = (sql, label)
        session.send(sql)
        if session.answered(self._patience):
            self._finish(number)
        else:
            self._outcome.waited.add(label or f"{number}: {sql}")
            self._outcome.log.append(f"{number}: {sql} => waits")

    def _settle(self, seconds):
        """Gives those that waited the time to go on, if they can now, and to do what they have in their backlog."""
        for number in list(self._pending):
            if number in self._pending and self._sessions[number].answered(seconds):
                self._finish(number)
            while self._backlog[number] and number not in self._pending:
                self._step(number, *self._backlog[number].pop(0))

    def _finish(self, number):
        sql, label = self._pending.pop(number)
        try:
            result = self._sessions[number].result()
            if isinstance(result, list):
                result = sorted(result)
        except SqlError as e:
            result = f"error {e.code}"
            self._outcome.errors.append(result)
            if not self._scenario.holds:
                self._aborted.add(number)
                self._sessions[number].query("ROLLBACK")
        else:
            if sql == "COMMIT":
                self._outcome.committed.add(int(number))
        self._note(number, sql, label, result)

    def _note(self, number, sql, label, result):
        if label:
            self._outcome.got[label] = result
        self._outcome.log.append(f"{number}: {sql} => {'left out' if result is None else result}")
