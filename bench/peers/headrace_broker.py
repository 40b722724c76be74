"""headrace as a peer: its brokers and their ZooKeeper, started by the commands that an agent uses."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from peers.kafka import JAVA_ENV
from peers.topics import Topics
from peers.waiting import check_port_free, wait_until
from side_by_side.process import PinnedProcess, ProcessFailedError

from headrace.agent.configuration import BrokerConfiguration, ZooKeeperConfiguration
from headrace.agent.host import Host
from headrace.agent.kinds import unit_of
from headrace.agent.unit import Unit
from headrace.site.addresses import Address

PORT: Final = 9092
ZOOKEEPER_PORT: Final = 2181
DATACENTER: Final = "bench"


class HeadraceBroker:
    """One broker, or `count` of them, with default settings only. `name` is "headrace" for one."""

    def __init__(
        self,
        home: Path,
        address: str,
        cores: Collection[int],
        count: int = 1,
        *,
        replicas: int = 1,
        topic_config: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`home` is a folder of this peer alone, `address` a loopback host such as 127.106.0.2.

        Brokers listen on 9092 and the ports that follow. Several share the cores evenly, each on its own.
        Topics have `replicas` replicas and the settings of `topic_config`. `environment` is added to that of
        the processes.
        """
        self._environment = environment or {}
        self.environments: dict[int, Mapping[str, str]] = {}
        """By a broker's id, what is added to its environment alone."""
        self.name = "headrace" if count == 1 else f"headrace, {count} brokers"
        self._replicas, self._topic_config = replicas, topic_config
        self.bootstrap = ",".join(f"{address}:{PORT + number}" for number in range(count))
        self._home = home.absolute()
        self._address = address
        self._cores = sorted(cores)
        host = Host.here(self._home)
        self._zookeeper_unit = unit_of(
            "zookeeper",
            ZooKeeperConfiguration(datacenter=DATACENTER, listen=Address(address, ZOOKEEPER_PORT)),
            host,
        )
        self._units = [
            unit_of(
                f"broker-{number + 1}",
                BrokerConfiguration(
                    datacenter=DATACENTER,
                    broker_id=number + 1,
                    zookeeper=f"{address}:{ZOOKEEPER_PORT}",
                    listen=Address(address, PORT + number),
                ),
                host,
            )
            for number in range(count)
        ]
        self._topics = self._no_topics()
        self._zookeeper: PinnedProcess | None = None
        self._brokers: list[PinnedProcess] = []

    def start(self) -> None:
        self.stop()
        check_port_free(self._address, ZOOKEEPER_PORT)
        for number in range(len(self._units)):
            check_port_free(self._address, PORT + number)
        self._topics = self._no_topics()
        self._zookeeper = self._launch(self._zookeeper_unit, self._cores)
        self._wait_until_ready(self._zookeeper_unit, self._zookeeper)
        self.launch()

    def stop(self) -> None:
        for process in (*self._brokers, self._zookeeper):
            if process is not None:
                process.kill()
        self._brokers, self._zookeeper = [], None
        shutil.rmtree(self._home, ignore_errors=True)

    def pids(self) -> list[int]:
        """Returns the brokers' processes, without ZooKeeper, which idles while records flow."""
        self._check_started()
        return [broker.pid for broker in self._brokers]

    def memory_bytes(self) -> int:
        self._check_started()
        return sum(broker.memory_bytes() for broker in self._brokers)

    def create_topic(self, topic: str, partitions: int = 1, *, replicas: int | None = None) -> None:
        self._topics.create(topic, partitions, replicas)

    def delete_topic(self, topic: str) -> None:
        self._topics.delete(topic)

    def restart_after_kill(self) -> float:
        """Ends all brokers, not ZooKeeper."""
        before = self._topics.log_ends()
        self.kill()
        started_s = time.monotonic()
        self.launch()
        self._topics.wait_for_log_ends(before, self._brokers[0])
        return time.monotonic() - started_s

    @property
    def data_dirs(self) -> dict[int, Path]:
        """Returns where each broker keeps its logs, by its id."""
        return {number: unit.data_dir for number, unit in enumerate(self._units, 1) if unit.data_dir}

    def kill(self) -> None:
        """Ends all brokers by SIGKILL, not ZooKeeper; their data stays."""
        for broker in self._brokers:
            broker.kill()

    def launch(self) -> None:
        """Starts all brokers on the data that is there; returns once they serve."""
        self._brokers = []
        for number, unit in enumerate(self._units, 1):
            own = self._cores if len(self._units) == 1 else [self._cores[(number - 1) % len(self._cores)]]
            self._brokers.append(self._launch(unit, own, self.environments.get(number, {})))
        for unit, broker in zip(self._units, self._brokers, strict=True):
            self._wait_until_ready(unit, broker)

    # --- the processes ---

    def _no_topics(self) -> Topics:
        return Topics(
            self.bootstrap,
            list(self.data_dirs.values()),
            replicas=self._replicas,
            config=self._topic_config,
        )

    def _check_started(self) -> None:
        if not self._brokers:
            raise ProcessFailedError(f"{self.name} is not started")

    def _launch(
        self, unit: Unit, cores: Collection[int], environment: Mapping[str, str] | None = None
    ) -> PinnedProcess:
        for path, text in unit.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return PinnedProcess(
            unit.command,
            cores=cores,
            log=unit.log_path,
            env={**unit.environment, **JAVA_ENV, **self._environment, **(environment or {})},
        )

    @staticmethod
    def _wait_until_ready(unit: Unit, process: PinnedProcess) -> None:
        wait_until(lambda: unit.probe.check() is None, f"{unit.name} is ready", process)
