"""What can go wrong with a partition's log. Each error says whose fault it is and what to do."""


class LogError(Exception):
    """Base of everything this room raises; `retriable` says whether the same call may succeed later."""

    retriable = False


class LogStorageError(LogError):
    """The environment's fault: the disk is full, failing or gone. Nothing of the refused append stays in the
    log.
    """

    retriable = True


class LogOfflineError(LogStorageError):
    """The environment's fault: an fsync failed, or a write in a way that nobody can say what the file holds.

    The log takes and flushes nothing more: a second fsync of the same pages may succeed without having
    written them. Opening it anew, on a disk that works, recovers.
    """

    retriable = False


class LogDamagedError(LogError):
    """The environment's fault: files below the recovery point are missing or cut. Names the file and the way
    out.
    """


class AddressOutOfRangeError(LogError):
    """The caller's fault: an address before the log's start or beyond its end."""


class AddressMismatchError(LogError):
    """The caller's fault: batches to be stored verbatim do not begin exactly at the log's end."""


class DirectoryLockedError(LogError):
    """The caller's fault: another process holds this data directory."""
