"""The datacenter under test: ZooKeeper and brokers as processes, each with a disk under command."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from faults.disk import Disk, Orders
from faults.place import ZOOKEEPER, Place, SmallDisk, broker_host
from faults.supervision import HostAgent

from fix_zookeeper import ZooKeeperRoom, ZooKeeperServer, room_on

TOPIC: Final = "faults"
READY_WAIT_MAX_S: Final = 90.0
STOP_WAIT_MAX_S: Final = 60.0
ADMIN_WAIT_MAX_S: Final = 10.0
POLL_S: Final = 0.05
PROBE_WAIT_MAX_S: Final = 0.2
SMALL_DISK_BYTES: Final = 192 << 20
RESERVE_BYTES: Final = 4 << 20


class FaultsError(Exception):
    """The judge cannot go on; the message says what it waited for."""


class Broker:
    """One broker process; address, disk and logs outlive it. `supervised`: by its host's agent."""

    def __init__(
        self,
        number: int,
        place: Place,
        folder: Path,
        library: Path,
        usual: Orders,
        *,
        small: bool,
        supervised: bool,
    ) -> None:
        self.number = number
        self.host, self.port = place.address(broker_host(number))
        self.data_dir = folder / f"broker-{number}"
        self.log_file = folder / f"broker-{number}.log"
        self.small_disk = SmallDisk(self.data_dir, SMALL_DISK_BYTES) if small else None
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.disk = Disk(library, self.data_dir / "data", folder / f"faults-{number}", usual)
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None
        self._supervised = supervised
        self._agent: HostAgent | None = None
        self._ready_before = 0

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, zookeeper: str, settings: Mapping[str, str]) -> None:
        """Starts the process; `wait_until_ready` waits for it."""
        command = [sys.executable, "-m", "headrace.broker", "--broker-id", str(self.number)]
        command += ["--datacenter", "faults", "--listen", self.address, "--zookeeper", zookeeper]
        command += ["--data-dir", str(self.disk.data_dir)]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        self._ready_before = self._ready_lines()
        self._process = self._place.popen(
            broker_host(self.number), command, self.log_file, self.disk.environment
        )
        if self._supervised and self._agent is None:
            self._agent = HostAgent(self.disk.data_dir)

    def _ready_lines(self) -> int:
        return self.output().count(f"broker {self.number} ready on")

    def output(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def wait_until_ready(self) -> None:
        """Raises `FaultsError` if the process ends, or is not ready in time."""
        deadline = time.monotonic() + READY_WAIT_MAX_S
        while self._ready_lines() <= self._ready_before:
            if not self.is_running or time.monotonic() > deadline:
                state = "is not ready" if self.is_running else "has ended"
                raise FaultsError(f"broker {self.number} {state}:\n{self.output()[-3000:]}")
            time.sleep(POLL_S)

    def send_signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, also of a stopped process; returns once it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_WAIT_MAX_S)

    def end_agent(self) -> None:
        """From now until the next start nobody sees that the process has ended."""
        if self._agent is not None:
            self._agent.end()
            self._agent = None

    def stop(self) -> None:
        """SIGTERM. Raises `FaultsError` if the broker does not end."""
        if self._process is None:
            return
        self.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_WAIT_MAX_S)
        except subprocess.TimeoutExpired:
            raise FaultsError(
                f"broker {self.number} does not end within {STOP_WAIT_MAX_S:.0f} s of SIGTERM:"
                f"\n{self.output()[-3000:]}"
            ) from None

    def exhaust_descriptors(self) -> tuple[int, int]:
        """Leaves the process no further file descriptor; returns the limits to restore."""
        before = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
        highest = max(int(path.name) for path in Path(f"/proc/{self.pid}/fd").iterdir())
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (highest + 1, before[1]))
        return before

    def restore_descriptors(self, limits: tuple[int, int]) -> None:
        with suppress(ProcessLookupError):
            resource.prlimit(self.pid, resource.RLIMIT_NOFILE, limits)

    def close(self) -> None:
        self.end_agent()
        self.kill()
        if self.small_disk is not None:
            self.small_disk.close()


class Cluster:
    """ZooKeeper, its brokers, and the topic under test."""

    def __init__(
        self,
        place: Place,
        folder: Path,
        library: Path,
        count: int,
        settings: Mapping[str, str],
        usual: Orders,
        *,
        small: bool,
        supervised: bool,
    ) -> None:
        self.place = place
        self.folder = folder
        self.settings = dict(settings)
        host, _ = place.address(ZOOKEEPER)
        self.zookeeper = ZooKeeperServer(folder / "zookeeper", host)
        self.room: ZooKeeperRoom | None = None
        self._admin: AdminClient | None = None
        self.brokers = [
            Broker(number, place, folder, library, usual, small=small, supervised=supervised)
            for number in range(1, count + 1)
        ]
        if small:
            # The default reserve is larger than the small disk.
            self.settings["headrace.disk.free.min.bytes"] = str(RESERVE_BYTES)

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def start(self) -> None:
        self.zookeeper.start()
        self.room = room_on(self.zookeeper)
        for broker in self.brokers:
            self.start_broker(broker)
        for broker in self.brokers:
            broker.wait_until_ready()

    def start_broker(self, broker: Broker) -> None:
        assert self.room is not None
        broker.start(self.room.hosts, self.settings)

    def create_topic(self, partitions: int, replicas: int, settings: Mapping[str, str]) -> None:
        """Raises `FaultsError`. Waits until every broker is known, so that replicas spread."""
        deadline = time.monotonic() + READY_WAIT_MAX_S
        while len(self.admin().list_topics(timeout=ADMIN_WAIT_MAX_S).brokers) < len(self.brokers):
            if time.monotonic() > deadline:
                raise FaultsError("not all brokers are known after their start")
            time.sleep(POLL_S)
        wanted = NewTopic(TOPIC, partitions, replicas, config=dict(settings))
        try:
            self.admin().create_topics([wanted])[TOPIC].result(timeout=READY_WAIT_MAX_S)
        except KafkaException as error:
            raise FaultsError(f"the topic with {replicas} replicas cannot be made: {error}") from None

    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self._admin

    def probe(self, broker: Broker) -> None:
        """Opens a connection to one broker and asks it for metadata. Raises `KafkaException`."""
        client = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        client.list_topics(timeout=PROBE_WAIT_MAX_S)

    def leaders(self) -> dict[int, int]:
        """Returns the leader of each partition as a broker tells it; -1: none. Empty if nobody answers."""
        return {index: leader for index, (leader, _, _) in self.partitions().items()}

    def partitions(self) -> dict[int, tuple[int, list[int], list[int]]]:
        """Returns leader, replicas and in-sync replicas of each partition; empty if nobody answers."""
        try:
            found = self.admin().list_topics(TOPIC, timeout=ADMIN_WAIT_MAX_S).topics[TOPIC].partitions
        except (KafkaException, KeyError):
            return {}
        return {index: (each.leader, each.replicas, each.isrs) for index, each in found.items()}

    def close(self) -> None:
        for broker in self.brokers:
            broker.close()
        self.zookeeper.kill()
        self.place.close()


def tail(path: Path, lines: int = 12) -> str:
    """Returns the end of a log, for a finding."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""
