"""What can go wrong at HDFS, named: whose trouble, whether repeating helps, the way out.

Owns: the error tree and `explain`, which recognises Hadoop's own messages whether they came over WebHDFS
or out of Spark. Pure.
"""

from typing import Final


class HdfsError(Exception):
    """HDFS refused or failed. `retriable` says whether the same call may succeed later by itself."""

    retriable = False


class HdfsUnreachableError(HdfsError):
    """Nobody answers at the address (NameNode or DataNode down, restarting, or wrong address)."""

    retriable = True


class HdfsSafeModeError(HdfsError):
    """The NameNode is up but read-only: it waits for DataNodes to report, or an operator put it there."""

    retriable = True


class HdfsFullError(HdfsError):
    """The DataNodes have no room left, or a quota is used up."""


class HdfsNoTargetError(HdfsError):
    """No DataNode took a block: it can't be reached, or is full. A write of one's own tells which."""

    retriable = True


class HdfsPermissionError(HdfsError):
    """The user may not do this here."""


class HdfsMissingError(HdfsError):
    """There is no such file or directory."""


class HdfsExistsError(HdfsError):
    """The name is taken already."""


class HdfsNotEmptyError(HdfsError):
    """The directory isn't empty."""


_SAFE_MODE: Final = (
    "the NameNode is in safe mode; wait until its DataNodes have reported, "
    "or leave it by `hdfs dfsadmin -safemode leave`"
)
_SIGNS: Final[tuple[tuple[str, type[HdfsError], str], ...]] = (
    (
        "Name node is in safe mode",
        HdfsSafeModeError,
        _SAFE_MODE,
    ),
    (
        "SafeModeException",
        HdfsSafeModeError,
        _SAFE_MODE,
    ),
    (
        "There are 0 datanode(s) running",
        HdfsUnreachableError,
        "no DataNode is connected to the NameNode; start it, then repeat",
    ),
    (
        # The writer tried it in vain: it can't be reached, or has no room.
        "1 node(s) are excluded",
        HdfsNoTargetError,
        "the DataNode can't be reached or is full; start it or free space, then repeat",
    ),
    (
        "could only be written to 0 of the",
        HdfsFullError,
        "no DataNode has room for another block; free or add space, then repeat",
    ),
    ("QuotaExceededException", HdfsFullError, "a quota is used up; raise it or delete data, then repeat"),
    ("No space left on device", HdfsFullError, "a disk is full; free space, then repeat"),
    (
        "Permission denied: user=",
        HdfsPermissionError,
        "give this user the directory (`hdfs dfs -chown`), or run as its owner",
    ),
    (
        "AccessControlException",
        HdfsPermissionError,
        "give this user the directory (`hdfs dfs -chown`), or run as its owner",
    ),
    (
        "BlockMissingException",
        HdfsUnreachableError,
        "the DataNode that holds the blocks is down; start it, then repeat",
    ),
    (
        "Could not obtain block",
        HdfsUnreachableError,
        "the DataNode that holds the blocks is down; start it, then repeat",
    ),
    ("All datanodes", HdfsUnreachableError, "the DataNode went away during a write; start it, then repeat"),
    ("PathIsNotEmptyDirectoryException", HdfsNotEmptyError, "it is left as it is"),
    ("is non empty", HdfsNotEmptyError, "it is left as it is"),
    ("FileAlreadyExistsException", HdfsExistsError, "choose another name, or delete what is there"),
    ("already exists", HdfsExistsError, "choose another name, or delete what is there"),
    ("FileNotFoundException", HdfsMissingError, "check the path"),
    ("does not exist", HdfsMissingError, "check the path"),
    ("StandbyException", HdfsUnreachableError, "this NameNode is a standby; ask the active one"),
    ("RetriableException", HdfsUnreachableError, "the NameNode is starting; repeat"),
    (
        "java.net.ConnectException",
        HdfsUnreachableError,
        "nothing listens there; start HDFS or mend the address, then repeat",
    ),
    (
        "Connection refused",
        HdfsUnreachableError,
        "nothing listens there; start HDFS or mend the address, then repeat",
    ),
    (
        "Connection reset by peer",
        HdfsUnreachableError,
        "HDFS went away in the middle; start it, then repeat",
    ),
    ("java.io.EOFException", HdfsUnreachableError, "HDFS went away in the middle; start it, then repeat"),
)


def explain(message: str, what: str) -> HdfsError | None:
    """The error that Hadoop's `message` means, or None if it isn't one of HDFS's.

    `what` says what was being done.
    """
    for sign, kind, way_out in _SIGNS:
        if sign in message:
            return kind(f"{what}: {_first_line(message, sign)}: {way_out}")
    return None


def _first_line(message: str, sign: str) -> str:
    at = message.find(sign)
    start = message.rfind("\n", 0, at) + 1
    end = message.find("\n", at)
    line = message[start : end if end >= 0 else len(message)].strip()
    return line if len(line) <= 240 else line[:237] + "..."
