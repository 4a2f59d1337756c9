"""Random tables whose keys lose information (column prefixes in every role, every collation), and queries that are answered by
every plan that the optimizer can be made to choose. All plans must give the answer that a table scan gives in InnoDB and in the
engine under test."""

import re
from collections import Counter

from harness.wire import SqlError

PIECES = ["a", "a", "b", "A", "B", "ab", "abc", "á", "à", "ä", "Ä", "ss", "ß", "æ", "ae", "ch", "c", "h", "z", "ñ", "n", "ĳ", "ij",
          "ﷺ", "ﷲ", "เก", "กเ", "ก", "中", "文", "あ", "ア", "ｱ", "\t", "!", "~", "0", "9", "10", "ﬁ", "fi", "İ", "ı", "i", "I", "ǆ",
          "😀", "Å", "å", "aa", "ö", "õ", "ы", "Ы", "e\u0301", "é", "\u00ad", "\u200b", " ", " ", "  "]

# Whose own functions contradict each other, so that there is no right answer: see docs/mariadb.md.
CONTRADICTORY = ("latin2_czech_cs",)

SWITCHES = {
    "defaults": "default",
    "no index merge": "index_merge=off",
    "union": "index_merge=on,index_merge_sort_union=off,index_merge_intersection=off",
    "sort union": "index_merge=on,index_merge_union=off,index_merge_sort_union=on",
    "intersection": "index_merge=on,index_merge_intersection=on,index_merge_sort_intersection=off",
    "sort intersection": "index_merge=on,index_merge_intersection=off,index_merge_sort_intersection=on",
    "mrr": "mrr=on,mrr_cost_based=off,mrr_sort_keys=off",
    "mrr with sorted keys": "mrr=on,mrr_cost_based=off,mrr_sort_keys=on,join_cache_bka=on,optimize_join_buffer_size=off",
    "mrr without condition pushdown": "mrr=on,mrr_cost_based=off,index_condition_pushdown=off",
    "no condition pushdown": "index_condition_pushdown=off",
    "no extended keys": "extended_keys=off,rowid_filter=off",
    "weedout": "semijoin=on,materialization=off,firstmatch=off,loosescan=off,exists_to_in=off",
}

# What EXPLAIN says of a plan, in its columns "type" and "Extra".
TYPES = ("index_merge", "range", "ref", "ref_or_null", "eq_ref", "const", "index", "ALL", "fulltext", "system")
EXTRAS = ("Using union", "Using sort_union", "Using intersect", "Using sort_intersect", "Using index condition", "Using index",
          "Rowid-ordered scan", "Key-ordered scan", "Key-ordered Rowid-ordered scan", "Using filesort", "Start temporary",
          "Using index for group-by", "Using rowid filter", "BKA join", "BKAH join")


def collations(session):
    """All pairs of a character set and a collation, in one order for ever."""
    rows = session.query("select character_set_name, full_collation_name from "
                         "information_schema.collation_character_set_applicability where full_collation_name <> 'binary'")
    return sorted(row for row in rows if row[1] not in CONTRADICTORY)


def quoted(text):
    """A literal of SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


class Table:
    """A definition, its rows, and what can be asked of it."""

    def __init__(self, rng, pair, pairs):
        self.rng, self.pair = rng, pair
        self.counted = Counter()
        self.columns = {"id": "int not null", "x": "int", "y": "int"}
        self.texts = []
        for n in range(rng.randint(2, 3)):
            self.texts.append(f"t{n}")
            self.columns[f"t{n}"] = self._text_type(pair if n == 0 else rng.choice([pair, pair, rng.choice(pairs)]))
        self.columns["b"] = rng.choice(["blob", "varbinary(30)", "binary(7)"])
        self.bases = [self._string() for _ in range(rng.randint(5, 12))]
        self.keys = {}
        self._choose_keys()
        self.terms = []  # of the question that was made last
        self.partitioned = self._may_be_partitioned() and rng.random() < 0.3
        self.rows = rng.choice([120, 250, 400, 400, 1500])

    def _text_type(self, pair):
        # CHAR without padding has no right answers: the server pads it where it compares keys, and not in expressions.
        char = "varchar(12)" if "nopad" in pair[1] else "char(12)"
        kind = self.rng.choice(["varchar(30)", "varchar(30)", "varchar(300)", char, "text", "mediumtext"])
        null = "" if self.rng.random() < 0.6 else " not null"
        return f"{kind} character set {pair[0]} collate {pair[1]}{null}"

    def _string(self):
        many = self.rng.choice([1, 1, 2, 3, 6])
        return "".join(self.rng.choice(PIECES) for _ in range(self.rng.randint(0, 4))) * many

    def _part(self, column, role):
        """A column as a key has it: most of those that can be are cut."""
        kind, cut = self.columns[column].split("(")[0].split()[0], ""
        must = kind in ("text", "mediumtext", "blob")
        if must or (kind in ("varchar", "char", "varbinary", "binary") and self.rng.random() < 0.7):
            cut = f"({self.rng.choice([1, 2, 3, 5])})"
            self.counted[f"{role}: beginning of {kind}"] += 1
        elif column in self.texts or column == "b":
            self.counted[f"{role}: whole {kind}"] += 1
        return f"{column}{cut}{' desc' if self.rng.random() < 0.15 else ''}"

    def _choose_keys(self):
        rng = self.rng
        cuttable = [*self.texts, "b"]
        kind = rng.choice(["id", "text id", "id text", "text", "hidden"])
        if kind != "hidden":
            parts = {"id": ["id"], "text": [rng.choice(cuttable)], "text id": [rng.choice(cuttable), "id"],
                     "id text": ["id", rng.choice(cuttable)]}[kind]
            for p in parts:
                if not self.columns[p].endswith("not null"):
                    self.columns[p] += " not null"
            self._add("primary key", parts)
        else:
            self.counted["primary: hidden"] += 1
        for column in ("x", "y", self.texts[0]):
            if column == self.texts[0] or rng.random() < 0.8:
                self._add("key", [column])
        for _ in range(rng.randint(2, 4)):
            role = "unique key" if rng.random() < 0.15 else "key"
            parts = rng.sample(["x", "y", *cuttable], rng.randint(1, 3))
            self._add(role, parts + (["id"] if role == "unique key" and rng.random() < 0.8 else []))

    def _add(self, role, parts):
        name = "PRIMARY" if role == "primary key" else f"k{len(self.keys)}"
        word = {"primary key": "primary", "unique key": "unique", "key": "secondary"}[role]
        made = [self._part(p, word) for p in parts]
        if len([p for p in made if "(" in p]) and len(made) > 1:
            self.counted[f"{word}: beginnings among several columns"] += 1
        self.keys[name] = (role, parts, made)

    def _may_be_partitioned(self):
        return all("id" in parts or role == "key" for role, parts, _ in self.keys.values())

    def definition(self):
        """Columns and keys."""
        parts = [f"{name} {kind}" for name, kind in self.columns.items()]
        for name, (role, _, made) in self.keys.items():
            parts.append(f"{role} {'' if name == 'PRIMARY' else name} ({', '.join(made)})")
        return ", ".join(parts)

    def create(self, name, engine):
        """A statement."""
        partitions = " partition by hash (id) partitions 3" if self.partitioned else ""
        return f"create table {name} ({self.definition()}) engine={engine}{partitions}"

    def value(self, column):
        """A literal, such as rows have, or close to one."""
        rng, kind = self.rng, self.columns[column]
        if column in ("x", "y"):
            return str(rng.randint(0, 9))
        if column == "id":
            return str(rng.randint(0, self.rows))
        text = rng.choice(self.bases)
        if rng.random() < 0.5:
            text += rng.choice(PIECES)
        if rng.random() < 0.15:
            text = text[:rng.randint(0, 3)]
        text = text[:7 if kind.startswith(("char", "binary")) else 24]
        return f"x'{text.encode()[:7].hex()}'" if column == "b" else quoted(text)

    def inserts(self):
        """Statements that fill the table: those that some key refuses are left out."""
        rows = []
        for n in range(self.rows):
            row = [str(n)]
            for name, kind in list(self.columns.items())[1:]:
                null = not kind.endswith("not null") and self.rng.random() < 0.08
                row.append("null" if null else self.value(name))
            rows.append("(" + ", ".join(row) + ")")
        step = 100
        return ["insert ignore into {} values " + ", ".join(rows[n:n + step]) for n in range(0, len(rows), step)]

    def condition(self, column):
        """Of a column: a range that an index could be read by."""
        rng, value = self.rng, lambda: self.value(column)
        forms = [lambda: f"{column} = {value()}", lambda: f"{column} in ({value()}, {value()}, {value()})",
                 lambda: f"{column} between {value()} and {value()}",
                 lambda: f"{column} {rng.choice(['<', '<=', '>', '>='])} {value()}",
                 lambda: f"{column} > {value()} and {column} <= {value()}", lambda: f"{column} is null or {column} = {value()}"]
        if column in self.texts:
            forms += [lambda: f"{column} like concat({quoted(rng.choice(self.bases)[:3])}, '%')"] * 2
        self.terms.append("(" + rng.choice(forms)() + ")")
        return self.terms[-1]

    def first_columns(self):
        """Of each key: what a range may be on."""
        return {name: parts[0] for name, (_, parts, _) in self.keys.items()}

    def where(self):
        """A condition on several keys, of which plans can be made that read them all, and their names."""
        rng, first = self.rng, self.first_columns()
        self.terms = []
        single = [name for name, (role, parts, _) in self.keys.items() if role == "key" and len(parts) == 1]
        if len(single) > 1 and rng.random() < 0.25:  # what the server intersects while it reads
            names = rng.sample(single, rng.randint(2, len(single)))
            word = rng.choice([" and ", " and ", " or "])
            return word.join(f"{first[name]} = {self.value(first[name])}" for name in names), names
        names = rng.sample(sorted(first), min(len(first), rng.randint(1, 3)))
        terms = []
        for name in names:
            parts = self.keys[name][1]
            term = self.condition(parts[0])
            if len(parts) > 1 and rng.random() < 0.4:
                term = f"({term} and {self.condition(parts[1])})"
            terms.append(term)
        word = rng.choice([" or ", " or ", " and "])
        text = word.join(terms)
        if rng.random() < 0.2:
            text = f"({text}) and {self.condition(rng.choice(self.texts))}"
        return text, names


def answer(session, sql):
    """Rows without an order, the number of changed rows, or the number of an error."""
    try:
        result = session.query(sql)
    except SqlError as error:
        return f"error {error.code}"
    return sorted(map(repr, result)) if isinstance(result, list) else result


class Plans:
    """One pair of tables in two engines: `ask` compares the answers to random questions."""

    def __init__(self, table, sessions, engines):
        self.table, self.sessions, self.engines = table, sessions, engines
        self.names = [f"p_{e}" for e in engines]
        self.counted = Counter()
        self.everything = ", ".join([*table.columns][:3] + [f"hex({c})" for c in [*table.columns][3:]])

    def prepare(self):
        """Makes and fills the tables: a complaint, or None. Where neither engine takes the definition there is nothing to ask."""
        made = []
        for session, name, engine in zip(self.sessions, self.names, self.engines):
            session.query("rollback")
            session.query(f"drop table if exists {name}")
            made.append(answer(session, self.table.create(name, engine)))
        if made[0] != made[1]:
            return f"create: {made}"
        if isinstance(made[0], str):
            self.counted["refused by both"] += 1
            self.table = None
            return None
        for sql in self.table.inserts():
            done = [answer(s, sql.format(n)) for s, n in zip(self.sessions, self.names)]
            if done[0] != done[1]:
                return f"insert: {done}\n{sql}"
        for session, name in zip(self.sessions, self.names):
            session.query(f"analyze table {name}")
        return self.same_rows()

    def same_rows(self):
        """A complaint if the tables do not hold the same."""
        held = [answer(s, f"select {self.everything} from {n}") for s, n in zip(self.sessions, self.names)]
        return None if held[0] == held[1] else f"innodb holds {held[0]}\n{self.engines[1]} holds {held[1]}"

    def explain(self, sql):
        """Counts what kind of plan the engine under test gets."""
        try:
            rows = self.sessions[1].query(sql)
        except SqlError:
            return
        for row in rows:
            kind, extra = str(row[3]).split("|")[0], str(row[-1])
            if kind in TYPES:
                self.counted["type " + kind] += 1
            for word in EXTRAS:
                if word in extra and not (word == "Using index" and "Using index " in extra):
                    self.counted["extra " + word] += 1

    def question(self):
        """SQL with `{table}` and `{hint}`, and the keys that it is about."""
        rng, table = self.table.rng, self.table
        where, names = table.where()
        kind = rng.random()
        some = rng.choice(["x", "y", "id"])
        if kind < 0.35:
            return f"select id, x, y, {', '.join(f'hex({t})' for t in table.texts)} from {{table}} {{hint}} where {where}", names
        if kind < 0.55:
            return f"select {some} from {{table}} {{hint}} where {where}", names
        if kind < 0.65:
            return f"select count(*), sum(id), max({some}) from {{table}} {{hint}} where {where}", names
        if kind < 0.75:
            order = f"order by hex({some}), {some} limit 1000"
            return f"select {some}, hex({some}) from {{table}} {{hint}} where {where} {order}", names
        if kind < 0.8:
            return f"select {some}, count(*), min(id), max(id) from {{table}} {{hint}} where {where} group by {some}", names
        if kind < 0.92:
            column = rng.choice(["x", *table.texts])
            on = [name for name, first in table.first_columns().items() if first == column]
            join = f"{{table}} p ignore index ({self.all_keys()}) straight_join {{table}} q {{hint}} on q.{column} = p.{column}"
            return f"select count(*), sum(p.id), sum(q.id) from {join} where p.id % 17 = 3", on or names
        return (f"select id from {{table}} {{hint}} where x in (select x from {{table}} where {where}) "
                f"and y in (select y from {{table}} where id % 7 = 2)"), names

    def all_keys(self):
        """The names of all keys."""
        return ", ".join(self.table.keys)

    def ask(self):
        """Asks one question in every way: a complaint, or None."""
        sql, names = self.question()
        scan = sql.replace("{hint}", f"ignore index ({self.all_keys()})")
        expected = answer(self.sessions[0], scan.format(table=self.names[0]))
        found = answer(self.sessions[1], scan.format(table=self.names[1]))
        if expected != found:
            return f"innodb answers {expected}\n{self.engines[1]} answers {found}\nto {scan}"
        self.counted["questions"] += 1
        for name, switch in SWITCHES.items():
            for hint in ("", f"force index ({', '.join(names)})"):
                complaint = self.ask_by(sql, hint, name, switch, expected)
                if complaint:
                    return complaint
        return None

    def ask_by(self, sql, hint, name, switch, expected):
        """Asks by one plan."""
        level = 8 if "sorted keys" in name else 6 if name == "mrr" else 2
        setting = f"set statement optimizer_switch='{switch}', join_cache_level={level} for "
        mine = sql.format(table=self.names[1], hint=hint)
        found = answer(self.sessions[1], setting + mine)
        self.explain(setting + "explain " + mine)
        self.counted["answers"] += 1
        self.counted["switch " + name] += 1
        if found == expected:
            return None
        # Each engine has its own costs: so the key that the engine under test took is one of these.
        hints = [hint, *(f"force index ({key})" for key in self.table.keys)]
        theirs = [answer(self.sessions[0], setting + sql.format(table=self.names[0], hint=h)) for h in hints]
        if found in theirs:
            self.counted["answers on which InnoDB agrees, by the same key, and its own table scan does not"] += 1
            return None
        if not all(self.has_one_answer(term, "", setting) for term in self.table.terms):
            self.counted["answers to what InnoDB's plans contradict each other on"] += 1
            return None
        return (f"a table scan finds {expected}\n{self.engines[1]} answers {found}\ninnodb answers {theirs[0]}\n"
                f"to {setting}{sql} with {hint}")

    def change(self):
        """An UPDATE or DELETE that finds its rows by several keys: a complaint, or None."""
        rng = self.table.rng
        where, names = self.table.where()
        switch = rng.choice(list(SWITCHES.values()))
        hint = "" if rng.random() < 0.5 else f"force index ({', '.join(names)})"
        column = rng.choice(["y", *self.table.texts])
        # Which of several rows gets a unique value depends on the order in which they are visited.
        unique = any(role == "unique key" and "y" in parts for role, parts, _ in self.table.keys.values())
        order = " order by id" if unique or rng.random() < 0.3 else ""
        sql = rng.choice([
            f"update ignore {{table}} {hint} set y = y + 1 where {where}{order}",
            f"update {{table}} {hint} set {column} = {self.table.value(column)} where {where} order by id",
            f"delete from {{table}} where {where}",
            f"delete from {{table}} where {where} order by y + 0, id limit {rng.choice([3, 20, 1000])}",
            f"update {{table}} p {hint}, (select 3 as three) d set p.x = d.three where {where}" if not self.x_is_unique() else
            f"delete p from {{table}} p {hint}, (select 3 as three) d where {where}"])
        setting = f"set statement optimizer_switch='{switch}' for "
        # InnoDB may scan the table for the whole condition where the other engine merges what keys give for its terms.
        if not all(self.has_one_answer(term, hint, setting) for term in (where, *self.table.terms)):
            self.counted["changes left out, as InnoDB's plans contradict each other"] += 1
            return None
        keep = rng.random() < 0.4
        done = []
        level = rng.choice(["read committed", "repeatable read"])
        for session, table in zip(self.sessions, self.names):
            session.query(f"set transaction isolation level {level}")
            session.query("begin")
            done.append(answer(session, setting + sql.format(table=table)))
        complaint = f"innodb {done[0]}, {self.engines[1]} {done[1]}" if done[0] != done[1] else self.same_rows()
        if complaint and any(self.loses_rows_by_beginning(term) for term in self.table.terms):
            for session in self.sessions:
                session.query("rollback")
            self.counted["changes left out, as a range on the beginning of a column loses rows"] += 1
            return None
        for session in self.sessions:
            session.query("commit" if keep else "rollback")
        self.counted["changes"] += 1
        return complaint and f"{complaint}\nafter {setting}{sql} at {level}"

    def loses_rows_by_beginning(self, term):
        """Whether rows match a term, and the beginning of their text, as some key has it, is not in the range of the beginnings of
        what it is compared with. Then the server loses them when it reads that range, with any engine."""
        column = re.match(r"\((t\d+) (?!like)", term)
        if not column:
            return False
        lengths = {length[1] for _, parts, made in self.table.keys.values() for part, cut in zip(parts, made)
                   if part == column[1] and (length := re.search(r"\((\d+)\)", cut))}
        for length in lengths:
            cut = re.sub(rf"\b{column[1]}\b|'(?:[^'\\]|''|\\.)*'", lambda m: f"left({m[0]}, {length})", term)
            cut = re.sub(r" ([<>]) ", r" \1= ", cut)
            sql = f"select count(*) from {self.names[0]} ignore index ({self.all_keys()}) where {term} and not ({cut})"
            if answer(self.sessions[0], sql) != ["(0,)"]:
                return True
        return False

    def has_one_answer(self, where, hint, setting):
        """Whether InnoDB finds the same rows by each key as without."""
        sql = f"select id from {self.names[0]} {{}} where {where}"
        expected = answer(self.sessions[0], sql.format(f"ignore index ({self.all_keys()})"))
        hints = ["", hint, *(f"force index ({name})" for name in self.table.keys)]
        return all(answer(self.sessions[0], setting + sql.format(h)) == expected for h in hints)

    def x_is_unique(self):
        """Whether a key refuses rows with the same value in that column."""
        return any(role == "unique key" and "x" in parts for role, parts, _ in self.table.keys.values())

    def handler(self):
        """Reads by HANDLER ... READ on a key, forward and back: a complaint, or None."""
        rng, table = self.table.rng, self.table
        if table.partitioned:
            return None
        name, (_, parts, _) = rng.choice(list(table.keys.items()))
        story = ["handler {} open as h"]
        for _ in range(rng.randint(4, 14)):
            kind, limit = rng.random(), rng.choice(["", "", f" limit {rng.choice([2, 3, 50, 1000])}"])
            if kind < 0.25:
                values = ", ".join(table.value(p) for p in parts[:rng.randint(1, len(parts))])
                story.append(f"handler h read `{name}` {rng.choice(['=', '<=', '>=', '<', '>'])} ({values}){limit}")
            else:
                story.append(f"handler h read `{name}` {rng.choice(['next', 'prev', 'next', 'prev', 'first', 'last'])}{limit}")
        try:
            for n, sql in enumerate(story):
                done = []
                for session, t in zip(self.sessions, self.names):
                    try:
                        done.append(session.query(sql.format(t)))
                    except SqlError as error:
                        done.append(f"error {error.code}")
                self.counted["handler reads"] += 1
                if done[0] == done[1]:
                    continue
                if self.same_keys(name, *done):
                    self.counted["handler reads that give rows with the same key in another order"] += 1
                    return None  # what is read next depends on the row that was read last
                return f"innodb {done[0]}\n{self.engines[1]} {done[1]}\nto the last of\n" + ";\n".join(story[:n + 1])
            return None
        finally:
            for session in self.sessions:
                answer(session, "handler h close")

    def same_keys(self, name, *answers):
        """Whether two answers have the same number of rows, and these have, one by one, the same values in a key. Where the
        primary key has only the beginning of a column that the key has, too, Kingtide sorts rows with the same key by that, and
        InnoDB does not."""
        _, parts, made = self.table.keys[name]
        if not all(isinstance(a, list) for a in answers) or len(answers[0]) != len(answers[1]):
            return False
        equal = []
        for column, part in zip(parts, made):
            length = re.search(r"\((\d+)\)", part)
            one, two = (f"left({t}.{column}, {length[1]})" if length else f"{t}.{column}" for t in "pq")
            equal.append(f"{one} <=> {two}")
        table = self.names[0]
        # Compared in the list of what is selected, so that no key is used for it.
        sql = f"select {' and '.join(equal)} from {table} p, {table} q where p.id = {{}} and q.id = {{}}"
        pairs = [(a[0], b[0]) for a, b in zip(*answers) if a != b]
        return all(answer(self.sessions[0], sql.format(*ids)) == ["(1,)"] for ids in pairs)

    def check(self):
        """A complaint if CHECK TABLE has one."""
        checked = self.sessions[1].query(f"check table {self.names[1]} extended")
        return None if "OK" in str(checked[-1][-1]) else f"check table: {checked}"


def compare(sessions, engines, rng, pair, pairs, questions):
    """One pair of tables: a complaint or None, and what was counted."""
    table = Table(rng, pair, pairs)
    plans = Plans(table, sessions, engines)
    story = table.create("t", "...")
    complaint = plans.prepare()
    steps = [plans.ask] * questions + [plans.change] * (questions // 2) + [plans.handler] * (questions // 2)
    rng.shuffle(steps)
    if plans.table:
        for step in [*steps, plans.same_rows, plans.check]:
            if complaint:
                break
            complaint = step()
        plans.counted.update(table.counted)
        plans.counted["collation " + pair[1]] += 1
        plans.counted["partitioned tables"] += table.partitioned
        plans.counted["tables"] += 1
    return complaint and f"{complaint}\nwith {story}", plans.counted
