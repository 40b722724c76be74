"""Where a group continues after a reset: the targets that can be given, and the new offset of each partition.

Offsets are byte addresses, so a shift is a number of bytes. An offset inside of a batch continues there: the
broker sends the whole batch, and the client drops the records before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.values import parse_signed, parse_size_bytes, parse_time_ms

if TYPE_CHECKING:
    from headrace.client.admin import Admin
    from headrace.client.cluster import TopicPartition
    from headrace.client.survey import LogRange

_EARLIEST = ("earliest", "beginning")
_LATEST = ("latest", "end")


@dataclass(frozen=True, slots=True)
class Target:
    """Exactly one of them: a place or time (`to`), an offset, a shift in bytes."""

    to: str | None = None
    offset: int | None = None
    shift_bytes: int | None = None

    @property
    def time_ms(self) -> int | None:
        """The time, if `to` is one."""
        return None if self.to is None or self.to in (*_EARLIEST, *_LATEST) else parse_time_ms(self.to)


class Change(NamedTuple):
    """One partition: the stored offset (None: nothing is stored), and the one to store."""

    topic: str
    partition: int
    before: int | None
    after: int
    end: int


def target_of(to: str | None, offset: int | None, shift: str | None) -> Target:
    """Returns the target that the options name. Raises `CommandError` unless it is exactly one."""
    if sum(given is not None for given in (to, offset, shift)) != 1:
        raise CommandError(
            "give one of --to earliest, --to latest, --to TIME, --to-offset N, --shift-by SIZE",
            ExitCode.USAGE,
        )
    target = Target(to, offset, None if shift is None else parse_signed(shift, parse_size_bytes))
    _ = target.time_ms  # a wrong time is refused before anything is asked
    return target


def plan(
    target: Target,
    stored: Mapping[TopicPartition, int],
    ranges: Mapping[TopicPartition, LogRange],
    by_time: Mapping[TopicPartition, int],
) -> list[Change]:
    """Returns the change of each partition in `ranges`. `by_time`: the offsets that were found for a time.

    A shift ends at the log's ends; without a stored offset there is nothing to shift. Raises `CommandError`
    for an offset outside of the log.
    """
    changes = []
    for key, log in sorted(ranges.items()):
        before = stored.get(key)
        if target.to in _EARLIEST:
            after = log.start
        elif target.to in _LATEST:
            after = log.end
        elif target.offset is not None:
            after = _within(key, target.offset, log)
        elif target.shift_bytes is not None:
            if before is None:
                continue
            after = min(max(before + target.shift_bytes, log.start), log.end)
        else:
            # A partition without a record at this time or later continues at its end.
            after = by_time.get(key, -1)
            after = log.end if after < 0 else after
        changes.append(Change(*key, before, after, log.end))
    if not changes:
        raise CommandError("the group has stored no offset of these partitions, so there is nothing to shift")
    return changes


def _within(key: TopicPartition, offset: int, log: LogRange) -> int:
    if not log.start <= offset <= log.end:
        raise CommandError(
            f"--to-offset {offset} is not in the log of {key[0]}-{key[1]}, which goes from {log.start} to "
            f"{log.end}",
            ExitCode.USAGE,
        )
    return offset


def offsets_at(
    admin: Admin, time_ms: int | None, keys: Mapping[TopicPartition, LogRange]
) -> dict[TopicPartition, int]:
    """Returns the first offset of this time or later for each partition; -1 without such a record."""
    if time_ms is None:
        return {}
    found = {}
    for topic in {topic for topic, _ in keys}:
        partitions = [partition for name, partition in keys if name == topic]
        for partition, first in admin.list_offsets(topic, time_ms, partitions=partitions).items():
            found[topic, partition] = first.offset
    return found
