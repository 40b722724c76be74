"""The C client: it builds without a warning, refuses wrong options, and its counts are exact."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clients.outcome import ClientFailedError, Outcome
from clients.running import run

from clients import rdkafka
from fix_broker import BrokerCluster, RawClient

RECORDS = 12_345
WAIT_MAX_S = 60.0
ALL_CORES = range(8)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The program, built into a home of its own."""
    if not rdkafka.is_installed():
        pytest.skip("librdkafka-dev is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_HOME", str(tmp_path_factory.mktemp("rdkafka")))
        yield rdkafka.ensure_client()


def failure(client: Path, *words: str) -> str:
    """The message of a run that must fail."""
    done = subprocess.run([client, *words], capture_output=True, text=True, timeout=WAIT_MAX_S, check=False)
    assert done.returncode == 1, done
    return done.stderr


def test_it_builds_once(client: Path) -> None:
    built_ns = client.stat().st_mtime_ns
    assert rdkafka.ensure_client() == client
    assert client.stat().st_mtime_ns == built_ns
    client.with_suffix(".digest").write_text("that of another source")
    rdkafka.ensure_client()
    assert client.stat().st_mtime_ns > built_ns
    assert {path.name for path in client.parent.iterdir()} == {"rdkafka_bench", "rdkafka_bench.digest"}


def test_without_the_header_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdkafka, "HEADER", tmp_path / "rdkafka.h")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(rdkafka.ClientMissingError, match="apt-get install librdkafka-dev"):
        rdkafka.ensure_client(tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["send"], "send: it must be produce or consume"),
        (["produce", "--topic", "t"], "--bootstrap and --topic are needed"),
        (["produce", "--partitions", "0"], "--partitions is 0: it must be a whole number from 1 to"),
        (["produce", "--seconds", "-1"], "--seconds is -1: it must be a number of seconds"),
        (["produce", "--value-bytes", "200x"], "--value-bytes is 200x: it must be a whole number"),
        (["produce", "--bootstrap", "b", "--topic", "t"], "produce needs --seconds or --records"),
    ],
)
def test_wrong_options_are_refused(client: Path, words: list[str], message: str) -> None:
    if words == ["send"]:
        words = [*words, "--bootstrap", "b", "--topic", "t"]
    assert message in failure(client, *words)


def test_a_setting_that_librdkafka_does_not_know_is_refused(client: Path) -> None:
    words = ["produce", "--bootstrap", "127.0.0.1:1", "--topic", "t", "--seconds", "1", "--set", "no.such=1"]
    assert "no.such=1: No such configuration property" in failure(client, *words)


# --- against a broker ---


@dataclass(frozen=True)
class Place:
    """A topic of the broker, with three partitions, and the program that moves its records."""

    bootstrap: str
    topic: str
    log: Path

    def produce(self, **options: Any) -> Outcome:
        return self.run(rdkafka.produce_command(self.bootstrap, self.topic, **options))

    def consume(self, **options: Any) -> Outcome:
        return self.run(rdkafka.consume_command(self.bootstrap, self.topic, **options))

    def run(self, command: list[str]) -> Outcome:
        return run(command, cores=ALL_CORES, log=self.log, timeout_s=WAIT_MAX_S)


@pytest.fixture
def place(client: Path, one_broker: BrokerCluster, tmp_path: Path) -> Place:
    topic = f"rdkafka-{uuid.uuid4().hex}"
    with RawClient(one_broker.brokers[0].address) as raw:
        raw.create_topic(topic, 3)
    return Place(one_broker.bootstrap, topic, tmp_path / "client.log")


@pytest.mark.parametrize(("batch", "acks"), [(0, "all"), (50, "all"), (1, "all"), (0, "1"), (50, "0")])
def test_what_it_produces_is_consumed(place: Place, batch: int, acks: str) -> None:
    part = {"partitions": 2, "first_partition": 1, "value_bytes": 77}
    sent = place.produce(records=RECORDS, batch=batch, acks=acks, **part)
    assert (sent.records, sent.size_bytes) == (RECORDS, RECORDS * 77)
    assert place.consume(records=RECORDS, **part).records == RECORDS
    until_end = place.consume(**part)
    assert (until_end.records, until_end.size_bytes) == (RECORDS, RECORDS * 77)
    with pytest.raises(ClientFailedError, match="has 77 bytes, and 78 are expected"):
        place.consume(**{**part, "value_bytes": 78})


def test_a_timed_run_counts_what_is_acknowledged_and_reads_a_log_again(place: Place) -> None:
    moments: list[str] = []
    sent = run(
        rdkafka.produce_command(place.bootstrap, place.topic, seconds=0.5, warmup_s=0.2, batch=50),
        cores=ALL_CORES,
        log=place.log,
        on_begin=lambda: moments.append("begin"),
        on_end=lambda: moments.append("end"),
        timeout_s=WAIT_MAX_S,
    )
    assert moments == ["begin", "end"]
    stored = place.consume()
    assert 0 < sent.records < stored.records, "the warm-up and the drain are not in the outcome"
    again = place.consume(seconds=3, warmup_s=0.1)
    assert again.more["rounds"] > 1
    assert again.records > stored.records


def test_a_topic_or_partition_that_is_missing_is_named(client: Path, place: Place) -> None:
    timed = ["--bootstrap", place.bootstrap, "--seconds", "1"]
    message = failure(client, "produce", *timed, "--topic", place.topic, "--partitions", "4")
    assert "has 3 partitions, and partition 3 is asked for" in message
    assert "topic no-such-topic" in failure(client, "consume", *timed, "--topic", "no-such-topic")


def test_a_program_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(ClientFailedError, match="it is stopped after 0 s"):
        run(["sleep", "60"], cores=ALL_CORES, log=tmp_path / "client.log", timeout_s=0.3)


def test_idle_connections_stay_open_until_they_are_stopped(one_broker: BrokerCluster, tmp_path: Path) -> None:
    broker = one_broker.brokers[0]
    before = open_sockets(broker.pid)
    log = tmp_path / "connections.log"
    held = rdkafka.hold_connections(broker.address, 50, cores=ALL_CORES, log=log)
    try:
        assert open_sockets(broker.pid) - before == 50
        held.check_running()
    finally:
        held.stop()
    assert log.read_text() == "", "no connection was closed by the broker"
    with pytest.raises(ClientFailedError, match=r"2 connections to .* do not open"):
        rdkafka.hold_connections("127.0.0.1:1", 2, cores=ALL_CORES, log=log)


def open_sockets(pid: int) -> int:
    return sum(str(link.readlink()).startswith("socket:") for link in Path(f"/proc/{pid}/fd").iterdir())
