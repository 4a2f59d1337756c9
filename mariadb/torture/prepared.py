"""XA transactions that are prepared when the server dies: they must be there when it is back, and obey."""


class Prepared:
    """Prepares some transactions before each kill; ends most of them after it, and lets some live to the next one."""

    EACH_TIME = 3

    def __init__(self, server, rng):
        self._server, self._random = server, rng
        self._next = 1
        self._waiting = set()
        self._committed = set()
        self.survived = 0

    def create(self):
        with self._server.connect("test") as c:
            c.query("CREATE TABLE prepared (n INT PRIMARY KEY, note VARCHAR(100) NOT NULL, KEY (note))")

    def prepare(self):
        """Returns when all are acknowledged. No preparation is in flight when the server is killed: the server itself
        does not keep its binlog in step with those (it is not crash safe in how it logs XA PREPARE)."""
        for _ in range(self.EACH_TIME):
            n = self._next
            self._next += 1
            with self._server.connect("test") as c:
                c.query(f"XA START 'p{n}'")
                c.query(f"INSERT INTO prepared VALUES ({n}, REPEAT('{n % 10}', {n % 100}))")
                c.query(f"XA END 'p{n}'")
                c.query(f"XA PREPARE 'p{n}'")
            self._waiting.add(n)

    def verify(self):
        """After a restart: complaints about what is prepared and about what was ended earlier. Ends most."""
        wrong = []
        with self._server.connect("test") as c:
            names = {f"p{n}" for n in self._waiting}
            found = {row[3] for row in c.query("XA RECOVER")}
            if found != names:
                wrong.append(f"XA RECOVER lacks {sorted(names - found)} and has besides {sorted(found - names)}")
            self.survived += len(names & found)
            wrong += self._verify_rows(c)
            for n in sorted(self._waiting):
                if f"p{n}" in found and self._random.random() < 0.7:
                    self._end(c, n)
            wrong += self._verify_rows(c)
        return wrong

    def _end(self, session, n):
        if self._random.random() < 0.5:
            session.query(f"XA COMMIT 'p{n}'")
            self._committed.add(n)
        else:
            session.query(f"XA ROLLBACK 'p{n}'")
        self._waiting.remove(n)

    def _verify_rows(self, session):
        rows = {n for n, in session.query("SELECT n FROM prepared")}
        if rows == self._committed:
            return []
        return [f"prepared: {sorted(self._committed - rows)[:5]} were committed and are gone, "
                f"{sorted(rows - self._committed)[:5]} were not committed and are there"]
