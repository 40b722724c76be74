"""When the demo's flow is over, how many events it expects, and the handover in its consumer group."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from headrace.demo.child import Child
from headrace.demo.flow import (
    STANDSTILL_MAX_S,
    Expected,
    Handover,
    Progress,
    expected_events,
    is_over,
)
from headrace.demo.plan import DemoPlan, make_plan
from headrace.demo.screen import Screen
from headrace.site.site import Site

FINAL = Expected(read=50, arrived=100, is_final=True)
NOW_MS = 1_700_000_000_000
COMPLETE = Progress(published=100, read=50, arrived=100, loaded=0)


@pytest.mark.parametrize(
    ("progress", "expected", "has_handed_over", "unchanged_s", "over"),
    [
        (COMPLETE, FINAL, True, 0.0, True),
        (COMPLETE._replace(read=51, arrived=101), FINAL, True, 0.0, True),
        (COMPLETE._replace(read=49), FINAL, True, STANDSTILL_MAX_S, False),
        (COMPLETE._replace(arrived=99), FINAL, True, STANDSTILL_MAX_S, False),
        (COMPLETE, FINAL, False, STANDSTILL_MAX_S, False),
        (COMPLETE, FINAL._replace(is_final=False), True, 0.0, False),
        # No count changes any more: the audit names what is missing.
        (COMPLETE._replace(arrived=99), FINAL, False, STANDSTILL_MAX_S + 1, True),
        # A service that has not closed may still publish.
        (COMPLETE, FINAL._replace(is_final=False), True, STANDSTILL_MAX_S + 1, False),
    ],
)
def test_a_flow_is_over_when_all_has_arrived_or_nothing_moves(
    progress: Progress, expected: Expected, has_handed_over: bool, unchanged_s: float, over: bool
) -> None:
    assert is_over(progress, expected, has_handed_over=has_handed_over, unchanged_s=unchanged_s) is over


@pytest.fixture
def plan(tmp_path: Path) -> DemoPlan:
    site = Site.one_machine(tmp_path)
    return make_plan(
        site, access_log=None, drop=7, event_count=600, publishing_s=4.0, now_ms=1_700_000_000_000
    )


def test_the_plan_is_expected_until_all_services_have_closed(plan: DemoPlan) -> None:
    published = [10] * len(plan.services)
    assert expected_events(plan, published, is_final=False) == (300, 600, False)


def test_events_that_a_client_drops_are_not_expected(plan: DemoPlan) -> None:
    places = [service.datacenter.name for service in plan.services]
    assert places == ["east", "west"] * 3
    # The last service, in the west, drops seven.
    assert expected_events(plan, [100, 90, 100, 90, 100, 90], is_final=True) == (300, 563, True)


class FakeReader:
    """A reader of the group, with the progress that a test sets."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        self.stops = 0
        self.runs = True

    def latest(self, field: str) -> Any:
        return self.fields.get(field)

    def is_running(self) -> bool:
        return self.runs

    def ask_to_stop(self) -> None:
        self.stops += 1


def test_a_reader_leaves_once_half_is_read_and_the_other_takes_over(tmp_path: Path) -> None:
    stays, leaves = FakeReader(partitions=[0, 1]), FakeReader(partitions=[2], read=40)
    handover = Handover(cast(list[Child], [stays, leaves]), at=50)
    with (tmp_path / "output").open("w") as output:
        screen = Screen(Console(file=output))
        handover.poll(49, screen)
        assert leaves.stops == 0
        handover.poll(50, screen)
        handover.poll(51, screen)
        assert leaves.stops == 1
        leaves.runs, leaves.fields["latencies"] = False, {"1": 40}
        handover.poll(52, screen)
        assert not handover.is_done, "reader 1 does not own all partitions yet"
        stays.fields["partitions"] = [0, 1, 2]
        handover.poll(53, screen)
        handover.poll(54, screen)
    assert handover.is_done
    assert stays.stops == 0
    printed = (tmp_path / "output").read_text()
    assert printed.count("half way: reader 2 leaves after 40 events; reader 1 takes over [0, 1, 2]") == 1
