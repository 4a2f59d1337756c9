"""What mypy must accept and infer. It is checked, not run."""

from __future__ import annotations

from typing import assert_type

import kingtide
from kingtide.aio import AsyncDb


def check(db: kingtide.Db, family: kingtide.Family) -> None:
    assert_type(db[b"a"], bytes)
    assert_type(db.get(b"a"), bytes | None)
    assert_type(db.get(b"a", b""), bytes | bytes)
    assert_type(db.get(b"a", 0), bytes | int)
    for key, value in db[b"a":b"z"]:
        assert_type(key, bytes)
        assert_type(value, bytes)
    assert_type(list(family.keys(prefix=b"a")), list[bytes])
    assert_type(db.multi_get([b"a", bytearray(b"b")]), list[bytes | None])
    with db.batch() as batch:
        batch[b"a"] = memoryview(b"1")
    with db.begin("serializable", locking=True) as txn:
        assert_type(txn.get(b"a", family=family), bytes | None)
    assert_type(db.transact(lambda txn: txn.get(b"a")), bytes | None)
    with db.open(b"a") as file:
        assert_type(file.read(), bytes)
    with db.value_writer(b"a") as writer:
        assert_type(writer.write(b"1"), int)
        assert_type(db.put_reader(b"b", db.open(b"a")), int)
    staged = kingtide.value_writer(family).finish()
    family.put_staged(b"a", staged)
    view = db.get_view(b"a")
    if view is not None:
        memoryview(view)
    with db.snapshot() as snapshot:
        assert_type(db.get(b"a", snapshot=snapshot), bytes | None)
    db.begin("chaos")  # type: ignore[arg-type]
    db.put("a", b"b")  # type: ignore[arg-type]


async def check_async(db: AsyncDb) -> None:
    assert_type(await db.get(b"a"), bytes | None)
    async for key, _value in db.items(prefix=b"a"):
        assert_type(key, bytes)
