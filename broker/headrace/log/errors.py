"""The errors of a partition's log. Each states whether the caller or the environment caused it."""

from __future__ import annotations

from pathlib import Path


class LogError(Exception):
    """The base class; `retriable`: the same call may succeed later."""

    retriable = False


class LogStorageError(LogError):
    """Caused by the environment: the disk is full, failing or missing. The log keeps nothing of the failed
    append.
    """

    retriable = True


class LogOfflineError(LogStorageError):
    """Caused by the environment: an fsync failed, or a write failed and left the file in an unknown state.

    The log appends and flushes nothing more: a second fsync of the same pages may succeed without having
    written them. Reopening the log on a working disk recovers it.
    """

    retriable = False


class LogReadError(LogError):
    """Caused by the environment: a segment could not be read. Names the file, the address and the cause."""

    retriable = True


class LogDamagedError(LogError):
    """Caused by the environment: bytes that were durable are missing or changed. Nothing was changed then."""


class LogLostError(LogDamagedError):
    """Caused by the environment: a log's folder is gone, as if nothing had ever been there."""


class OtherTopicIdError(LogError):
    """Caused by the environment: the topic has another id now, and is still the same. Nothing was changed."""


def damaged(path: Path, address: int, cause: str) -> LogDamagedError:
    """Returns the error that names a file of a partition, the address, the cause and the ways out."""
    directory = path.parent
    return LogDamagedError(
        f"{path}: address {address}: {cause}. Nothing was changed. `headrace log check {directory}` lists "
        f"all damage. Restore the file from a replica, a mirror or a backup; or run `headrace log set-aside "
        f"{directory}`: the partition then serves again, with a gap. A running broker opens a mended log by "
        "itself"
    )


class LogBusyError(LogError):
    """Caused by the environment: somebody else works on the files of this partition."""

    retriable = True


class OldLogFormatError(LogError):
    """Caused by the caller: an older headrace wrote this log, with other offsets in its batches. Nothing was
    changed.
    """

    def __init__(self, where: object, problem: str) -> None:
        super().__init__(
            f"{where}: {problem}: an older headrace wrote this log, and this one cannot read it. Nothing was "
            "changed. Keep the directory, or move it away, and start the broker with an empty data directory "
            "and an empty ZooKeeper; mirrors and loads of the old addresses begin again, too"
        )


class AddressOutOfRangeError(LogError):
    """Caused by the caller: the address is before the log's start or after its end."""


class AddressMismatchError(LogError):
    """Caused by the caller: batches to be stored verbatim do not begin at the log's end."""


class DirectoryLockedError(LogError):
    """Caused by the caller: another process holds this data directory."""
