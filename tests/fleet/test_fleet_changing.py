"""`headrace up` gives running brokers another configuration one by one, each once the one before is back."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from fix_restarts import BROKERS, TOPIC, isr, slow_topic, watched
from headrace.agent.unit import Unit
from headrace.client import Admin
from headrace.fleet import operate
from headrace.fleet.changing import Changing
from headrace.fleet.units import units_of
from headrace.fleet.waiting import UnitsMissingError, Waiting
from headrace.site.site import Site

BLOCK: Final = 122
CHANGED: Final = {"log.retention.bytes": str(3 << 30)}
BROKER_UNITS: Final = [f"east-broker-{broker_id}" for broker_id in BROKERS]
GIVE_UP_S: Final = 12.0


def units(site: Site, broker_settings: Mapping[str, str] = {}) -> list[Unit]:
    """ZooKeeper and the brokers of a datacenter."""
    east = site.datacenter("east").model_copy(update={"broker_settings": dict(broker_settings)})
    others = tuple(each for each in site.datacenters if each.name != "east")
    changed = site.model_copy(update={"datacenters": (east, *others)})
    return [unit for unit in units_of(changed) if unit.name in ("east-zookeeper", *BROKER_UNITS)]


def requirements(of: list[Unit], ready: Collection[str], unchanged: Collection[str]) -> dict[str, list[str]]:
    """Returns what each broker requires besides ZooKeeper."""
    return {
        unit.name.removeprefix("east-broker-"): [name[-1] for name in unit.requires if "broker" in name]
        for unit in Changing(of, ready, unchanged).units
        if unit.name in BROKER_UNITS
    }


def test_only_running_brokers_that_change_wait_for_others(tmp_path: Path) -> None:
    all_units = units(Site.one_machine(tmp_path, block=BLOCK))
    names = [unit.name for unit in all_units]
    nothing: dict[str, list[str]] = {"1": [], "2": [], "3": []}
    assert requirements(all_units, (), ()) == nothing, "a first start"
    assert requirements(all_units, (), names) == nothing, "all are down and start again"
    assert requirements(all_units, names, names) == nothing
    assert requirements(all_units, names, ()) == {"1": [], "2": ["1"], "3": ["1", "2"]}
    assert requirements(all_units, names, BROKER_UNITS[1:2]) == {"1": [], "2": [], "3": ["1"]}
    missing_third = [name for name in names if name != BROKER_UNITS[2]]
    assert requirements(all_units, missing_third, ()) == {"1": ["3"], "2": ["3", "1"], "3": []}
    assert requirements(all_units, missing_third, BROKER_UNITS[2:]) == {"1": ["3"], "2": ["3", "1"], "3": []}


def test_brokers_of_other_datacenters_are_not_waited_for(tmp_path: Path) -> None:
    all_units = units(Site.one_machine(tmp_path, block=BLOCK))
    moved = [replace(unit, datacenter="west") if unit.name == BROKER_UNITS[0] else unit for unit in all_units]
    names = [unit.name for unit in moved]
    assert requirements(moved, names, ()) == {"1": [], "2": [], "3": ["2"]}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Site]:
    site = Site.one_machine(tmp_path / "home", block=BLOCK)
    operate.up(site, units=units(site))
    yield site
    operate.down(site, units=units(site))


def bootstrap(site: Site) -> list[str]:
    return [str(address) for address in site.datacenter("east").brokers.values()]


@pytest.mark.zookeeper
def test_each_broker_is_in_sync_again_before_the_next_one_changes(running: Site) -> None:
    slow_topic(bootstrap(running), bytes_per_s=500_000)
    seen: list[tuple[str, str]] = []
    with watched(bootstrap(running)) as in_sync:
        operate.up(running, lambda unit, what: seen.append((unit.name, what)), units=units(running, CHANGED))
    brokers = [each for each in seen if each[0] in BROKER_UNITS]
    assert brokers == [(name, what) for name in BROKER_UNITS for what in ("starting", "ready")]
    assert min(in_sync) == 2, "never were two of three replicas out of sync"
    with Admin(bootstrap(running)) as admin:
        assert set(isr(admin)) == set(BROKERS)
        (changed,) = CHANGED
        found = {broker_id: admin.describe_broker_configs(broker_id, CHANGED) for broker_id in BROKERS}
        assert {configs[changed].value for configs in found.values()} == {CHANGED[changed]}


@pytest.mark.zookeeper
def test_a_broker_that_does_not_get_in_sync_keeps_the_others_as_they_were(running: Site) -> None:
    slow_topic(bootstrap(running), bytes_per_s=1)
    seen: list[str] = []
    with (
        watched(bootstrap(running)),
        pytest.raises(UnitsMissingError) as caught,
    ):
        operate.up(
            running,
            lambda unit, what: seen.append(unit.name),
            units=units(running, CHANGED),
            waiting=Waiting(GIVE_UP_S),
        )
    first, second, third = BROKER_UNITS
    assert f"still fetches 1 of its partitions ({TOPIC}-0)" in caught.value.missing[first]
    assert caught.value.missing[second] == f"waits for {first}"
    assert caught.value.missing[third] == f"waits for {first}, {second}"
    assert first in seen and second not in seen and third not in seen
