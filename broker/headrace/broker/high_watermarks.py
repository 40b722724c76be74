"""The high watermarks that this broker knew, in a file: after a start a log would know none.

A new leader begins with what it knew. With less it is right, too, but shows consumers nothing until enough
replicas are in sync again. The file may be missing, damaged or old: then less is known. It must never say
more: a new leader would show what it alone has. So it has a checksum.

Format: one line with the CRC-32C of the rest in hex, then JSON.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from uuid import UUID

from crc32c import crc32c

from headrace.log.directory import PartitionName
from headrace.log.files import replace_file

logger = logging.getLogger(__name__)

FILE_NAME: Final = "high-watermarks.json"
SIZE_MAX_BYTES: Final = 16 * 1024 * 1024

Known = Mapping[PartitionName, tuple[UUID, int]]


def load(directory: Path) -> dict[PartitionName, tuple[UUID, int]]:
    """Returns the high watermark of each partition, with the id of its topic."""
    path = directory / FILE_NAME
    try:
        if path.stat().st_size > SIZE_MAX_BYTES:
            raise ValueError(f"it has more than {SIZE_MAX_BYTES} bytes")
        checksum, _, body = path.read_bytes().partition(b"\n")
        if int(checksum, 16) != crc32c(body):
            raise ValueError("its checksum is wrong")
        entries = json.loads(body)
        return {
            PartitionName(str(topic), int(index)): (UUID(topic_id), int(address))
            for topic, index, topic_id, address in entries
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        logger.warning("%s is not used: %s", path, error)
        return {}


def save(directory: Path, known: Known) -> None:
    """Any thread. Raises `OSError`."""
    entries = [
        [name.topic, name.partition, str(topic_id), address] for name, (topic_id, address) in known.items()
    ]
    body = json.dumps(entries, separators=(",", ":")).encode()
    replace_file(directory / FILE_NAME, b"%08x\n" % crc32c(body) + body)
