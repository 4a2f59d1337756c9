"""The exceptions of Kingtide: one class for each kind of error, all of them `KingtideError`."""

from __future__ import annotations


class KingtideError(Exception):
    """The base class of all errors of the engine.

    `kind` is the kind's name, as "lock-timeout"; `path` and `offset` are the file and the place in it, where they are known.
    `is_retryable` says that the same call may succeed later, `is_transient_conflict` that the transaction may succeed when
    all of it is run again.
    """

    kind = "other"
    path: str | None = None
    offset: int | None = None
    is_retryable: bool = False
    is_transient_conflict: bool = False


class IoError(KingtideError, OSError):
    """The operating system refused an operation."""

    kind = "io"


class NoSpaceError(KingtideError, OSError):
    """The disk or the quota is full."""

    kind = "no-space"


class CorruptionError(KingtideError):
    """Stored bytes fail their checksum or contradict each other."""

    kind = "corruption"


class InvalidArgumentError(KingtideError, ValueError):
    """The caller passed an invalid argument."""

    kind = "invalid-argument"


class NotFoundError(KingtideError, LookupError):
    """There is no such database, family, snapshot, savepoint or transaction. An absent key is a `KeyError`."""

    kind = "not-found"


class ExistsError(KingtideError):
    """An object of that name already exists."""

    kind = "exists"


class BusyError(KingtideError):
    """Writers are slowed and the write asked not to wait, or transactions hold too much memory."""

    kind = "busy"


class LockedError(KingtideError):
    """Another process or handle has the database open."""

    kind = "locked"


class NewerFormatError(KingtideError):
    """A file was written in a newer format version."""

    kind = "newer-format"


class PoisonedError(KingtideError):
    """An earlier failure stopped all writes: close the database and open it again."""

    kind = "poisoned"


class ClosedError(KingtideError):
    """The database was closed, or the family dropped."""

    kind = "closed"


class CancelledError(KingtideError):
    """The work was cancelled."""

    kind = "cancelled"


class IncompatibleError(KingtideError):
    """Stored and given options contradict each other, such as two key orders."""

    kind = "incompatible"


class ConflictError(KingtideError):
    """Another transaction changed, or has locked, data that this one relies on: run the entire transaction again."""

    kind = "conflict"


class LockHeldError(ConflictError):
    """A lock is held by another transaction, and this one does not wait. It is still running."""

    kind = "lock-held"


class DeadlockError(KingtideError):
    """The transaction was rolled back to resolve a deadlock: run the entire transaction again."""

    kind = "deadlock"


class LockTimeoutError(KingtideError, TimeoutError):
    """A lock was not released in time. The transaction is still running."""

    kind = "lock-timeout"


class ExpiredError(KingtideError):
    """The transaction outlived its timeout and was rolled back."""

    kind = "expired"


class AbortedError(KingtideError):
    """Another thread rolled the transaction back."""

    kind = "aborted"


class TooOldError(KingtideError):
    """The requested state is no longer kept."""

    kind = "too-old"


class FinishedError(KingtideError):
    """The transaction was already committed, rolled back or prepared."""

    kind = "finished"


class ReadOnlyError(KingtideError):
    """The database or the transaction was opened read-only."""

    kind = "read-only"


def _all(base: type[KingtideError]) -> list[type[KingtideError]]:
    return [base, *(found for sub in base.__subclasses__() for found in _all(sub))]


_BY_KIND = {error.kind: error for error in _all(KingtideError)}


def _make(
    kind: str, message: str, path: str | None, offset: int | None, is_retryable: bool, is_transient_conflict: bool
) -> KingtideError:
    """Makes the exception for an error of the engine."""
    error = _BY_KIND.get(kind, KingtideError)(message)
    error.path = path
    error.offset = offset
    error.is_retryable = is_retryable
    error.is_transient_conflict = is_transient_conflict
    return error
