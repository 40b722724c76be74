"""What a repair waits for, once it has brought events again."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fix_audit_world import DC, HOUR_A, TOPIC
from headrace.audit.findings import LOAD_HOP, MIRROR_HOP, PRODUCER_HOP, Counts, Finding, Status, Verdict
from headrace.audit.repair.repairing import Judged, have_arrived


def judged(*findings: tuple[Status, str]) -> Judged:
    found = tuple(Finding(status, hop, "text") for status, hop in findings)
    verdict = Verdict(TOPIC, DC, HOUR_A, Status.LOST, Counts(0, 0, 0, 0, 0), {}, found)
    return Judged(cast(Any, None), verdict)


@pytest.mark.parametrize(
    "finding",
    [
        (Status.LOST, PRODUCER_HOP),
        (Status.PENDING, PRODUCER_HOP),
        (Status.UNKNOWN, MIRROR_HOP),
        (Status.PENDING, MIRROR_HOP),
    ],
)
def test_what_was_brought_is_waited_for_up_to_the_copy(finding: tuple[Status, str]) -> None:
    assert not have_arrived([judged(), judged((Status.LOST, MIRROR_HOP), finding)])


def test_a_gap_of_the_copy_and_the_warehouse_are_not_waited_for() -> None:
    """They come by later steps of the repair: to wait here would be to wait for them in vain."""
    gap, unloaded = (Status.LOST, MIRROR_HOP), (Status.PENDING, LOAD_HOP)
    assert have_arrived([judged(gap, unloaded), judged()])
