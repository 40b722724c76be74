"""`headrace up` where another program has made units: it names them, and leaves them alone unless told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fix_agent import units_left_in
from headrace.agent.home import AgentHome
from headrace.agent.local import find_agent
from headrace.agent.report import UnitReport
from headrace.agent.unit import Unit
from headrace.cli import site as commands
from headrace.fleet import operate
from headrace.fleet.foreign import MADE_BY, ForeignUnit, ForeignUnitsError, foreign_units, sentence
from headrace.fleet.status import unit_reports
from headrace.site.addresses import Address
from headrace.site.site import Site
from stand_in_agent import stand_in


def reported(name: str, made_by: str, value: int = 1) -> UnitReport:
    return UnitReport(
        name=name,
        kind="broker",
        datacenter="east",
        configuration={"value": value},
        state="RUNNING",
        note="",
        problem=None,
        notice="",
        drift=(),
        pid=1,
        uptime_s=1,
        version="1",
        definition="",
        requires=(),
        listens=(),
        log="",
        made_by=made_by,
    )


WANTED = {"east-broker-1": {"value": 1}}


@pytest.mark.parametrize(
    ("report", "conflicting", "expected"),
    [
        (reported("east-broker-1", "terraform"), set(), []),
        (reported("east-broker-1", "terraform", 2), set(), [("east-broker-1", False)]),
        (reported("east-broker-1", "terraform"), {"east-broker-1"}, [("east-broker-1", True)]),
        (reported("x", "terraform"), set(), [("x", True)]),
        (reported("x", ""), set(), [("x", True)]),
        (reported("x", MADE_BY), set(), []),
        (reported("east-broker-1", MADE_BY, 2), {"east-broker-1"}, []),
        # A site of an earlier version, after an update that changes a default.
        (reported("east-broker-1", "", 2), set(), []),
    ],
)
def test_which_units_are_foreign(
    report: UnitReport, conflicting: set[str | None], expected: list[tuple[str, bool]]
) -> None:
    found = foreign_units([report], WANTED, conflicting)
    assert [(unit.name, unit.is_removed) for unit in found] == expected


def test_the_error_names_every_unit_and_the_way_out() -> None:
    units = [
        ForeignUnit("a", "terraform", is_removed=True),
        ForeignUnit("b", "", is_removed=True),
        ForeignUnit("c", "terraform", is_removed=False),
    ]
    assert sentence(units) == (
        "remove 2 units that it did not make: a (made by terraform), b (maker unknown); and give another "
        "configuration to a unit that it did not make: c (made by terraform)"
    )
    message = str(ForeignUnitsError(units))
    assert "--yes" in message
    assert "terraform apply" in message


def test_reports_of_earlier_agents_have_no_maker() -> None:
    data = reported("x", "terraform").to_json()
    assert UnitReport.from_json(data).made_by == "terraform"
    del data["made_by"]
    assert UnitReport.from_json(data).made_by == ""


# --- with a real agent ---


@pytest.fixture
def site(tmp_path: Path, stand_in_program: None) -> Iterator[Site]:
    site = Site.one_machine(tmp_path / "home", block=96)
    site.home.mkdir()
    yield site
    operate.down(site, units=())


@pytest.fixture
def own(site: Site) -> Unit:
    return stand_in(site.home, "own", Address("127.106.3.1", 8081))


@pytest.fixture
def foreign(site: Site, own: Unit) -> Unit:
    """A unit of Terraform beside one of `headrace up`."""
    operate.up(site, units=[own])
    unit = stand_in(site.home, "made-by-hcl", Address("127.106.3.2", 8081))
    client = find_agent(site.home, made_by="terraform")
    assert client is not None
    with client:
        assert unit.configuration is not None
        client.put(unit.name, unit.configuration.model_dump(mode="json"), wait_s=60)
        assert {report.name: report.made_by for report in client.units()} == {
            "own": MADE_BY,
            "made-by-hcl": "terraform",
        }
    return unit


def test_up_leaves_the_units_of_others_alone(site: Site, own: Unit, foreign: Unit) -> None:
    pids = set(units_left_in(site.home))
    with pytest.raises(ForeignUnitsError, match=r"made-by-hcl \(made by terraform\)"):
        operate.up(site, units=[own])
    assert set(units_left_in(site.home)) == pids

    asked: list[ForeignUnit] = []

    def agree(units: Sequence[ForeignUnit]) -> bool:
        asked.extend(units)
        return True

    operate.up(site, units=[own], may_change=agree)
    assert asked == [ForeignUnit("made-by-hcl", "terraform", is_removed=True)]
    assert [row.name for row in unit_reports(site, units=[own])] == ["own"]


def test_the_command_without_a_terminal_needs_yes(
    site: Site,
    own: Unit,
    foreign: Unit,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(site.home))
    monkeypatch.setattr("headrace.fleet.units.units_of", lambda site: [own])
    monkeypatch.setattr("headrace.fleet.operate.units_of", lambda site: [own])
    monkeypatch.setattr(commands, "site", lambda: site.model_copy(update={"airflow": False}))
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(ForeignUnitsError):
        commands.up()
    assert "made-by-hcl (made by terraform)" in capsys.readouterr().err
    commands.up(yes=True)
    assert "made-by-hcl (made by terraform)" in capsys.readouterr().err
    assert [row.name for row in unit_reports(site, units=[own])] == ["own"]


def test_a_unit_belongs_to_the_last_who_put_it(site: Site, own: Unit) -> None:
    operate.up(site, units=[own])
    client = find_agent(site.home, made_by="terraform")
    assert client is not None
    assert own.configuration is not None
    with client:
        assert client.put("own", own.configuration.model_dump(mode="json")).outcome == "unchanged"
        assert client.unit("own").made_by == "terraform"
    record = AgentHome(site.home).units / "own.json"
    assert json.loads(record.read_text())["made_by"] == "terraform"
    # `headrace up` changes nothing of it, and does not take it over.
    operate.up(site, units=[own])
    assert json.loads(record.read_text())["made_by"] == "terraform"
