"""Restarts of the server in the middle of a comparison, in peace and by SIGKILL, and what must hold after them."""

from collections import Counter

from plans import answer

NEXT = ("select auto_increment from information_schema.tables where table_schema = 'test' and table_name = '{}'")
# What this engine may leave out after a crash, and the part of the values that are left: see docs/mariadb-differences.md.
MOST_LEFT_OUT, PART_LEFT_OUT = 1000, 16


class Restarts:
    """Restarts the server with a chance before each statement. `counted` tells how often, and what was compared."""

    def __init__(self, server, chance):
        self.server, self.chance, self.counted = server, chance, Counter()

    def due(self, rng):
        """None, or "stop" or "kill". Without a chance, the random numbers are those of earlier versions of the test."""
        if not self.chance or rng.random() >= self.chance:
            return None
        return rng.choice(("stop", "kill"))

    def restart(self, way, count):
        """Restarts the server, and returns as many new sessions."""
        self.counted["restarts by " + way] += 1
        (self.server.kill if way == "kill" else self.server.stop)()
        self.server.start()
        return [self.server.connect("test") for _ in range(count)]

    def complaint(self, sessions, tables):
        """Compares the rows of two tables, checks the second one, and reads it by each index."""
        held = [answer(session, f"select * from {table}") for session, table in zip(sessions, tables)]
        if held[0] != held[1]:
            return f"{tables[0]} holds {held[0]}\n{tables[1]} holds {held[1]}"
        checked = sessions[1].query(f"check table {tables[1]} extended")
        self.counted["tables checked after a restart"] += 1
        if "OK" not in str(checked[-1][-1]):
            return f"check table: {checked}"
        return self._index_complaint(sessions[1], tables[1])

    def _index_complaint(self, session, table):
        indexes = {}
        for row in session.query("select index_name, column_name from information_schema.statistics "
                                 f"where table_schema = 'test' and table_name = '{table}' and sub_part is null order by seq_in_index"):
            indexes.setdefault(row[0], []).append(f"`{row[1]}`")
        every = ", ".join(f"`{name}`" for name in indexes)
        for name, columns in indexes.items():
            self.counted["indexes read after a restart"] += 1
            listed = ", ".join(columns)
            by = [answer(session, f"select {listed} from {table} {hint}")
                  for hint in (f"force index (`{name}`)", f"ignore index ({every})")]
            if by[0] != by[1]:
                return f"by {name}: {by[0]}\nwithout: {by[1]}"
        return None

    def numbers(self, sessions, names):
        """The next AUTO_INCREMENT values of two tables."""
        return [session.value(NEXT.format(name)) for session, name in zip(sessions, names)]

    def number_complaint(self, sessions, names, way, before, column, most):
        """Whether the second table's next AUTO_INCREMENT value is allowed by docs/mariadb-differences.md; InnoDB's may be one more after an UPDATE.
        Then both tables continue with the same value. Returns a complaint or None, and whether the comparison can continue."""
        now = self.numbers(sessions, names)
        before, after = int(before), int(now[1])
        greatest = before
        if way == "kill":
            greatest += min(MOST_LEFT_OUT, max(most - before, 0) // PART_LEFT_OUT)
        # A restart forgets reserved values that no row was written with. InnoDB's next value is at most one too great for that.
        held = sessions[1].value(f"select max({column}) from {names[1]}")
        least = min(before, max(int(float(held)) + 1 if held is not None else 1, int(now[0]) - 1))
        self.counted["next values compared after a restart"] += 1
        self.counted["next values that are the same in both after a restart"] += now[0] == now[1]
        # A table that is opened takes the greatest value of its partitions, which the server may have passed over until then.
        as_innodb = after == int(now[0])
        if not (least <= after <= greatest or as_innodb):
            return f"the next value of {names[1]} was {before}, and is {after} after a restart by {way} (InnoDB: {now[0]})", False
        if now[0] != now[1]:
            to = max(map(int, now))
            for session, name in zip(sessions, names):
                answer(session, f"alter table {name} auto_increment = {to}")
            now = self.numbers(sessions, names)
        self.counted["comparisons that ended with a restart"] += now[0] != now[1]
        return None, now[0] == now[1]
