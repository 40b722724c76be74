"""Whose log a partition's folder holds: a small file with the id of its topic.

Most bits that rot in an id make another id of it. The log would pass for an earlier topic's, be moved aside,
and its broker would begin, and perhaps lead with, an empty one. So the file has a checksum. Files of earlier
versions lack it, and get it when their log is opened.

The topic's id in ZooKeeper may be the wrong one as well. So the file says, too, which creation of the
partition the log belongs to: the log of the same creation is never an earlier topic's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from headrace.log.errors import LogDamagedError, OtherTopicIdError
from headrace.log.names import IDENTITY

CHECKSUM: Final = "crc32c"
CREATION: Final = "creation"
CREATION_CHECKSUM: Final = "creation_crc32c"


class Identity(NamedTuple):
    """`has_checksum`: False if an earlier version wrote the file. `creation`: what is known of it; nothing
    if it is not known.
    """

    topic_id: str
    has_checksum: bool
    creation: str = ""


def encode(topic_id: UUID, creation: str = "") -> bytes:
    text = str(topic_id)
    fields = {"topic_id": text, CHECKSUM: _checksum(text)}
    if creation:
        fields |= {CREATION: creation, CREATION_CHECKSUM: _checksum(text + creation)}
    return json.dumps(fields).encode()


def decode(content: bytes) -> Identity:
    """Raises `ValueError` if the file does not say whose log it is, or its checksum is wrong."""
    try:
        fields: dict[str, Any] = json.loads(content)
        topic_id = str(fields["topic_id"])
        checksum = fields.get(CHECKSUM)
        creation = str(fields.get(CREATION, ""))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the file does not hold a topic's id ({error})") from None
    if checksum not in (None, _checksum(topic_id)):
        raise ValueError(f"the checksum of the topic's id {topic_id[:40]!r} is wrong")
    is_known = fields.get(CREATION_CHECKSUM) == _checksum(topic_id + creation)
    return Identity(topic_id, checksum is not None, creation if is_known else "")


def _checksum(topic_id: str) -> str:
    return f"{crc32c(topic_id.encode(errors='surrogatepass')):08x}"


def unknown(folder: Path, problem: object, topic_id: UUID) -> LogDamagedError:
    """Returns the error for a folder whose file is missing or damaged. `topic_id`: of the topic that has its
    name now.
    """
    return LogDamagedError(
        f"{folder / IDENTITY}: {problem}, so nobody knows whose log this is. Nothing was changed. If it is "
        f'that of the present topic, write {{"topic_id": "{topic_id}"}} to the file, or restore it from a '
        "backup: a running broker then opens the log by itself. `headrace log check` says whether the log is "
        "whole"
    )


def of_same_creation(folder: Path, topic_id: UUID, now: UUID) -> OtherTopicIdError:
    """Returns the error for a log whose topic has another id `now`, and was not made again."""
    topic = folder.name.rpartition("-")[0]
    return OtherTopicIdError(
        f"{folder}: the log is of topic id {topic_id}, and ZooKeeper says {now} now, though the topic was "
        f"not made again. Nothing was changed. Write the former id to /brokers/topics/{topic} in ZooKeeper, "
        "and restart this broker"
    )
