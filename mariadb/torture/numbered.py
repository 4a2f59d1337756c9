"""AUTO_INCREMENT: which values statements of all kinds generate, and the table's next value after each, in two engines."""

from collections import Counter

from plans import answer
from restarts import NEXT

TYPES = {"tinyint": 127, "tinyint unsigned": 255, "smallint": 32767, "mediumint unsigned": 16777215, "int": 2147483647,
         "int unsigned": 4294967295, "bigint": 9223372036854775807, "bigint unsigned": 18446744073709551615,
         "float": 16777216, "double": 9007199254740992}
KEYS = ("primary key (id)", "primary key (id)", "primary key (id)", "primary key (id desc)", "key (id)", "unique (id), primary key (v)",
        "primary key (g, id), key (id)", "primary key (id, g)", "key (id, g)")
PARTITIONS = (" partition by hash (id) partitions 3", " partition by key (id) partitions 2",
              " partition by range (id) (partition p0 values less than (10), partition p1 values less than (60), "
              "partition p2 values less than maxvalue)")
MODES = ("STRICT_TRANS_TABLES", "STRICT_TRANS_TABLES", "", "NO_AUTO_VALUE_ON_ZERO", "NO_AUTO_VALUE_ON_ZERO,STRICT_TRANS_TABLES")


class Table:
    """A definition, and statements that fit it. {0} is the table, {1} one to copy from, {2} a directory."""

    def __init__(self, rng, counted):
        self.rng, self.counted = rng, counted
        self.type = rng.choice(list(TYPES))
        self.key = rng.choice(KEYS)
        integer = self.type not in ("float", "double")
        self.partitioned = rng.choice(PARTITIONS) if self.key in ("primary key (id)", "key (id)") and integer and rng.random() < 0.2 else ""
        self.unique = not self.partitioned and rng.random() < 0.6
        self.trigger = rng.random() < 0.1
        self.start = rng.choice(["", "", "", f" auto_increment = {rng.choice([1, 5, 100, TYPES[self.type] - 3])}"])
        counted["type " + self.type] += 1
        counted["key " + self.key] += 1
        counted["partitioned"] += bool(self.partitioned)
        counted["with another unique key"] += self.unique
        counted["with a trigger that writes to another such table"] += self.trigger

    def create(self, name, engine):
        """Statements that create the tables."""
        unique = ", unique (w)" if self.unique else ""
        made = [f"drop table if exists {name}, {name}_log", f"create table {name}_log (n int auto_increment primary key, id double)",
                f"create table {name} (id {self.type} not null auto_increment, g int not null default 1, v int not null default 0, w int, "
                f"{self.key}{unique}) engine={engine}{self.start}{self.partitioned}"]
        if self.trigger:
            made.append(f"create trigger {name}_tr before insert on {name} for each row insert into {name}_log (id) values (new.g), (new.v)")
        return made

    def number(self):
        """A value for the column."""
        rng, most = self.rng, TYPES[self.type]
        kind = rng.random()
        if kind < 0.45:
            return rng.choice(["null", "null", "default"])
        if kind < 0.55:
            return "0"
        if kind < 0.62:
            return str(-rng.randint(1, 20))
        if kind < 0.65:
            return str(most - rng.randint(-1, 8))
        if kind < 0.7:
            return rng.choice(["'7'", "'x'", "2.5", "1e3", str(rng.randint(100, 300))])
        return str(rng.randint(1, 90))

    def row(self):
        """A row. `v` and `w` have few values, so that there are duplicates."""
        rng = self.rng
        return f"({self.number()}, {rng.randint(1, 3)}, {rng.randint(0, 9999)}, {rng.choice(['null', str(rng.randint(1, 40))])})"

    def statement(self):
        """A statement."""
        rng, c, kind = self.rng, self.counted, self.rng.random()

        def named(what, sql):
            c[what] += 1
            return sql

        rows = ", ".join(self.row() for _ in range(rng.choice([1, 1, 2, 3, 4, 7])))
        only = ", ".join(f"({rng.randint(1, 40)}, {rng.randint(0, 9999)})" for _ in range(rng.choice([1, 2, 3, 5])))
        several = "" if rows.count("(") == 1 else " of several rows"
        if kind < 0.22:
            return named("insert" + several, f"insert into {{0}} (id, g, v, w) values {rows}")
        if kind < 0.30:
            return named("insert without the column", f"insert into {{0}} (w, v) values {only}")
        if kind < 0.38:
            return named("insert ignore" + several, f"insert ignore into {{0}} (id, g, v, w) values {rows}")
        if kind < 0.46:
            return named("replace" + several, f"replace into {{0}} (id, g, v, w) values {rows}")
        if kind < 0.55:
            update = rng.choice(["v = v + 1", "w = values(w)", "id = last_insert_id(id)", f"id = {rng.randint(1, 120)}", "id = id + 3"])
            return named("on duplicate key update" + several,
                         f"insert into {{0}} (id, g, v, w) values {rows} on duplicate key update {update}")
        if kind < 0.66:
            verb = rng.choice(["insert", "insert ignore", "replace"])
            chosen = rng.choice(["id, g, v, w", "null, g, v, w", "if(k % 2, id, null), g, v, w", "0, g, v + 10000, null"])
            between = f"k between {rng.randint(1, 9)} and {rng.randint(5, 20)}"
            return named(f"{verb} select", f"{verb} into {{0}} (id, g, v, w) select {chosen} from {{1}} where {between} order by k")
        if kind < 0.70:
            verb = rng.choice(["", "ignore", "replace"])
            return named(f"load data {verb}", f"load data infile '{{2}}/numbers{rng.randint(0, 2)}' {verb} into table {{0}} (id, g, v, w)")
        if kind < 0.76:
            target = rng.choice([f"id = {rng.randint(1, 140)}", f"id = id + {rng.randint(1, 9)}", "id = -id", "w = w + 1"])
            return named("update", f"update {{0}} set {target} where id = {rng.randint(1, 60)}")
        if kind < 0.79:
            return named("delete", f"delete from {{0}} where id {rng.choice(['>', '<'])} {rng.randint(1, 90)}")
        if kind < 0.87:
            return named("transactions", rng.choice(["begin", "begin", "commit", "rollback", "savepoint s", "rollback to s"]))
        if kind < 0.91:
            increment = rng.choice([1, 1, 1, 2, 3, 5, 10])
            return named("steps", f"set auto_increment_increment = {increment}, auto_increment_offset = {rng.choice([1, 1, 2, 3, 7])}")
        if kind < 0.93:
            return named("modes", f"set sql_mode = '{rng.choice(MODES)}'")
        if kind < 0.955 and self.type not in ("float", "double"):  # InnoDB takes the greatest value for one that does not fit
            return named("alter auto_increment", f"alter table {{0}} auto_increment = {rng.choice([0, 1, 5, 50, 100, 130, TYPES[self.type]])}")
        if kind < 0.965:
            return named("alter by copying", "alter table {0} force, algorithm = copy")
        if kind < 0.975:
            return named("truncate", "truncate {0}")
        if kind < 0.985:
            return named("insert_id", f"set insert_id = {rng.randint(1, 100)}")
        return named("flush", "flush tables {0}")


def prepare(session, directory):
    """The table to copy from, and files to load."""
    session.query("create or replace table source (k int primary key, id int, g int, v int, w int)")
    session.query("insert into source select seq, seq * 7 % 90, seq % 3 + 1, seq * 13, if(seq % 4, seq * 2, null) from seq_1_to_20")
    for n, chosen in enumerate(("null, g, v, w", "if(k % 3, null, id), g, v, w", "if(k % 3, 0, id + 40), g, v, w")):
        (directory / f"numbers{n}").unlink(missing_ok=True)
        session.query(f"select {chosen} into outfile '{directory}/numbers{n}' from source where k < 8 order by k")


def settle(sessions, names):
    """The settings with which a comparison begins."""
    for session, engine in zip(sessions, names):
        for sql in ("rollback", "set sql_mode = 'STRICT_TRANS_TABLES', auto_increment_increment = 1, auto_increment_offset = 1",
                    "do last_insert_id(0)",
                    f"set default_storage_engine = {engine}"):
            session.query(sql)


def restart(table, way, sessions, names, restarts):
    """Returns a complaint or None, and whether the comparison can continue."""
    suffixes = ("", "_log")
    before = {s: restarts.numbers(sessions, [f"t_{name}{s}" for name in names])[1] for s in suffixes}
    sessions[:] = restarts.restart(way, 2)
    settle(sessions, names)
    continues = True
    for suffix, column, most in (("", "id", TYPES[table.type]), ("_log", "n", TYPES["int"])):
        pair = [f"t_{name}{suffix}" for name in names]
        complaint = restarts.complaint(sessions, pair)
        if not complaint:
            complaint, same = restarts.number_complaint(sessions, pair, way, before[suffix], column, most)
            continues &= same
        if complaint:
            return complaint, False
    return None, continues


def compare(sessions, names, rng, statements, directory, restarts):
    """Returns a complaint or None, and counts by feature."""
    counted = Counter(tables=1)
    table, done = Table(rng, counted), []
    tables = [f"t_{name}" for name in names]
    settle(sessions, names)
    for steps in zip(*(table.create(name, engine) for name, engine in zip(tables, names))):
        done.append(steps[0])
        answers = [answer(session, sql) for session, sql in zip(sessions, steps)]
        if answers[0] != answers[1]:
            return f"{answers} to\n" + "\n".join(done), counted
        if str(answers[0]).startswith("error"):
            counted["refused definitions"] += 1
            return None, counted
    story = lambda: "\nafter\n" + ";\n".join(done[1:3] + done[3:][-30:])  # noqa: E731
    for _ in range(statements):
        if way := restarts.due(rng):
            done.append(f"-- restart by {way}")
            complaint, continues = restart(table, way, sessions, names, restarts)
            if complaint or not continues:
                return complaint and complaint + story(), counted
        sql = table.statement()
        done.append(sql)
        answers = [answer(session, sql.format(name, "source", directory)) for session, name in zip(sessions, tables)]
        counted["errors"] += str(answers[0]).startswith("error")
        wanted = [] if sql.startswith("alter") else [answers]  # how many rows were copied is each engine's own affair
        for what in (NEXT, NEXT.replace("{}", "{}_log"), "select last_insert_id()", "select * from {}"):
            wanted.append([answer(session, what.format(name)) for session, name in zip(sessions, tables)])
        for one, other in wanted:
            if one != other:
                return f"{names[0]}: {one}\n{names[1]}: {other}" + story(), counted
    checked = sessions[1].query(f"check table {tables[1]}")
    return None if "OK" in str(checked[-1][-1]) else f"check table: {checked}", counted
