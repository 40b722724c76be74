"""`up --wait`: units start in order, slow ones are waited for, and what is missing is named."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.fleet.waiting import UnitsMissingError, Waiting, start_all


@dataclass
class FakeUnit:
    name: str
    requires: tuple[str, ...] = ()


@dataclass
class FakeReport:
    name: str
    is_ready: bool
    has_failed: bool = False
    problem: str | None = None


@dataclass
class Host:
    """Units that are ready so many seconds after their start; never without a number."""

    ready_after_s: dict[str, float] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    now_s: float = 0.0
    started: dict[str, float] = field(default_factory=dict)
    seen: list[tuple[str, str]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def start(self, unit: Any) -> None:
        self.started[unit.name] = self.now_s

    def reports(self, names: list[str]) -> list[Any]:
        return [
            FakeReport(
                name,
                self.now_s - self.started[name] >= self.ready_after_s.get(name, float("inf")),
                name in self.failing,
                f"connection to {name}\nrefused",
            )
            for name in names
        ]

    def run(self, units: list[FakeUnit], wait_s: float = 60.0) -> None:
        start_all(
            units,  # type: ignore[arg-type]
            Waiting(wait_s, self.told.append, clock=lambda: self.now_s, sleep=self._sleep),
            start=self.start,
            reports=self.reports,
            observe=lambda unit, event: self.seen.append((unit.name, event)),
        )

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds


A, B, C = FakeUnit("a"), FakeUnit("b", ("a",)), FakeUnit("c", ("b",))


def test_units_start_once_what_they_require_is_ready() -> None:
    host = Host({"a": 3.0, "b": 0.0, "c": 25.0})
    host.run([C, B, A])
    assert [name for name, event in host.seen if event == "ready"] == ["a", "b", "c"]
    assert host.started["b"] >= 3.0
    assert len(host.told) == 2 and host.told[0].startswith("after 10 s still missing: c: connection to c")


def test_what_is_missing_at_the_end_is_named_with_what_waits_for_it() -> None:
    host = Host({"b": 0.0, "d": 1.0})
    with pytest.raises(UnitsMissingError) as caught:
        host.run([A, B, C, FakeUnit("d")], wait_s=5.0)
    assert str(caught.value).startswith(
        "3 of 4 units are not ready after 5 s: "
        "a: connection to a refused; b: waits for a; c: waits for b; see "
    )
    assert caught.value.missing["c"] == "waits for b"
    assert ("d", "ready") in host.seen, "the others are started"


def test_waiting_ends_when_nothing_can_become_ready() -> None:
    host = Host({"d": 2.0}, failing={"a"})
    with pytest.raises(UnitsMissingError, match="2 of 3 units are not ready, and will not be: a: connection"):
        host.run([A, B, FakeUnit("d")])
    assert 2.0 <= host.now_s < 5.0, "the one that only was slow is ready"


def test_many_missing_units_are_counted() -> None:
    host = Host()
    with pytest.raises(UnitsMissingError, match="; and 3 more; see"):
        host.run([FakeUnit(f"u{number}") for number in range(8)], wait_s=1.0)
