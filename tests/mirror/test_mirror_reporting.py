"""Gaps on their way to the audit: what a mirror remembers of them is bounded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import cast
from uuid import uuid4

import pytest

from headrace.audit.topic.publish import AuditPublisher
from headrace.audit.topic.records import GapRecord
from headrace.mirror import service
from headrace.mirror.copying import CopyState, PartitionCopy
from headrace.mirror.locating import Located, SourceGapError
from headrace.mirror.service import MirrorService, MirrorSettings
from headrace.replication.gaps import AcceptedGap

NOBODY = "127.0.0.1:1"


class Publisher:
    """Takes what is reported to the audit once; `meanwhile` is called before the report has arrived."""

    def __init__(self, mirror: MirrorService, meanwhile: Callable[[], None]) -> None:
        self.mirror = mirror
        self.meanwhile = meanwhile
        self.ends: list[int] = []

    def publish(self, gap: GapRecord) -> None:
        self.ends.append(gap.to_address)

    def flush(self) -> None:
        self.meanwhile()
        self.mirror.stop()

    def close(self) -> None: ...


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[MirrorService]:
    monkeypatch.setattr(service, "STEP_S", 0.0)
    made = MirrorService(
        MirrorSettings("east", NOBODY, NOBODY, NOBODY, re.compile(".*"), registry_url="http://127.0.0.1:1")
    )
    yield made
    made.close()


def copy_of(partition: int = 0) -> PartitionCopy:
    return PartitionCopy("t", partition, 5, draw=lambda: 0.5)


def unreported(mirror: MirrorService) -> list[tuple[int, int]]:
    return [(gap.from_address, gap.to_address) for gap in mirror._unreported_gaps.values()]


def test_a_gap_that_grows_is_remembered_once(mirror: MirrorService) -> None:
    """The source's retention goes on while a copy waits for its operator, who may be on holidays."""
    copy = copy_of()
    for start in range(200, 260, 10):
        mirror._apply_location(copy, SourceGapError(100, start), 0.0)
    assert unreported(mirror) == [(100, 250)]
    assert copy.state is CopyState.HALTED


def reported(mirror: MirrorService, meanwhile: Callable[[], None] = lambda: None) -> list[int]:
    """Reports what is noted; returns where those gaps end."""
    assert unreported(mirror), "it would wait for ever"
    publisher = Publisher(mirror, meanwhile)
    mirror._open_publisher = lambda registry_url: cast(AuditPublisher, publisher)  # type: ignore[method-assign]
    mirror._stopping.clear()
    mirror._report_always()
    return publisher.ends


def test_each_gap_is_reported_once_and_a_larger_one_again(mirror: MirrorService) -> None:
    copy = copy_of()

    def grow(start: int) -> None:
        mirror._apply_location(copy, SourceGapError(100, start), 0.0)

    grow(200)
    assert reported(mirror) == [200]
    grow(200)
    assert unreported(mirror) == []
    grow(210)
    assert reported(mirror, meanwhile=lambda: grow(230)) == [210]
    assert unreported(mirror) == [(100, 230)], "it grew while it was reported"
    assert reported(mirror) == [230]
    assert (len(mirror._reported_gaps), unreported(mirror)) == (1, [])


def test_a_copy_that_begins_behind_the_sources_first_addresses_says_so(mirror: MirrorService) -> None:
    """A partition that was added while the mirror was down, and whose beginning retention has deleted."""
    copy, topic_id = copy_of(), uuid4()
    mirror._apply_location(copy, Located(300, 900, (), topic_id, uuid4(), is_empty=True), 0.0)
    (gap,) = mirror._unreported_gaps.values()
    assert (gap.tier, gap.datacenter, gap.topic, gap.partition) == ("analysis", "east", "t", 0)
    assert (gap.from_address, gap.to_address, gap.topic_id) == (0, 300, str(topic_id))
    assert gap.reason == "when the copy began, the source began at 300: it had deleted what lay before"
    assert copy.state is CopyState.COPYING


def test_a_copy_that_begins_behind_a_gap_that_was_accepted_names_what_lay_before_that(
    mirror: MirrorService,
) -> None:
    passed = (AcceptedGap(5, 300, 400),)
    mirror._apply_location(copy_of(), Located(400, 900, passed, uuid4(), uuid4(), is_empty=True), 0.0)
    assert unreported(mirror) == [(0, 300)]


@pytest.mark.parametrize("found", [Located(0, 900, is_empty=True), Located(300, 900)])
def test_a_copy_that_lacks_nothing_says_nothing(mirror: MirrorService, found: Located) -> None:
    mirror._apply_location(copy_of(), found, 0.0)
    assert unreported(mirror) == []
