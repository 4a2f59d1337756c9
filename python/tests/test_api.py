"""What the conformance table cannot ask: mappings, context managers, buffers, files, threads, asyncio."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kingtide
from kingtide.aio import AsyncDb


@pytest.fixture
def db(tmp_path: Path) -> Iterator[kingtide.Db]:
    with kingtide.Db(tmp_path / "db", memtable_size="64K") as db:
        yield db


def test_mapping(db: kingtide.Db) -> None:
    db[b"a"] = b"1"
    db[bytearray(b"b")] = memoryview(b"2")
    assert (db[b"a"], db.get(b"b"), db.get(b"c"), db.get(b"c", 7)) == (b"1", b"2", None, 7)
    assert b"a" in db and b"c" not in db and bool(db)
    with pytest.raises(KeyError) as caught:
        db[b"c"]
    assert caught.value.args == (b"c",)
    del db[b"c"]  # absent, and no error
    assert list(db) == [b"a", b"b"] and list(reversed(db)) == [b"b", b"a"]
    with pytest.raises(TypeError):
        len(db)  # type: ignore[arg-type]
    assert db.estimated_len() > 0 and db.create_family("empty").estimated_len() == 0
    for wrong in ("a", 1, None):
        with pytest.raises(TypeError, match="bytes"):
            db[wrong] = b"1"  # type: ignore[index]
    assert isinstance(db, kingtide.Family) and (db.name, db.order) == ("default", "bytewise")
    assert repr(db) == "<kingtide.Db 'default'>"


def test_slices(db: kingtide.Db) -> None:
    for key in b"abcde":
        db[bytes([key])] = bytes([key]) * 2
    assert [k for k, _ in db[b"b":b"d"]] == [b"b", b"c"]
    assert list(db[:b"b"]) == [(b"a", b"aa")] and len(list(db[:])) == 5
    assert [k for k, _ in db[b"b":b"e":-1]] == [b"d", b"c", b"b"]
    assert [k for k, _ in db[::-1]] == [b"e", b"d", b"c", b"b", b"a"]
    with pytest.raises(ValueError, match="step"):
        db[::2]
    del db[b"b":b"d"]
    assert list(db.keys()) == [b"a", b"d", b"e"]
    del db[b"d":]
    assert list(db.values()) == [b"aa"]
    del db[:]
    assert list(db) == []


def test_long_iterations_show_one_moment(db: kingtide.Db) -> None:
    for i in range(3000):
        db[b"%05d" % i] = b"%d" % i
    entries = db.items()
    assert next(entries) == (b"00000", b"0")
    del db[:]
    assert [int(v) for _, v in entries] == list(range(1, 3000))
    with pytest.raises(StopIteration):
        next(entries)
    assert next(db.items(), None) is None


def test_batches(db: kingtide.Db) -> None:
    users = db.create_family("users")
    with db.batch() as batch:
        batch[b"a"] = b"1"
        batch.put(b"b", b"2", family=users, ttl=3600)
        assert b"a" not in db and len(batch) == 2 and batch
    assert db[b"a"] == b"1" and users[b"b"] == b"2" and len(batch) == 0
    with pytest.raises(ZeroDivisionError), db.batch(durability="power") as batch:
        batch[b"a"] = b"2"
        1 / 0
    assert db[b"a"] == b"1"
    with pytest.raises(ValueError):
        db.batch(durability="eternal")
    with pytest.raises(ValueError), db.batch() as batch:
        batch.put(b"a", b"1", ttl=1, expires_at_ms=1)
    assert db.get(b"a") == b"1"
    with pytest.raises(ValueError):
        db.put(b"a", b"1", ttl=-1)


def test_transactions(db: kingtide.Db) -> None:
    with db.begin() as txn:
        txn[b"a"] = b"1"
        assert txn[b"a"] == b"1" and b"a" in txn and txn and len(txn) == 1
        with pytest.raises(KeyError):
            txn[b"b"]
    assert db[b"a"] == b"1"
    with pytest.raises(RuntimeError, match="released"):
        txn.get(b"a")
    with pytest.raises(ZeroDivisionError), db.begin() as txn:
        del txn[b"a"]
        1 / 0
    assert db[b"a"] == b"1"
    with pytest.raises(kingtide.ConflictError) as caught, db.begin() as txn:
        txn[b"a"] = b"2"
        db[b"a"] = b"3"
    assert caught.value.is_transient_conflict and caught.value.kind == "conflict"
    with pytest.raises(ValueError, match="serializable"):
        db.begin("chaos")  # type: ignore[arg-type]
    with db.begin() as txn:
        txn[b"a"] = b"4"
        txn.rollback()
        txn.reset()
    assert db[b"a"] == b"3"


def test_the_end_of_a_with_block_leaves_an_ended_transaction_alone(db: kingtide.Db) -> None:
    with db.begin() as txn:
        txn[b"a"] = b"1"
        txn.commit()
    assert db[b"a"] == b"1"
    with db.begin() as txn:
        txn[b"a"] = b"2"
        txn.rollback()
    assert db[b"a"] == b"1"
    with db.begin() as txn:
        txn[b"a"] = b"3"
        txn.prepare(b"left in doubt")
    with pytest.raises(ZeroDivisionError), db.begin() as txn:
        txn[b"b"] = b"4"
        txn.prepare(b"left in doubt, too")
        1 / 0
    assert db.prepared() == [b"left in doubt", b"left in doubt, too"] and db[b"a"] == b"1"
    db.rollback_prepared(b"left in doubt")
    db.rollback_prepared(b"left in doubt, too")
    with db.begin() as txn:
        txn.rollback()
        txn.reset()
        txn[b"a"] = b"5"
    assert db[b"a"] == b"5"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads, which is what it is about
def test_a_forked_child_is_refused(db: kingtide.Db) -> None:
    with db.begin() as txn:
        txn[b"a"] = b"1"
        txn.prepare(b"in doubt")
    calls: list[Callable[[], object]] = [
        lambda: db.get(b"a"), db.families, db.snapshot, db.snapshot_names, db.prepared, db.prometheus, db.begin, db.close,
    ]  # fmt: skip
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        refused = 0
        for call in calls:
            try:
                call()
            except kingtide.ClosedError:
                refused += 1
        os.write(into, bytes([refused]))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0 and os.read(out, 1) == bytes([len(calls)])
    os.close(out)
    os.close(into)
    assert db.prepared() == [b"in doubt"]
    db.rollback_prepared(b"in doubt")


def test_transact(db: kingtide.Db) -> None:
    db[b"n"] = b"0"

    def add() -> None:
        for _ in range(50):
            db.transact(lambda txn: txn.put(b"n", b"%d" % (int(txn[b"n"]) + 1)))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert db[b"n"] == b"200"

    runs = []

    def meets_another(txn: kingtide.Transaction) -> None:
        runs.append(txn[b"n"])
        txn[b"n"] = b"lost"
        db[b"n"] = b"%d" % len(runs)

    with pytest.raises(kingtide.ConflictError):
        db.transact(meets_another, attempts=3)
    assert runs == [b"200", b"1", b"2"] and db[b"n"] == b"3"

    def refuses(txn: kingtide.Transaction) -> None:
        txn[b"n"] = b"lost"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        db.transact(refuses)
    assert db[b"n"] == b"3"
    with pytest.raises(ValueError):
        db.transact(refuses, attempts=0)


def test_transact_gives_up_a_minute_after_it_began_if_it_waited(
    db: kingtide.Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(kingtide.time, "monotonic", lambda: now[0])
    runs = []

    def waits(txn: kingtide.Transaction) -> None:
        runs.append(now[0])
        now[0] += 30
        txn[b"locked"] = b"lost"

    with db.begin(locking=True) as holder:
        holder[b"locked"] = b"held"
        with pytest.raises(kingtide.LockTimeoutError):
            db.transact(waits, locking=True, lock_timeout=0.001)
    assert runs == [0, 30]

    def meets_another(txn: kingtide.Transaction) -> None:
        runs.append(now[0])
        now[0] += 30
        txn[b"n"] = b"lost"
        db[b"n"] = b"%d" % len(runs)

    runs.clear()
    with pytest.raises(kingtide.ConflictError):
        db.transact(meets_another, attempts=5)
    assert len(runs) == 5


def test_errors(tmp_path: Path, db: kingtide.Db) -> None:
    with pytest.raises(kingtide.LockedError) as caught:
        kingtide.Db(tmp_path / "db")
    assert caught.value.is_retryable and isinstance(caught.value, kingtide.KingtideError)
    with pytest.raises(ValueError, match="no_such_option"):
        kingtide.Db(tmp_path / "other", no_such_option=1)
    with pytest.raises(LookupError) as missing:
        db.family("missing")
    assert isinstance(missing.value, kingtide.NotFoundError)
    with pytest.raises(kingtide.ExistsError):
        kingtide.Db(tmp_path / "db2", error_if_exists=True).close()
        kingtide.Db(tmp_path / "db2", error_if_exists=True)
    db.close()
    with pytest.raises(kingtide.ClosedError):
        db[b"a"] = b"1"
    # A damaged file is named.
    manifest = next((tmp_path / "db").glob("MANIFEST-*"))
    manifest.write_bytes(bytes(byte ^ 0x55 for byte in manifest.read_bytes()))
    with pytest.raises(kingtide.KingtideError) as damaged:
        kingtide.Db(tmp_path / "db")
    assert damaged.value.path is not None and "MANIFEST" in damaged.value.path
    assert pickle.loads(pickle.dumps(damaged.value)).args == damaged.value.args


def test_views_outlive_everything(db: kingtide.Db) -> None:
    db[b"big"] = b"0123456789" * 10_000
    db[b"small"] = b"s"
    db[b"empty"] = b""
    db.flush_all()
    value = db.get_view(b"big")
    small, empty = db.get_view(b"small"), db.get_view(b"empty")
    assert value is not None and small is not None and empty is not None
    view = memoryview(value)
    assert view.readonly and view.nbytes == 100_000 and view[5:8].tobytes() == b"567" and bytes(value)[:3] == b"012"
    assert bytes(small) == b"s" and memoryview(empty).nbytes == 0
    with pytest.raises(TypeError):
        view[0] = 1
    db[b"big"] = b"other"
    db.compact()
    db.close()
    del value
    gc.collect()
    assert view[99_990:].tobytes() == b"0123456789"
    db2 = io.BytesIO(view)  # anything that reads buffers
    assert db2.read(2) == b"01"


def test_files(db: kingtide.Db) -> None:
    text = b"".join(b"%d\n" % i for i in range(20_000))
    db[b"numbers"] = text
    db.flush_all()
    with db.open(b"numbers", buffer_size=1000) as file:
        assert file.seekable() and file.readable() and not file.writable()
        db[b"numbers"] = b"gone"
        assert [int(line) for line in file] == list(range(20_000))
        assert file.seek(-6, io.SEEK_END) == len(text) - 6 and file.read() == b"19999\n"
        assert file.seek(2) == 2 and file.readline() == b"1\n" and file.tell() == 4
        assert file.seek(len(text) + 5) and file.read() == b""
        with pytest.raises((ValueError, OSError)):
            file.seek(-1)
    with pytest.raises(ValueError, match="closed"):
        file.read()
    with pytest.raises(KeyError):
        db.open(b"missing")
    with kingtide.open_value(db, b"numbers") as file:
        assert io.TextIOWrapper(file).read() == "gone"


def test_writing_files(db: kingtide.Db, tmp_path: Path) -> None:
    piece = bytes(range(256)) * 1024
    with db.value_writer(b"film") as file:
        assert file.writable() and not file.readable() and not file.seekable()
        for _ in range(12):
            assert file.write(memoryview(piece)) == len(piece)
        assert file.tell() == 12 * len(piece) and b"film" not in db
    assert db[b"film"] == piece * 12
    with pytest.raises(ValueError, match="closed"):
        file.write(b"x")

    # An exception gives the value up, and so does a close, or forgetting the file.
    with pytest.raises(ZeroDivisionError), db.value_writer(b"lost") as file:
        file.write(piece)
        raise ZeroDivisionError
    db.value_writer(b"lost").close()
    forgotten = db.value_writer(b"lost")
    forgotten.write(b"forgotten")
    del forgotten
    gc.collect()
    assert b"lost" not in db

    # Anything that writes to files.
    with db.value_writer(b"text") as file:
        text = io.TextIOWrapper(io.BufferedWriter(file), encoding="utf-8")
        text.write("Ebbe und Flut: ≈")
        assert db.get(b"text") is None
        text.detach().detach()
    assert db[b"text"].decode() == "Ebbe und Flut: ≈"

    (tmp_path / "source").write_bytes(piece * 9)
    with open(tmp_path / "source", "rb") as source:
        assert db.put_reader(b"copied", source, size=100_000) == len(piece) * 9
    assert kingtide.open_value(db, b"copied").read() == piece * 9
    assert db.put_reader(b"empty", io.BytesIO()) == 0 and db[b"empty"] == b""
    for size in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            db.put_reader(b"copied", io.BytesIO(b"lost"), size=size)
    assert kingtide.open_value(db, b"copied").read() == piece * 9


def test_staged_values(db: kingtide.Db) -> None:
    other = db.create_family("other")
    writer = kingtide.value_writer(other)
    writer.write(b"in " * 500_000)
    writer.write(b"pieces")
    value = writer.finish()
    assert writer.closed and len(value) == 1_500_006 and value
    with pytest.raises(kingtide.InvalidArgumentError, match="other"):
        db.put_staged(b"key", value)  # of another family
    with db.begin() as txn:
        txn.put_staged(b"key", value, family=other)
        assert txn.get(b"key", family=other) == b"in " * 500_000 + b"pieces"
        assert b"key" not in other
    assert len(other[b"key"]) == 1_500_006
    with pytest.raises(kingtide.InvalidArgumentError):
        other.put_staged(b"again", value)  # a value is committed once

    short = db.value_writer()
    short.write(b"short")
    with db.batch() as batch:
        batch.put_staged(b"short", short.finish(), ttl=3600)
        batch[b"beside"] = b"1"
    assert (db[b"short"], db[b"beside"]) == (b"short", b"1")
    unfinished = other.writer()
    unfinished.finish()
    with pytest.raises(kingtide.FinishedError):
        unfinished.append(b"more")


def test_snapshots(db: kingtide.Db) -> None:
    db[b"a"] = b"1"
    with db.snapshot() as snapshot:
        db[b"a"] = b"2"
        assert db.get(b"a", snapshot=snapshot) == b"1" and db.multi_get([b"a"], snapshot=snapshot) == [b"1"]
        assert dict(db.items(snapshot=snapshot)) == {b"a": b"1"} and snapshot.sequence < db.latest_sequence
        with db.begin(snapshot=snapshot) as txn:
            assert txn[b"a"] == b"1"
    with pytest.raises(RuntimeError, match="released"):
        db.get(b"a", snapshot=snapshot)


def test_a_wait_for_a_lock_lets_other_threads_run(db: kingtide.Db) -> None:
    holder = db.begin(locking=True)
    holder.put(b"a", b"1")
    waiting = threading.Event()
    results: list[str] = []

    def wait() -> None:
        waiting.set()
        with db.begin("repeatable-read", locking=True, lock_timeout=60) as txn:
            txn.put(b"a", b"2")
        results.append("second")

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    for i in range(100):  # would hang if the waiting thread kept the interpreter
        db[b"other"] = b"%d" % i
    results.append("first")
    holder.commit()
    thread.join()
    assert results == ["first", "second"] and db[b"a"] == b"2"


def test_read_only_and_copies(tmp_path: Path, db: kingtide.Db) -> None:
    db[b"a"] = b"1"
    with kingtide.Db(tmp_path / "db", read_only=True) as reader:
        assert reader.is_read_only and reader[b"a"] == b"1"
        db[b"a"] = b"2"
        assert reader[b"a"] == b"1" and reader.catch_up() and reader[b"a"] == b"2"
        with pytest.raises(kingtide.ReadOnlyError):
            reader[b"a"] = b"3"
    db.checkpoint(tmp_path / "copy")
    with kingtide.Db(str(tmp_path / "copy")) as copy:
        assert copy[b"a"] == b"2"
    assert "kingtide" in db.prometheus() and kingtide.__version__ == kingtide.version()


def test_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        async with await AsyncDb.open(tmp_path / "async", memtable_size="64K") as db:
            await asyncio.gather(*(db.put(b"%04d" % i, b"v") for i in range(1000)))
            assert [key async for key, _ in db.items(b"0990")] == [b"%04d" % i for i in range(990, 1000)]
            assert len([key async for key, _ in db.items()]) == 1000
            await db.put(b"n", b"0")
            add = lambda txn: txn.put(b"n", b"%d" % (int(txn[b"n"]) + 1))  # noqa: E731
            await asyncio.gather(*(db.transact(add) for _ in range(20)))
            assert await db.get(b"n") == b"20" and await db.multi_get([b"n", b"x"]) == [b"20", None]
            await db.delete(b"n")
            assert await db.run(db.db.get, b"n", b"none") == b"none"

    asyncio.run(main())
