"""The files of the replicas after all brokers have ended: byte for byte, and the epochs in their batches."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from headrace.wire.batch import hop

SEGMENTS: Final = "*.log"


class Copy(NamedTuple):
    """What one broker's files hold of a partition. `start`: the address of the first byte."""

    broker: int
    start: int
    content: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.content)


def read_copy(broker: int, folder: Path) -> Copy | None:
    """Returns the copy in a partition's folder; None if it has no segment. Raises `ValueError` for a hole."""
    paths = sorted(folder.glob(SEGMENTS), key=lambda path: int(path.stem))
    if not paths:
        return None
    start = int(paths[0].stem)
    content = b""
    for path in paths:
        if int(path.stem) != start + len(content):
            raise ValueError(f"{path} follows address {start + len(content)}")
        content += path.read_bytes()
    return Copy(broker, start, content)


def differences(copies: list[Copy], high_watermark: int) -> list[str]:
    """Returns where copies of a partition are not the same below the high watermark, or do not reach it."""
    found: list[str] = []
    for copy in copies:
        if copy.end < high_watermark:
            found.append(f"broker {copy.broker} ends at {copy.end}, the high watermark is {high_watermark}")
        found.extend(f"broker {copy.broker}: {problem}" for problem in _falling_epochs(copy))
    first, *others = copies
    for other in others:
        begin = max(first.start, other.start)
        end = min(first.end, other.end, high_watermark)
        ours, theirs = (each.content[begin - each.start : end - each.start] for each in (first, other))
        if ours != theirs:
            at = begin + next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
            found.append(f"brokers {first.broker} and {other.broker} differ from byte {at} on")
    return found


def _falling_epochs(copy: Copy) -> list[str]:
    greatest = -1
    for at, header in hop(copy.content):
        if header.partition_leader_epoch < greatest:
            return [
                f"the batch at {copy.start + at} has epoch {header.partition_leader_epoch}, after {greatest}"
            ]
        greatest = max(greatest, header.partition_leader_epoch)
    return []
