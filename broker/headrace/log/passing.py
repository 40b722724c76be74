"""A copy passes a gap of its source: addresses that an administrator set aside there (`log.set_aside`)."""

from __future__ import annotations

from typing import Final

from headrace.log import gaps
from headrace.log.files import sync_directory
from headrace.log.gaps import Gap
from headrace.log.partition import PartitionLog
from headrace.process.clock import now_ms

CAUSE: Final = "the leader's log has the same gap"


def pass_gap(log: PartitionLog, address: int) -> None:
    """Lets a log go on at `address`, behind its end. A crash leaves the gap named, or nothing done. Waits for
    the disk. Raises `LogError`, `OSError`.
    """
    log.flush()
    gap = Gap(log.end_address, address, CAUSE, now_ms())
    gaps.save(log.directory, [*gaps.load(log.directory), gap])
    log.go_on_at(address)
    sync_directory(log.directory)
