"""The problems of HDFS: an error class for each, whether a retry helps, and what to do.

Owns the error tree and `explain`, which recognises Hadoop's own messages, from WebHDFS or from Spark. Pure.
"""

import re
from typing import Final


class HdfsError(Exception):
    """HDFS refused or failed. `retriable`: the same call may succeed later."""

    retriable = False


class HdfsUnreachableError(HdfsError):
    """No response from the address: a NameNode or DataNode is down or restarting, or the address is wrong."""

    retriable = True


class HdfsSafeModeError(HdfsError):
    """The NameNode is up but read-only: it waits for reports of its DataNodes, or an operator made it so."""

    retriable = True


class HdfsFullError(HdfsError):
    """The DataNodes have no room left, or a quota is exhausted."""


class HdfsNoTargetError(HdfsError):
    """No DataNode took a block: it is unreachable or full. A write by the caller itself shows which."""

    retriable = True


class HdfsPermissionError(HdfsError):
    """The user lacks the permission."""


class HdfsMissingError(HdfsError):
    """There is no such file or directory."""


class HdfsDamagedError(HdfsError):
    """No DataNode has a sound replica of one of the file's blocks; waiting alone does not bring it back."""


class HdfsExistsError(HdfsError):
    """The name is taken."""


class HdfsNotEmptyError(HdfsError):
    """The directory is not empty."""


_SAFE_MODE: Final = (
    "the NameNode is in safe mode; wait until its DataNodes have reported, "
    "or leave it by `hdfs dfsadmin -safemode leave`"
)
_CHOWN: Final = "give this user the directory (`hdfs dfs -chown`), or run as its owner"
_BLOCKS_UNREACHABLE: Final = "the DataNode that holds the blocks is down; start it, then repeat"
LOST: Final = "no DataNode has a sound replica of one of its blocks"
DAMAGED: Final = f"{LOST}; bring its disk back, or repair the hour (`headrace audit repair`)"
_NOTHING_LISTENS: Final = "nothing listens there; start HDFS or fix the address, then repeat"
_RAISED: Final = re.compile(r"headrace\.warehouse\.hdfs\.errors\.(\w+): ([^\n]+)")
_SIGNS: Final[tuple[tuple[str, type[HdfsError], str], ...]] = (
    ("Name node is in safe mode", HdfsSafeModeError, _SAFE_MODE),
    ("SafeModeException", HdfsSafeModeError, _SAFE_MODE),
    (
        "There are 0 datanode(s) running",
        HdfsUnreachableError,
        "no DataNode is connected to the NameNode; start it, then repeat",
    ),
    (
        # The client tried the DataNode and excluded it.
        "1 node(s) are excluded",
        HdfsNoTargetError,
        "the DataNode is unreachable or full; start it or free space, then repeat",
    ),
    (
        "could only be written to 0 of the",
        HdfsFullError,
        "no DataNode has room for another block; free or add space, then repeat",
    ),
    ("QuotaExceededException", HdfsFullError, "a quota is exhausted; raise it or delete data, then repeat"),
    ("No space left on device", HdfsFullError, "a disk is full; free space, then repeat"),
    ("Permission denied: user=", HdfsPermissionError, _CHOWN),
    ("AccessControlException", HdfsPermissionError, _CHOWN),
    ("BlockMissingException", HdfsUnreachableError, _BLOCKS_UNREACHABLE),
    ("Could not obtain block", HdfsUnreachableError, _BLOCKS_UNREACHABLE),
    ("All datanodes", HdfsUnreachableError, "the DataNode failed during a write; start it, then repeat"),
    ("PathIsNotEmptyDirectoryException", HdfsNotEmptyError, "it is left as it is"),
    ("is non empty", HdfsNotEmptyError, "it is left as it is"),
    ("FileAlreadyExistsException", HdfsExistsError, "choose another name, or delete what is there"),
    ("already exists", HdfsExistsError, "choose another name, or delete what is there"),
    ("FileNotFoundException", HdfsMissingError, "check the path"),
    ("does not exist", HdfsMissingError, "check the path"),
    ("StandbyException", HdfsUnreachableError, "this NameNode is a standby; use the active one"),
    ("RetriableException", HdfsUnreachableError, "the NameNode is starting; repeat"),
    ("java.net.ConnectException", HdfsUnreachableError, _NOTHING_LISTENS),
    ("Connection refused", HdfsUnreachableError, _NOTHING_LISTENS),
    (
        "Connection reset by peer",
        HdfsUnreachableError,
        "HDFS closed the connection; start it, then repeat",
    ),
    ("java.io.EOFException", HdfsUnreachableError, "HDFS closed the connection; start it, then repeat"),
)


def raised_in(message: str) -> HdfsError | None:
    """Returns the error of this module that a Python task of Spark raised, from Spark's message; or None."""
    found = _RAISED.search(message)
    kind = globals().get(found[1]) if found is not None else None
    if found is None or not isinstance(kind, type) or not issubclass(kind, HdfsError):
        return None
    return kind(found[2])


def explain(message: str, what: str) -> HdfsError | None:
    """Returns the error that Hadoop's `message` means, or None if it is not HDFS's. `what` names the work."""
    for sign, kind, remedy in _SIGNS:
        if sign in message:
            return kind(f"{what}: {_first_line(message, sign)}: {remedy}")
    return None


def _first_line(message: str, sign: str) -> str:
    at = message.find(sign)
    start = message.rfind("\n", 0, at) + 1
    end = message.find("\n", at)
    line = message[start : end if end >= 0 else len(message)].strip()
    return line if len(line) <= 240 else line[:237] + "..."
