"""ActiveMQ Classic as a peer: one broker out of Maven Central's jars, with KahaDB and the settings it has."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Final

from peers.jars import bench_jars, class_path
from peers.kafka import JAVA_ENV, QUIET
from peers.waiting import check_port_free, wait_for_listener
from side_by_side.process import PinnedProcess, ProcessFailedError

from headrace.warehouse.jars import java

VERSION: Final = "6.3.1"
PORT: Final = 61616
HEAP: Final = ("-Xms64M", "-Xmx1G")
"""As ActiveMQ's own start script."""


class ActiveMq:
    """One broker. It syncs its journal for each message that waits for a response, and for each commit."""

    def __init__(self, home: Path, address: str, cores: Collection[int]) -> None:
        """`home` is a folder of this peer alone, `address` a loopback host such as 127.106.0.2."""
        self.name = f"ActiveMQ Classic {VERSION}"
        self.url = f"tcp://{address}:{PORT}"
        self._home = home
        self._address = address
        self._cores = cores
        self._process: PinnedProcess | None = None

    def start(self) -> None:
        self.stop()
        check_port_free(self._address, PORT)
        jars = bench_jars("activemq")
        arguments = [str(self._home / "data"), self._address, str(PORT)]
        self._process = PinnedProcess(
            [java(), *HEAP, QUIET, "-cp", class_path(jars), "ActiveMqServer", *arguments],
            cores=self._cores,
            log=self._home / "broker.log",
            env=JAVA_ENV,
        )
        wait_for_listener(self._process, self._address, PORT)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None
        shutil.rmtree(self._home, ignore_errors=True)

    def pids(self) -> list[int]:
        return [self._running().pid]

    def memory_bytes(self) -> int:
        return self._running().memory_bytes()

    def _running(self) -> PinnedProcess:
        if self._process is None:
            raise ProcessFailedError(f"{self.name} is not started")
        return self._process
