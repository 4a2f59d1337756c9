"""Compares Kingtide with other embedded stores from Python: `python/test bench --entries 1000000`.

Every store gets the same keys and values, and every answer is compared with what it must be; a run with a wrong answer fails. Stores
take turns within a round, and the table shows the median of the rounds, in operations per second. Settings are each store's
defaults, except that no store syncs its log on every write: that is what Kingtide does by default, too.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol


class Store(Protocol):
    """What a store must do. Writes of `load` are in batches, those of `put` one by one."""

    def load(self, entries: list[tuple[bytes, bytes]]) -> None: ...
    def put(self, key: bytes, value: bytes) -> None: ...
    def get(self, key: bytes) -> bytes | None: ...
    def items(self) -> Iterator[tuple[bytes, bytes]]: ...
    def add(self, key: bytes) -> None: ...
    def close(self) -> None: ...


def added(value: bytes | None) -> bytes:
    """What `add` makes of a counter."""
    return b"%d" % (int(value or b"0") + 1)


class Kingtide:
    def __init__(self, path: Path) -> None:
        import kingtide

        self.db = kingtide.Db(path)
        self.put, self.get, self.items, self.close = self.db.put, self.db.get, self.db.items, self.db.close

    def load(self, entries: list[tuple[bytes, bytes]]) -> None:
        with self.db.batch() as batch:
            for key, value in entries:
                batch.put(key, value)

    def add(self, key: bytes) -> None:
        self.db.transact(lambda txn: txn.put(key, added(txn.get(key))), isolation="snapshot")


class RocksDict:
    """Has no transactions: `add` reads and writes."""

    def __init__(self, path: Path) -> None:
        import rocksdict

        self.lib = rocksdict
        self.db = rocksdict.Rdict(str(path), rocksdict.Options(raw_mode=True))
        self.get, self.items, self.close = self.db.get, self.db.items, self.db.close

    def load(self, entries: list[tuple[bytes, bytes]]) -> None:
        batch = self.lib.WriteBatch(raw_mode=True)
        for key, value in entries:
            batch[key] = value
        self.db.write(batch)

    def put(self, key: bytes, value: bytes) -> None:
        self.db[key] = value

    def add(self, key: bytes) -> None:
        self.db[key] = added(self.db.get(key))


class Plyvel:
    """Has no transactions: `add` reads and writes."""

    def __init__(self, path: Path) -> None:
        import plyvel

        self.db = plyvel.DB(str(path), create_if_missing=True)
        self.put, self.get, self.close = self.db.put, self.db.get, self.db.close

    def load(self, entries: list[tuple[bytes, bytes]]) -> None:
        with self.db.write_batch() as batch:
            for key, value in entries:
                batch.put(key, value)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self.db.iterator())

    def add(self, key: bytes) -> None:
        self.db.put(key, added(self.db.get(key)))


class Lmdb:
    def __init__(self, path: Path) -> None:
        import lmdb

        self.db = lmdb.open(str(path), map_size=1 << 36, sync=False, metasync=False)
        self.close = self.db.close

    def load(self, entries: list[tuple[bytes, bytes]]) -> None:
        with self.db.begin(write=True) as txn:
            for key, value in entries:
                txn.put(key, value)

    def put(self, key: bytes, value: bytes) -> None:
        with self.db.begin(write=True) as txn:
            txn.put(key, value)

    def get(self, key: bytes) -> bytes | None:
        with self.db.begin() as txn:
            found: bytes | None = txn.get(key)
            return found

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        with self.db.begin() as txn:
            yield from txn.cursor()

    def add(self, key: bytes) -> None:
        with self.db.begin(write=True) as txn:
            txn.put(key, added(txn.get(key)))


class Sqlite:
    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.db = sqlite3.connect(path / "db", isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=OFF")
        self.db.execute("CREATE TABLE t (k BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID")
        self.close = self.db.close

    def load(self, entries: list[tuple[bytes, bytes]]) -> None:
        self.db.execute("BEGIN")
        self.db.executemany("INSERT OR REPLACE INTO t VALUES (?, ?)", entries)
        self.db.execute("COMMIT")

    def put(self, key: bytes, value: bytes) -> None:
        self.db.execute("INSERT OR REPLACE INTO t VALUES (?, ?)", (key, value))

    def get(self, key: bytes) -> bytes | None:
        row = self.db.execute("SELECT v FROM t WHERE k = ?", (key,)).fetchone()
        found: bytes | None = row[0] if row else None
        return found

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        return self.db.execute("SELECT k, v FROM t ORDER BY k")

    def add(self, key: bytes) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        self.put(key, added(self.get(key)))
        self.db.execute("COMMIT")


STORES: dict[str, Callable[[Path], Any]] = {
    "kingtide": Kingtide,
    "rocksdict": RocksDict,
    "plyvel": Plyvel,
    "lmdb": Lmdb,
    "sqlite3": Sqlite,
}


def check(condition: bool, what: str) -> None:
    if not condition:
        sys.exit(f"wrong answer: {what}")


def measure(name: str, path: Path, args: argparse.Namespace, seed: int) -> dict[str, float]:
    """One round of one store: operations per second of each step."""
    rng = random.Random(seed)
    keys = [rng.randbytes(16) for _ in range(args.entries)]
    values = {key: rng.randbytes(args.value) for key in keys}
    store = STORES[name](path)
    rates: dict[str, float] = {}

    def timed(step: str, count: int, work: Callable[[], None]) -> None:
        begin = time.perf_counter()
        work()
        rates[step] = count / (time.perf_counter() - begin)

    def load() -> None:
        for at in range(0, len(keys), 1000):
            store.load([(key, values[key]) for key in keys[at : at + 1000]])

    def put() -> None:
        for key, value in changed.items():
            store.put(key, value)

    def get() -> None:
        for key in asked:
            if store.get(key) != values.get(key):
                check(False, f"{name}: get of {key.hex()}")

    def iterate() -> None:
        seen = 0
        last = b""
        for key, value in store.items():
            if value != values[key] or key <= last:
                check(False, f"{name}: entry of {key.hex()}")
            last = key
            seen += 1
        check(seen == len(values), f"{name}: {seen} entries instead of {len(values)}")

    def add() -> None:
        for i in range(count):
            store.add(counters[i % len(counters)])

    count = max(1, args.entries // 10)
    timed("load, batches of 1,000", len(keys), load)
    changed = {key: rng.randbytes(args.value) for key in rng.sample(keys, count)}
    timed("put", len(changed), put)
    values.update(changed)
    asked = rng.choices(keys, k=count) + [rng.randbytes(16) for _ in range(count // 10)]
    rng.shuffle(asked)
    timed("get, 9 % absent", len(asked), get)
    timed("iterate", len(values), iterate)
    counters = [b"counter-%02d" % i for i in range(100)]
    timed("read-modify-write", count, add)
    total = sum(int(store.get(counter) or b"0") for counter in counters)
    check(total == count, f"{name}: the counters sum up to {total} instead of {count}")
    store.close()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--value", type=int, default=100, help="bytes of a value")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stores", default=",".join(STORES), help="which, separated by commas")
    args = parser.parse_args()
    names = args.stores.split(",")
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(args.rounds):
        for name in names:
            scratch = Path(tempfile.mkdtemp(prefix="kingtide-bench-"))
            try:
                rounds[name].append(measure(name, scratch / "db", args, args.seed + number))
            finally:
                shutil.rmtree(scratch)
    print(f"{args.entries} entries of 16 + {args.value} bytes, {args.rounds} rounds, operations per second, every answer verified")
    print("| | " + " | ".join(names) + " |")
    print("|---|" + "---|" * len(names))
    for step in rounds[names[0]][0]:
        medians = [statistics.median(r[step] for r in rounds[name]) for name in names]
        print(f"| {step} | " + " | ".join(f"{median:,.0f}" for median in medians) + " |")


if __name__ == "__main__":
    main()
