"""A small table with two unique keys as a value, the statements that change it, and a search for an order of these statements
that explains what each session was told.

The rows are tuples `(id, text, n)`; `id` and the class of `text` (what the unique key tells apart) are unique unless they are
None. Several sessions ran statements at the same time. Each statement took effect at one moment between its beginning and
its end, and a transaction's changes lock the keys that they touch until it ends. `explain` looks for such an order.
"""

from collections import namedtuple

# What a session did: the statement, its answer (a number of rows, a list of rows, or an error's name), when it was sent and
# when the answer came, and whether it was a transaction of its own.
Done = namedtuple("Done", "verb arguments answer begin end alone")

DUPLICATE, DEADLOCK, TIMEOUT = "duplicate", "deadlock", "timeout"
# States that a search may look at. A history that needs more is reported as not decided.
BUDGET = 400_000


class Undecided(Exception):
    """The search was given up."""


class Rules:
    """What the unique key tells apart (`class_of`), what `=` does (`equal`), and whether the server may name either of two
    duplicates."""

    def __init__(self, class_of, equal=None, either_duplicate=False):
        self._class_of, self._equal, self._either = class_of, equal or class_of, either_duplicate

    def keys(self, row):
        """The unique values of a row."""
        found = [] if row[0] is None else [("id", row[0])]
        return found if row[1] is None else [*found, ("text", self._class_of(row[1]))]

    def duplicates(self, rows, row, but=None):
        """Rows that have a unique value of `row`, in the order in which they are found."""
        found = []
        for key in self.keys(row):
            found += [r for r in rows if r != but and r not in found and key in self.keys(r)]
        return found

    def matching(self, rows, column, value):
        """Rows that a condition on one unique column finds."""
        if column == "id":
            return [r for r in rows if r[0] == value]
        return [r for r in rows if r[1] is not None and self._equal(r[1]) == self._equal(value)]

    def effects(self, rows, done):
        """What a statement may do to `rows` if it gives its answer: pairs of rows that it removes and rows that it adds. Rows
        that it only locks are in both. Nothing if it cannot give that answer."""
        return getattr(self, "_" + done.verb)(rows, done.answer, *done.arguments)

    def _insert(self, rows, answer, *added):
        held = list(rows)
        for row in added:
            if self.duplicates(held, row):
                return [((), ())] if answer == DUPLICATE else []
            held.append(row)
        return [((), added)] if answer == len(added) else []

    def _ignore(self, rows, answer, row):
        if self.duplicates(rows, row):
            return [((), ())] if answer == 0 else []
        return [((), (row,))] if answer == 1 else []

    def _upsert(self, rows, answer, row):
        found = self.duplicates(rows, row)
        if not found:
            return [((), (row,))] if answer == 1 else []
        changed = found if self._either else found[:1]
        return [((r,), ((r[0], r[1], r[2] + 1),)) for r in changed] if answer == 2 else []

    def _replace(self, rows, answer, row):
        found = self.duplicates(rows, row)
        return [(tuple(found), (row,))] if answer == 1 + len(found) else []

    def _delete(self, rows, answer, column, value):
        found = self.matching(rows, column, value)
        return [(tuple(found), ())] if answer == len(found) else []

    def _lock(self, rows, answer, column, value):
        found = self.matching(rows, column, value)
        return [(tuple(found), tuple(found))] if sorted(answer, key=repr) == sorted(found, key=repr) else []

    def _change(self, rows, answer, column, value, number, new):
        """UPDATE that sets the column `number` of the row where `column` is `value`."""
        found = self.matching(rows, column, value)
        if not found:
            return [((), ())] if answer == 0 else []
        row = found[0][:number] + (new,) + found[0][number + 1:]
        if self.duplicates(rows, row, but=found[0]):
            return [((), ())] if answer == DUPLICATE else []
        return [((found[0],), (row,))] if answer == 1 else []


class State(namedtuple("State", "rows owners undo marks")):
    """The table at one moment, with the changes of open transactions in it. `owners` says which session has locked a key;
    `undo` has each session's changes, and `marks` how many of them its savepoint keeps."""

    def undone(self, session, kept=0):
        """The state with a session's changes taken back, all but the first `kept`, with the locks of those."""
        rows, undo = set(self.rows), self.undo[session]
        for removed, added, _ in reversed(undo[kept:]):
            rows = (rows - set(added)) | set(removed)
        return self._of(session, frozenset(rows), undo[:kept])

    def ended(self, session):
        """The state after a commit."""
        return self._of(session, self.rows, ())

    def changed(self, session, removed, added, keys):
        """The state after a statement that removed and added rows, and locked keys."""
        rows = (self.rows - set(removed)) | set(added)
        return self._of(session, rows, (*self.undo[session], (removed, added, keys)))

    def marked(self, session):
        """The state with a savepoint here."""
        return self._replace(marks=_with(self.marks, session, len(self.undo[session])))

    def _of(self, session, rows, undo):
        others = {(key, owner) for key, owner in self.owners if owner != session}
        mine = {(key, session) for _, _, keys in undo for key in keys}
        mark = min(self.marks[session], len(undo)) if undo else 0
        return State(rows, frozenset(others | mine), _with(self.undo, session, undo), _with(self.marks, session, mark))


def _with(values, at, value):
    return values[:at] + (value,) + values[at + 1:]


def after(rules, state, session, done):
    """All states in which a statement may leave the table, if it takes effect in this state and gives its answer."""
    if done.verb == "commit":
        return [state.ended(session)]
    if done.verb == "rollback" or done.answer == DEADLOCK:
        return [state.undone(session)]
    if done.verb == "savepoint":
        return [state.marked(session)]
    if done.verb == "back":
        return [state.undone(session, state.marks[session])]
    if done.answer == TIMEOUT or done.verb == "begin":
        return [state]
    # Without waiting, a session may see what is committed, and its own changes. What it changes must not be locked.
    seen = state
    for other in range(len(state.undo)):
        seen = seen if other == session else seen.undone(other)
    locked = {key for key, owner in state.owners if owner != session}
    states = []
    for removed, added in rules.effects(seen.rows, done):
        keys = frozenset(key for row in (*removed, *added) for key in rules.keys(row))
        if keys & locked:
            continue
        changed = state.changed(session, removed, added, keys) if keys or removed or added else state
        states.append(changed.ended(session) if done.alone else changed)
    return states


def explain(rules, first, histories, last):
    """Whether the sessions' statements (a list for each, in order) have an order in which all answers are right and that leads
    from the rows `first` to the rows `last`. Returns None, or what cannot be explained: the furthest that any order got."""
    start = State(frozenset(first), frozenset(), ((),) * len(histories), (0,) * len(histories))
    stack, seen, furthest = [((0,) * len(histories), start)], set(), (-1, None)
    while stack:
        position, state = stack.pop()
        if (position, state) in seen:
            continue
        seen.add((position, state))
        if len(seen) > BUDGET:
            raise Undecided
        waiting = [(n, histories[n][at]) for n, at in enumerate(position) if at < len(histories[n])]
        if not waiting and state.rows == last:
            return None
        furthest = max(furthest, (sum(position), (position, state)), key=lambda f: f[0])
        earliest_end = min((done.end for _, done in waiting), default=0)
        for n, done in waiting:
            if done.begin <= earliest_end:
                stack += [(_with(position, n, position[n] + 1), s) for s in after(rules, state, n, done)]
    position, state = furthest[1]
    told = [f"an order of {sum(position)} of {sum(map(len, histories))} statements leads to {sorted(state.rows, key=repr)}"]
    told += [f"then session {n} must come next with {h[at]}" for n, (h, at) in enumerate(zip(histories, position)) if at < len(h)]
    return "\n".join([*told, f"at the end the table holds {sorted(last, key=repr)}"])
