"""Kingtide: an embeddable, transactional key-value storage engine.

`Db` opens a database: a mapping of bytes to bytes with an order, column families, batches, snapshots and transactions.
"""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self, TypeVar

from . import _kingtide
from ._kingtide import Batch, Entries, Family, Reader, Snapshot, StagedValue, Transaction, Value, Writer, version
from .errors import (
    AbortedError,
    BusyError,
    CancelledError,
    ClosedError,
    ConflictError,
    CorruptionError,
    DeadlockError,
    ExistsError,
    ExpiredError,
    FinishedError,
    IncompatibleError,
    InvalidArgumentError,
    IoError,
    KingtideError,
    LockedError,
    LockHeldError,
    LockTimeoutError,
    NewerFormatError,
    NoSpaceError,
    NotFoundError,
    PoisonedError,
    ReadOnlyError,
    TooOldError,
)

if TYPE_CHECKING:
    from ._kingtide import Bytes, Isolation

__version__ = version()

__all__ = [
    "AbortedError",
    "Batch",
    "BusyError",
    "CancelledError",
    "ClosedError",
    "ConflictError",
    "CorruptionError",
    "Db",
    "DeadlockError",
    "Entries",
    "ExistsError",
    "ExpiredError",
    "Family",
    "FinishedError",
    "IncompatibleError",
    "InvalidArgumentError",
    "IoError",
    "KingtideError",
    "LockHeldError",
    "LockTimeoutError",
    "LockedError",
    "NewerFormatError",
    "NoSpaceError",
    "NotFoundError",
    "PoisonedError",
    "ReadOnlyError",
    "Reader",
    "Snapshot",
    "StagedValue",
    "TooOldError",
    "Transaction",
    "Value",
    "ValueFile",
    "ValueWriter",
    "Writer",
    "open_value",
    "put_reader",
    "value_writer",
    "version",
]

T = TypeVar("T")


class ValueFile(io.RawIOBase):
    """A value as an unbuffered, seekable file for reading. `open_value` returns a buffered one."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self._reader: Reader | None = reader
        self._position = 0

    def _open(self) -> Reader:
        if self._reader is None:
            raise ValueError("I/O operation on closed file")
        return self._reader

    def readable(self) -> bool:
        self._open()
        return True

    def seekable(self) -> bool:
        self._open()
        return True

    def tell(self) -> int:
        self._open()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._open())}.get(whence)
        if base is None:
            raise ValueError(f"invalid whence ({whence})")
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        view = memoryview(buffer).cast("B")
        piece = self._open().read_at(self._position, len(view))
        view[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def close(self) -> None:
        self._reader = None  # gives the value's file back
        super().close()


def open_value(family: Family, key: Bytes, *, snapshot: Snapshot | None = None, buffer_size: int = 65536) -> io.BufferedReader:
    """Opens a value of `family` as a binary file, for values that need not be entirely in memory.

    It reads the value as it was at the call. Raises `KeyError` when the key is absent.
    """
    reader = family.reader(key, snapshot=snapshot)
    if reader is None:
        raise KeyError(key)
    return io.BufferedReader(ValueFile(reader), buffer_size)


class ValueWriter(io.RawIOBase):
    """An unbuffered file for writing a value of any length, in bounded memory: see `value_writer`."""

    def __init__(self, family: Family, key: Bytes | None = None) -> None:
        super().__init__()
        self._writer: Writer | None = family.writer()
        self._family = family
        self._key = key

    def _open(self) -> Writer:
        if self._writer is None:
            raise ValueError("I/O operation on closed file")
        return self._writer

    def writable(self) -> bool:
        self._open()
        return True

    def tell(self) -> int:
        return len(self._open())

    def write(self, data: Bytes) -> int:  # type: ignore[override]
        self._open().append(data)
        return memoryview(data).nbytes

    def finish(self) -> StagedValue:
        """Finishes the value and closes the file; the value can be put into a batch, a transaction, or a family."""
        value = self._open().finish()
        self.close()
        return value

    def close(self) -> None:
        """Discards the value, unless it was finished."""
        if self._writer is not None:
            self._writer.discard()
            self._writer = None
        super().close()

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        if exc_type is None and self._key is not None and self._writer is not None:
            self._family.put_staged(self._key, self.finish())
        self.close()


def value_writer(family: Family, key: Bytes | None = None) -> ValueWriter:
    """Begins a value of `family` as a binary file for writing, for values that need not be entirely in memory.

    In a `with` block, the value is put under `key` and committed at the end, unless an exception ends the block. Without a key,
    `finish` returns a `StagedValue` for `put_staged` of a batch, a transaction or the family. No read finds the value before.
    """
    return ValueWriter(family, key)


def put_reader(family: Family, key: Bytes, source: IO[bytes], *, size: int = 1 << 20) -> int:
    """Sets a key of `family` to the contents of a binary file, read `size` bytes at a time. Returns the number of bytes.

    Raises `ValueError` if `size` is below 1.
    """
    if size < 1:
        raise ValueError("size must be at least 1")
    with value_writer(family, key) as file:
        while piece := source.read(size):
            file.write(piece)
        return file.tell()


class Db(_kingtide.Db):
    """An open database. It also acts as its default family; other families are `Family` objects.

    Keyword arguments other than these are options of the database or of its default family, by the names of the option table:
    `Db(path, create_if_missing=False, block_cache_size="256M")`.
    """

    def open(self, key: Bytes, *, snapshot: Snapshot | None = None, buffer_size: int = 65536) -> io.BufferedReader:
        """Opens a value of the default family as a binary file: see `open_value`."""
        return open_value(self, key, snapshot=snapshot, buffer_size=buffer_size)

    def value_writer(self, key: Bytes | None = None) -> ValueWriter:
        """Begins a value of the default family as a binary file for writing: see the function `value_writer`."""
        return value_writer(self, key)

    def put_reader(self, key: Bytes, source: IO[bytes], *, size: int = 1 << 20) -> int:
        """Sets a key of the default family to the contents of a binary file. Returns the number of bytes."""
        return put_reader(self, key, source, size=size)

    def transact(
        self,
        body: Callable[[Transaction], T],
        *,
        isolation: Isolation = "serializable",
        locking: bool = False,
        attempts: int = 100,
        lock_timeout: float | None = None,
        durability: str | None = None,
    ) -> T:
        """Runs `body` in a transaction and commits it, and again from its beginning after a conflict.

        `body` may run several times, so it should change nothing but the database. An exception of its own rolls the transaction
        back and is passed on. Returns what `body` returned in the attempt that was committed; after `attempts` conflicts the
        last of them is raised. After an attempt that failed with `BusyError` or `LockTimeoutError`, no other begins once a minute
        has passed since the first one began.
        """
        if attempts < 1:
            raise ValueError("transact needs at least one attempt")
        txn = self.begin(isolation, locking=locking, lock_timeout=lock_timeout, durability=durability)
        longest, began = 50e-6, time.monotonic()
        for attempt in range(1, attempts + 1):
            try:
                result = body(txn)
                txn.commit()
                return result
            except KingtideError as error:
                txn.rollback()
                if not error.is_transient_conflict or attempt == attempts:
                    raise
                # This attempt may have waited for a minute, and so may the next one.
                if isinstance(error, (BusyError, LockTimeoutError)) and time.monotonic() - began >= 60:
                    raise
            except BaseException:
                txn.rollback()
                raise
            time.sleep(random.uniform(0, longest))
            longest = min(2 * longest, 0.01)
            txn.reset()
        raise AssertionError("unreachable")
