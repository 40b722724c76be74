"""Counts of records of the audit topics that were not believed, by partition. Pure."""

from __future__ import annotations

from typing import NamedTuple


class SetAside(NamedTuple):
    """Records of one partition that were set aside; `problem` is that of the last one."""

    topic: str
    partition: int
    records: int
    first_offset: int
    last_offset: int
    problem: str


def added(known: SetAside | None, more: SetAside) -> SetAside:
    """Returns both together."""
    if known is None:
        return more
    return more._replace(records=known.records + more.records, first_offset=known.first_offset)


def note(
    aside: dict[tuple[str, int], SetAside], topic: str, partition: int, offset: int, problem: str
) -> None:
    """Adds one record to those of its partition."""
    one = SetAside(topic, partition, 1, offset, offset, problem)
    aside[topic, partition] = added(aside.get((topic, partition)), one)
