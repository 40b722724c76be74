"""A site over several hosts: the units of `fleet.units`, each started in the host that has its address.

Fixture: `open_site`, a factory over `open_network`: `site = open_site({"east": {"east-1": (2, 3, 4, 11)}, …},
mirrors=["east"])`; `site.start("east-zookeeper", …)` starts units and waits until their own probes report
them ready. The address plan is that of `site.site`.
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from fix_network import NETWORKS, Network, OpenNetwork
from headrace.agent.unit import Unit, levels
from headrace.fleet.units import units_of
from headrace.site.site import Datacenter, MirrorRoute, Site

READY_WAIT_MAX_S: Final = 180.0
WAREHOUSE: Final = "analysis"
Result = TypeVar("Result")


class NetworkSite:
    """The units of `site` in the hosts of `network`; logs and data lie in `site.home`."""

    def __init__(self, network: Network, site: Site) -> None:
        self.network = network
        self.site = site
        self.units = {unit.name: unit for unit in units_of(site)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def host_of(self, unit: str) -> str:
        return self.network.host_of(self.units[unit].listens[0].host)

    def without(self, *kinds: str) -> list[str]:
        """Returns the names of all units except those of these kinds."""
        return [unit.name for unit in self.units.values() if unit.kind not in kinds]

    def start(self, *names: str, extra: Sequence[str] = ()) -> None:
        """Starts these units, each with `extra` arguments, in order of requirement, and waits for each."""
        chosen = [self.units[name] for name in names]
        alone = [replace(unit, requires=tuple(set(unit.requires) & set(names))) for unit in chosen]
        for level in levels(alone):
            for unit in level:
                self._spawn(unit, extra)
            for unit in level:
                self._wait_until_ready(unit)

    def _spawn(self, unit: Unit, extra: Sequence[str]) -> None:
        for path, text in unit.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (self.site.home / "data" / unit.datacenter).mkdir(parents=True, exist_ok=True)
        self._processes[unit.name] = self.network.popen(
            self.host_of(unit.name), [*unit.command, *extra], unit.log_path, unit.environment
        )

    def _wait_until_ready(self, unit: Unit) -> None:
        deadline = time.monotonic() + READY_WAIT_MAX_S
        while problem := self.network.call(self.host_of(unit.name), unit.probe.check):
            assert self._processes[unit.name].poll() is None, f"{unit.name} ended: {self.log(unit.name)}"
            assert time.monotonic() < deadline, f"{unit.name}: {problem}: {self.log(unit.name)}"
            time.sleep(0.1)

    def stop(self, name: str) -> int:
        """Sends SIGTERM and waits; returns the exit code."""
        process = self._processes.pop(name)
        process.terminate()
        return process.wait(READY_WAIT_MAX_S)

    def log(self, name: str) -> str:
        return self.units[name].log_path.read_text(errors="replace")[-4000:]

    def files_of(self, datacenter: str, topic: str, partition: int) -> list[Path]:
        """Returns a partition's segment files, by address, of the first broker that has a replica."""
        folders = sorted((self.site.home / "data" / datacenter).glob(f"broker-*/{topic}-{partition}"))
        return sorted(folders[0].glob("*.log")) if folders else []

    def call(self, datacenter: str, function: Callable[..., Result], *arguments: Any) -> Result:
        """Calls a function in the datacenter's first host, as `Network.call`."""
        return self.network.call(next(iter(self.network.plan[datacenter])), function, *arguments)


OpenSite = Callable[..., NetworkSite]


@pytest.fixture(scope="module")
def open_site(open_network: OpenNetwork) -> Iterator[OpenSite]:
    """Sites that last as long as the test file, without running units at first."""
    opened: list[NetworkSite] = []

    def open_one(
        plan: Mapping[str, Mapping[str, Sequence[int]]],
        *,
        mirrors: Sequence[str],
        broker_settings: Mapping[str, str] | None = None,
    ) -> NetworkSite:
        # The site file's addresses are those of one machine; here each namespace has its own.
        datacenters = tuple(
            Datacenter.model_construct(
                name=name,
                network=NETWORKS[name],
                broker_count=sum(10 < number < 20 for numbers in hosts.values() for number in numbers),
                broker_settings=broker_settings or {},
            )
            for name, hosts in plan.items()
        )
        site = Site.model_construct(
            home=Path(tempfile.mkdtemp(prefix="headrace-network-")),
            datacenters=datacenters,
            mirrors=tuple(MirrorRoute(source=source, target=WAREHOUSE) for source in mirrors),
            warehouse=WAREHOUSE,
            airflow=False,
            airflow_database=None,
        )
        opened.append(NetworkSite(open_network(plan), site))
        return opened[-1]

    yield open_one
    for each in opened:
        each.network.close()
        shutil.rmtree(each.site.home, ignore_errors=True)
