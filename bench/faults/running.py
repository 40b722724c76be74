"""The clients as processes, what they have reached, and reading everything back in the end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from faults.clients import FLUSH_MAX_S, ROLES
from faults.cluster import POLL_S, TOPIC, Cluster, FaultsError, tail
from faults.journals import Event, Progress, events
from faults.judge import Stored
from faults.place import CLIENTS

from headrace.client.consumer import Consumer

END_WAIT_MAX_S: Final = FLUSH_MAX_S + 60.0
READ_WAIT_MAX_S: Final = 300.0
IDLE_WAIT_MAX_S: Final = 30.0


class RunningClients:
    """One process for each role, each with a journal of its own."""

    def __init__(self, cluster: Cluster, partitions: int, pause_ms: float) -> None:
        self._folder = cluster.folder
        self._journals = {role: cluster.folder / f"{role}.journal" for role in ROLES}
        self.progress = Progress(
            [self._journals[role] for role in ROLES if role.startswith("produce")],
            [self._journals[role] for role in ROLES if role.startswith("consume")],
            partitions,
        )
        self._processes = {role: self._start(cluster, role, partitions, pause_ms) for role in ROLES}

    def _start(
        self, cluster: Cluster, role: str, partitions: int, pause_ms: float
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "faults.clients", role, "--name", role, "--topic", TOPIC]
        command += ["--bootstrap", cluster.bootstrap, "--partitions", str(partitions)]
        command += ["--journal", str(self._journals[role]), "--pause-ms", f"{pause_ms:g}"]
        path = {"PYTHONPATH": ":".join(sys.path)}
        return cluster.place.popen(CLIENTS, command, self._log(role), path)

    def _log(self, role: str) -> Path:
        return self._folder / f"{role}.log"

    def check_running(self) -> None:
        """Raises `FaultsError` if a client has ended by itself."""
        for role, process in self._processes.items():
            if process.poll() is not None:
                raise FaultsError(
                    f"the client {role} has ended with {process.returncode}:\n{tail(self._log(role))}"
                )

    def finish(self) -> None:
        """Ends the producers once all is answered, then the readers. Raises `FaultsError`."""
        for prefix in ("produce", "consume"):
            chosen = {role: each for role, each in self._processes.items() if role.startswith(prefix)}
            for process in chosen.values():
                process.send_signal(signal.SIGTERM)
            for role, process in chosen.items():
                try:
                    process.wait(END_WAIT_MAX_S)
                except subprocess.TimeoutExpired:
                    raise FaultsError(f"the client {role} does not end: {tail(self._log(role))}") from None
            if prefix == "produce":
                self._wait_for_readers()

    def _wait_for_readers(self) -> None:
        """Returns once the readers read nothing new: what they miss is judged, not waited for."""
        deadline = time.monotonic() + IDLE_WAIT_MAX_S
        since_s = time.monotonic()
        while time.monotonic() < deadline and time.monotonic() - since_s < 1.0:
            if self.progress.follow():
                since_s = time.monotonic()
            time.sleep(POLL_S)

    def events(self) -> list[Event]:
        """Returns everything that the clients wrote down, those of one client in its own order."""
        return [event for path in self._journals.values() if path.exists() for event in events(path)]

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()


def read_everything(bootstrap: str, partitions: int) -> tuple[dict[int, list[Stored]], dict[int, int]]:
    """Returns each partition's records from its beginning to its high watermark, and the high watermarks.

    Raises `FaultsError` if that takes too long.
    """
    logs: dict[int, list[Stored]] = {index: [] for index in range(partitions)}
    deadline = time.monotonic() + READ_WAIT_MAX_S
    with Consumer(bootstrap, auto_offset_reset="error") as consumer:
        consumer.assign((TOPIC, index) for index in logs)
        for index in logs:
            consumer.seek_to_end(TOPIC, index)
        ends = {index: consumer.position(TOPIC, index) for index in logs}
        for index in logs:
            consumer.seek(TOPIC, index, 0)
        while any(consumer.position(TOPIC, index) < end for index, end in ends.items()):
            if time.monotonic() > deadline:
                raise FaultsError("the topic cannot be read to its end")
            for record in consumer.poll(1.0):
                life, number = (record.value or b"").decode().split(" ")
                logs[record.partition].append(Stored(record.offset, life, int(number)))
    return logs, ends
