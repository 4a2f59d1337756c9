"""Kingtide for asyncio: every call runs on a thread, so that the event loop is not blocked.

A plain `get` of a value in memory takes about a microsecond, and the way to a thread and back some tens. Where single calls are short
and the data fits memory, call `Db` itself; use this where calls wait for the disk or for locks.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Executor
from itertools import islice
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from . import Db, Family, Snapshot, Transaction

if TYPE_CHECKING:
    from ._kingtide import Bytes, Isolation

__all__ = ["AsyncDb"]

T = TypeVar("T")


class AsyncDb:
    """A database whose methods are coroutines. `db` is the underlying `Db`, and may be used as well."""

    def __init__(self, db: Db, *, executor: Executor | None = None) -> None:
        self.db = db
        self._executor = executor

    @classmethod
    async def open(cls, path: str | PathLike[str], *, executor: Executor | None = None, **options: Any) -> AsyncDb:
        """Opens a database, with the arguments of `Db`."""
        loop = asyncio.get_running_loop()
        return cls(await loop.run_in_executor(executor, functools.partial(Db, path, **options)), executor=executor)

    async def run(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs any call on a thread: `await db.run(db.db.checkpoint, path)`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, functools.partial(call, *args, **kwargs))

    async def __aenter__(self) -> AsyncDb:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self.run(self.db.close)

    async def get(self, key: Bytes, *, family: Family | None = None, snapshot: Snapshot | None = None) -> bytes | None:
        value: bytes | None = await self.run((family or self.db).get, key, snapshot=snapshot)
        return value

    async def multi_get(self, keys: Iterable[Bytes], *, family: Family | None = None) -> list[bytes | None]:
        return await self.run((family or self.db).multi_get, list(keys))

    async def put(self, key: Bytes, value: Bytes, *, family: Family | None = None, ttl: float | None = None) -> None:
        await self.run((family or self.db).put, key, value, ttl=ttl)

    async def delete(self, key: Bytes, *, family: Family | None = None) -> None:
        await self.run((family or self.db).delete, key)

    async def transact(
        self, body: Callable[[Transaction], T], *, isolation: Isolation = "serializable", attempts: int = 100
    ) -> T:
        """Runs `Db.transact` on a thread. `body` is a plain function: a transaction should not wait for the event loop."""
        return await self.run(self.db.transact, body, isolation=isolation, attempts=attempts)

    async def items(
        self,
        start: Bytes | None = None,
        stop: Bytes | None = None,
        *,
        prefix: Bytes | None = None,
        reverse: bool = False,
        family: Family | None = None,
        snapshot: Snapshot | None = None,
    ) -> AsyncIterator[tuple[bytes, bytes]]:
        """Iterates over entries, as of the first step. They are read on a thread, a few hundred at a time."""
        scan = functools.partial((family or self.db).items, prefix=prefix, reverse=reverse, snapshot=snapshot)
        entries = await self.run(scan, start, stop)
        while run := await self.run(lambda: list(islice(entries, 256))):
            for entry in run:
                yield entry
