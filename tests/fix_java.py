"""The Java client and Apache Kafka's own tools, for tests: jars from Maven Central, one servant JVM a run.

Fixtures: `kafka_jars` (the jars; fetched once into `.headrace/jars/kafka-peer/`, with the servant compiled),
`java_peer` (a `JavaPeer`: the Java client, driven line by line) and `kafka_tool` (runs one of Apache Kafka's
command-line classes). tests/java/ holds the pom and the servant's source; nothing here knows headrace.
"""

import contextlib
import os
import queue
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import pytest

from fix_zookeeper import die_with_parent
from headrace.warehouse.jars import JarSet, ensure_set

MAVEN_WAIT_MAX_S: Final = 600.0
ANSWER_WAIT_MAX_S: Final = 120.0
TOOL_WAIT_MAX_S: Final = 120.0
_JAVA: Final = Path(__file__).parent / "java"
_SOURCES: Final = tuple(sorted((_JAVA / "src").glob("*.java")))
QUICK_JVM: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""Most of these JVMs live for a second or two: no time for the optimising compiler to pay for itself."""
QUIET: Final = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


def run_checked(command: list[str], *, timeout_s: float) -> str:
    """The command's output; its error output is in the failure."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, (
        f"{command[0]} … {command[-1]} ended with {done.returncode}: {(done.stdout + done.stderr)[-3000:]}"
    )
    return done.stdout


def ensure_kafka_jars() -> Path:
    """The folder of jars and `classes/`; safe to call from several processes.

    Made anew when the pom or a source changes."""
    home = Path(os.environ.get("HEADRACE_HOME", Path(__file__).parents[1] / ".headrace")).resolve()
    wanted = JarSet("kafka-peer", _JAVA / "pom.xml", _SOURCES)
    return ensure_set(wanted, home=home, progress=lambda _: None)


def class_path(jars: Path) -> str:
    return f"{jars / 'classes'}:{jars}/*"


class JavaPeerError(AssertionError):
    """The Java client said no; the message is its own."""


class JavaPeer:
    """One JVM with the Java client in it. See tests/java/src/Peer.java for the commands."""

    def __init__(self, jars: Path, log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                ["java", "-Xmx512m", "-XX:+UseSerialGC", QUIET, "-cp", class_path(jars), "Peer"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                preexec_fn=die_with_parent,
            )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, name="java-peer", daemon=True).start()

    def __call__(
        self, verb: str, configuration: Mapping[str, object] | None = None, **arguments: object
    ) -> dict[str, str]:
        """Performs one command. Raises `JavaPeerError` with the client's message, or when nothing answers."""
        given = {**(configuration or {}), **arguments}
        words = [verb, *(f"{name}={value}" for name, value in given.items())]
        pipe: IO[str] | None = self._process.stdin
        assert pipe is not None
        pipe.write("\t".join(words) + "\n")
        pipe.flush()
        try:
            answer = self._answers.get(timeout=ANSWER_WAIT_MAX_S)
        except queue.Empty:
            raise JavaPeerError(f"{verb}: no answer within {ANSWER_WAIT_MAX_S:g} s. {self._tail()}") from None
        outcome, *pairs = answer.split("\t")
        if outcome != "ok":
            raise JavaPeerError(f"{verb}: {answer or 'the JVM ended'}. {self._tail()}")
        return dict(pair.split("=", 1) for pair in pairs)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=30)
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):
            for line in self._process.stdout:
                self._answers.put(line.rstrip("\n"))
        self._answers.put("")

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]


@dataclass(frozen=True)
class KafkaTool:
    """Runs a class of Apache Kafka's tools to its end, in a JVM of its own."""

    jars: Path

    def command(self, class_name: str, *arguments: str) -> list[str]:
        return ["java", "-Xmx256m", *QUICK_JVM, QUIET, "-cp", class_path(self.jars), class_name, *arguments]

    def __call__(self, class_name: str, *arguments: str, stdin: bytes = b"") -> bytes:
        """The tool's output. Fails with both its streams when it does not end with 0 in time."""
        done = subprocess.run(
            self.command(class_name, *arguments),
            input=stdin,
            capture_output=True,
            timeout=TOOL_WAIT_MAX_S,
            check=False,
        )
        assert done.returncode == 0, f"{class_name} ended with {done.returncode}: " + (
            done.stdout + done.stderr
        )[-3000:].decode(errors="replace")
        return done.stdout


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    return ensure_kafka_jars()


@pytest.fixture(scope="session")
def java_peer(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    peer = JavaPeer(kafka_jars, tmp_path_factory.mktemp("java-peer") / "stderr.log")
    yield peer
    peer.close()


@pytest.fixture(scope="session")
def kafka_tool(kafka_jars: Path) -> KafkaTool:
    return KafkaTool(kafka_jars)
