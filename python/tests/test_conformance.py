"""Runs the conformance table, each case in memtables and in tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import table

import kingtide

Answer = list[bytes]
CASES = table.read()


def optional(value: bytes | None) -> bytes:
    return b"-" if value is None else b"=" + value


def from_optional(word: bytes) -> bytes | None:
    return word[1:] if word.startswith(b"=") else None


def one(value: bytes | None) -> Answer:
    return [b"none"] if value is None else [b"value", value]


def bounds(lower: bytes, upper: bytes) -> dict[str, bytes | None]:
    """The slice of a range: the smallest key behind a key is that key with a zero byte."""
    ends = {b"[": (b"", b"\0"), b"(": (b"\0", b""), b"*": (None, None)}
    below, above = ends[lower[:1]][0], ends[upper[:1]][1]
    return {
        "start": None if below is None else lower[1:] + below,
        "stop": None if above is None else upper[1:] + above,
    }


class World:
    """A case's directory, its database, and the handles by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db: Any = None
        self.families: dict[str, Any] = {}
        self.batches: dict[str, kingtide.Batch] = {}
        self.snapshots: dict[str, kingtide.Snapshot] = {}
        self.transactions: dict[str, kingtide.Transaction] = {}

    def flush(self) -> None:
        if self.db is not None:
            try:
                self.db.flush_all()
            except kingtide.ClosedError:
                pass

    def perform(self, operation: list[bytes]) -> Answer:
        verb: Callable[..., Answer | None] = getattr(self, "do_" + operation[0].decode())
        try:
            answer = verb(*operation[1:])
        except kingtide.KingtideError as error:
            return [b"error", error.kind.encode()]
        return [b"ok"] if answer is None else answer

    def family(self, name: bytes) -> Any:
        return self.families[name.decode()]

    def target(self, name: bytes, family: bytes) -> tuple[Any, dict[str, Any]]:
        """The object that takes a write, and the arguments that name its family."""
        found = self.batches.get(name.decode()) or self.transactions.get(name.decode())
        if found is not None:
            return found, {"family": self.family(family)}
        return self.family(family), {}

    def view(self, name: bytes, family: bytes) -> tuple[Any, dict[str, Any]]:
        """The object that is read, and the arguments that say of what and when."""
        if name.decode() in self.transactions:
            return self.transactions[name.decode()], {"family": self.family(family)}
        snapshot = self.snapshots.get(name.decode())
        return self.family(family), {} if snapshot is None else {"snapshot": snapshot}

    def release(self) -> None:
        self.families, self.batches, self.snapshots, self.transactions = {}, {}, {}, {}
        if self.db is not None:
            self.db.close()
        self.db = None

    @staticmethod
    def options(words: tuple[bytes, ...]) -> dict[str, Any]:
        return dict(word.decode().split("=", 1) for word in words)

    def do_open(self, *options: bytes) -> None:
        self.release()
        self.db = kingtide.Db(self.path, **self.options(options))
        self.families["default"] = self.db

    def do_close(self) -> None:
        self.db.close()

    def do_flush(self) -> None:
        self.db.flush_all()

    def do_compact(self) -> None:
        self.db.compact()

    def do_sync(self) -> None:
        self.db.sync()

    def do_put(self, target: bytes, family: bytes, key: bytes, value: bytes) -> None:
        found, of = self.target(target, family)
        found.put(key, value, **of)

    def do_put_ttl(self, target: bytes, family: bytes, key: bytes, value: bytes, ms: bytes) -> None:
        found, of = self.target(target, family)
        found.put(key, value, ttl=int(ms) / 1000, **of)

    def do_put_until(self, target: bytes, family: bytes, key: bytes, value: bytes, ms: bytes) -> None:
        found, of = self.target(target, family)
        found.put(key, value, expires_at_ms=int(ms), **of)

    def do_put_repeated(self, target: bytes, family: bytes, key: bytes, unit: bytes, times: bytes) -> None:
        self.do_put(target, family, key, unit * int(times))

    def do_delete(self, target: bytes, family: bytes, key: bytes) -> None:
        found, of = self.target(target, family)
        found.delete(key, **of)

    def do_single_delete(self, target: bytes, family: bytes, key: bytes) -> None:
        found, of = self.target(target, family)
        found.single_delete(key, **of)

    def do_delete_range(self, target: bytes, family: bytes, start: bytes, end: bytes) -> None:
        found, of = self.target(target, family)
        found.delete_range(start, end, **of)

    def do_delete_prefix(self, target: bytes, family: bytes, prefix: bytes) -> None:
        found, of = self.target(target, family)
        found.delete_prefix(prefix, **of)

    def do_compare_and_swap(self, family: bytes, key: bytes, expected: bytes, desired: bytes) -> Answer:
        swapped, found = self.family(family).compare_and_swap(key, from_optional(expected), from_optional(desired))
        return [b"swapped"] if swapped else [b"found", optional(found)]

    def do_get(self, view: bytes, family: bytes, key: bytes) -> Answer:
        found, of = self.view(view, family)
        return one(found.get(key, **of))

    def do_contains(self, view: bytes, family: bytes, key: bytes) -> Answer:
        found, of = self.view(view, family)
        return [b"true" if found.contains(key, **of) else b"false"]

    def do_multi_get(self, view: bytes, family: bytes, *keys: bytes) -> Answer:
        found, of = self.view(view, family)
        return [b"values", *map(optional, found.multi_get(list(keys), **of))]

    @staticmethod
    def entries(entries: Any) -> Answer:
        return [b"entries", *(part for entry in entries for part in entry)]

    def do_range(self, view: bytes, family: bytes, direction: bytes, lower: bytes, upper: bytes) -> Answer:
        found, of = self.view(view, family)
        if self.family(family).order != "bytewise":
            # Other orders know no "smallest key behind", so only ranges of a slice's form can be asked for.
            assert lower[:1] in (b"*", b"[") and upper[:1] in (b"*", b"(", b"[")
            last = upper[1:] if upper[:1] == b"[" else None
            stop = None if last is not None or upper == b"*" else upper[1:]
            start = None if lower == b"*" else lower[1:]
            every = list(found.items(start, stop, **of))
            if last is not None:
                keys = [key for key, _ in found.items(**of)]
                every = [e for e in every if keys.index(e[0]) <= keys.index(last)]
            return self.entries(every if direction == b"forward" else reversed(every))
        return self.entries(found.items(**bounds(lower, upper), reverse=direction == b"backward", **of))

    def do_prefix(self, view: bytes, family: bytes, direction: bytes, prefix: bytes) -> Answer:
        found, of = self.view(view, family)
        return self.entries(found.items(prefix=prefix, reverse=direction == b"backward", **of))

    @staticmethod
    def entry(entries: Any) -> Answer:
        found = next(entries, None)
        return [b"none"] if found is None else [b"entry", *found]

    def do_first(self, view: bytes, family: bytes) -> Answer:
        found, of = self.view(view, family)
        return self.entry(found.items(**of))

    def do_last(self, view: bytes, family: bytes) -> Answer:
        found, of = self.view(view, family)
        return self.entry(found.items(reverse=True, **of))

    def do_seek(self, view: bytes, family: bytes, key: bytes) -> Answer:
        found, of = self.view(view, family)
        return self.entry(found.items(key, **of))

    def do_seek_for_prev(self, view: bytes, family: bytes, key: bytes) -> Answer:
        found, of = self.view(view, family)
        if (exact := found.get(key, **of)) is not None:
            return [b"entry", key, exact]
        return self.entry(found.items(None, key, reverse=True, **of))

    def do_length(self, view: bytes, family: bytes, key: bytes) -> Answer:
        found, of = self.view(view, family)
        reader = found.reader(key, **of)
        return [b"none"] if reader is None else [b"count", str(len(reader)).encode()]

    def do_read_at(self, view: bytes, family: bytes, key: bytes, offset: bytes, size: bytes) -> Answer:
        found, of = self.view(view, family)
        try:
            with kingtide.open_value(found, key, **of) as file:
                file.seek(int(offset))
                return [b"value", file.read(int(size))]
        except KeyError:
            return [b"none"]

    def do_batch(self, name: bytes) -> None:
        self.batches[name.decode()] = self.db.batch()

    def do_batch_clear(self, name: bytes) -> None:
        self.batches[name.decode()].clear()

    def do_batch_count(self, name: bytes) -> Answer:
        return [b"count", str(len(self.batches[name.decode()])).encode()]

    def do_write(self, name: bytes) -> None:
        self.batches[name.decode()].write()

    def do_snapshot(self, name: bytes) -> None:
        self.snapshots[name.decode()] = self.db.snapshot()

    def do_name_snapshot(self, handle: bytes, name: bytes) -> None:
        self.snapshots[handle.decode()] = self.db.create_named_snapshot(name.decode())

    def do_named_snapshot(self, handle: bytes, name: bytes) -> None:
        self.snapshots[handle.decode()] = self.db.named_snapshot(name.decode())

    def do_drop_named_snapshot(self, name: bytes) -> None:
        self.db.drop_named_snapshot(name.decode())

    def do_snapshot_names(self) -> Answer:
        return [b"names", *(name.encode() for name in self.db.snapshot_names())]

    def do_free_snapshot(self, name: bytes) -> None:
        self.snapshots.pop(name.decode()).release()

    def do_create_family(self, handle: bytes, name: bytes, *options: bytes) -> None:
        self.families[handle.decode()] = self.db.create_family(name.decode(), **self.options(options))

    def do_family(self, handle: bytes, name: bytes) -> None:
        self.families[handle.decode()] = self.db.family(name.decode())

    def do_clone_family(self, handle: bytes, source: bytes, name: bytes) -> None:
        self.families[handle.decode()] = self.db.clone_family(source.decode(), name.decode())

    def do_drop_family(self, name: bytes) -> None:
        self.db.drop_family(name.decode())

    def do_rename_family(self, old: bytes, new: bytes) -> None:
        self.db.rename_family(old.decode(), new.decode())

    def do_families(self) -> Answer:
        return [b"names", *(name.encode() for name in self.db.families())]

    def do_family_name(self, family: bytes) -> Answer:
        return [b"text", self.family(family).name.encode()]

    def do_family_order(self, family: bytes) -> Answer:
        return [b"text", self.family(family).order.encode()]

    def do_family_option(self, family: bytes, name: bytes) -> Answer:
        return [b"text", self.family(family).option(name.decode()).encode()]

    def do_set_family_option(self, family: bytes, name: bytes, value: bytes) -> None:
        self.family(family).set_option(name.decode(), value.decode())

    def do_set_option(self, name: bytes, value: bytes) -> None:
        self.db.set_db_option(name.decode(), value.decode())

    def do_begin(self, name: bytes, level: bytes, *flags: bytes) -> None:
        self.transactions[name.decode()] = self.db.begin(
            level.decode(),
            locking=b"locking" in flags,
            read_only=b"read_only" in flags,
            lock_timeout=0 if b"no_wait" in flags else None,
        )

    def txn(self, name: bytes) -> kingtide.Transaction:
        return self.transactions[name.decode()]

    def do_commit(self, name: bytes) -> None:
        self.txn(name).commit()

    def do_rollback(self, name: bytes) -> None:
        self.txn(name).rollback()

    def do_reset(self, name: bytes) -> None:
        self.txn(name).reset()

    def do_free_transaction(self, name: bytes) -> None:
        del self.transactions[name.decode()]

    def do_savepoint(self, txn: bytes, name: bytes) -> None:
        self.txn(txn).set_savepoint(name.decode())

    def do_rollback_to(self, txn: bytes, name: bytes) -> None:
        self.txn(txn).rollback_to_savepoint(name.decode())

    def do_release(self, txn: bytes, name: bytes) -> None:
        self.txn(txn).release_savepoint(name.decode())

    def do_refresh(self, txn: bytes) -> None:
        self.txn(txn).refresh_snapshot()

    def do_get_for_update(self, txn: bytes, family: bytes, key: bytes) -> Answer:
        return one(self.txn(txn).get_for_update(key, family=self.family(family)))

    def do_get_for_share(self, txn: bytes, family: bytes, key: bytes) -> Answer:
        return one(self.txn(txn).get_for_share(key, family=self.family(family)))

    def do_lock(self, txn: bytes, family: bytes, key: bytes, mode: bytes) -> None:
        self.txn(txn).lock(key, shared=mode == b"shared", family=self.family(family))

    def do_prepare(self, txn: bytes, xid: bytes) -> None:
        self.txn(txn).prepare(xid)

    def do_commit_prepared(self, xid: bytes) -> None:
        self.db.commit_prepared(xid)

    def do_rollback_prepared(self, xid: bytes) -> None:
        self.db.rollback_prepared(xid)

    def do_prepared(self) -> Answer:
        return [b"names", *self.db.prepared()]


@pytest.mark.parametrize("flushed", [False, True], ids=["plain", "flushed"])
@pytest.mark.parametrize("case", CASES, ids=[f"{c.file}: {c.name}" for c in CASES])
def test_case(case: table.Case, flushed: bool, tmp_path: Path) -> None:
    world = World(tmp_path / "db")
    try:
        for step in case.steps:
            if flushed:
                world.flush()
            answer = world.perform(step.operation)
            assert answer == step.answer, f"{case.file}.jsonl:{step.line}: {step.operation}"
    finally:
        world.release()
