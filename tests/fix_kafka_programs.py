"""Programs of Kafka's world that keep their state in compacted topics: Kafka Connect, Kafka Streams.

Fixture: `kafka_programs`, which starts them, each in a JVM of its own; jars of Maven Central, fetched once
into `.headrace/jars/kafka-programs/`. tests/java_programs/ holds the pom and the Streams program.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from fix_java import QUICK_JVM, class_path
from fix_zookeeper import die_with_parent
from headrace.warehouse.jars import JarSet, ensure_set

WAIT_MAX_S: Final = 120.0
_JAVA: Final = Path(__file__).parent / "java_programs"
_LOGGED: Final = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


class Program:
    """A JVM that runs until it is ended. All that it says goes to `log`."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, preexec_fn=die_with_parent
            )

    def wait_until(self, reached: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_MAX_S
        while not reached():
            assert self._process.poll() is None, f"it ended: {self.output()[-3000:]}"
            assert time.monotonic() < deadline, f"not {what} in time: {self.output()[-3000:]}"
            time.sleep(0.1)

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(how)
        self._process.wait(timeout=WAIT_MAX_S)


class KafkaPrograms:
    """Starts programs; `close` ends those that still run."""

    def __init__(self, jars: Path) -> None:
        self._jars = jars
        self._started: list[Program] = []

    def start(self, log: Path, class_name: str, *arguments: str) -> Program:
        command = ["java", "-Xmx512m", *QUICK_JVM, _LOGGED, "-cp", class_path(self._jars), class_name]
        self._started.append(Program([*command, *arguments], log))
        return self._started[-1]

    def connect(self, folder: Path, settings: Mapping[str, str]) -> Program:
        """A worker of Kafka Connect, in distributed mode."""
        folder.mkdir(exist_ok=True)
        file = folder / "worker.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        return self.start(folder / "out.log", main, str(file))

    def close(self) -> None:
        for program in self._started:
            program.end(signal.SIGKILL)


@pytest.fixture(scope="session")
def kafka_program_jars() -> Path:
    home = Path(os.environ.get("HEADRACE_HOME", Path(__file__).parents[1] / ".headrace")).resolve()
    sources = tuple(sorted((_JAVA / "src").glob("*.java")))
    return ensure_set(
        JarSet("kafka-programs", _JAVA / "pom.xml", sources), home=home, progress=lambda _: None
    )


@pytest.fixture
def kafka_programs(kafka_program_jars: Path) -> Iterator[KafkaPrograms]:
    programs = KafkaPrograms(kafka_program_jars)
    yield programs
    programs.close()
