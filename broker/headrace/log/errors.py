"""The errors of a partition's log. Each states whether the caller or the environment caused it."""


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


class LogDamagedError(LogError):
    """Caused by the environment: files below the recovery point are missing or cut. Names the file and the
    remedy.
    """


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
