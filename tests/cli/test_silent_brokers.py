"""Commands beside a hung broker: they show what they know, name what does not answer, and end."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar, cast

import httpx
import pytest

from fix_cli import Headrace, command_runner
from fix_client import FakeCluster, StartCluster
from fix_fake_broker import FakeBroker
from headrace.cli import cluster as cli_cluster
from headrace.cli import consume
from headrace.cli import mirror as cli_mirror
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.records import ASK_AGAIN_S, Filter, Form, Printer
from headrace.client import Consumer, ConsumerRecord
from headrace.client.errors import MetadataTimeoutError
from headrace.registry.client import SchemaRegistryClient
from headrace.registry.serializers import AvroDeserializer
from headrace.site.context import Context, ContextMirror
from headrace.wire.apis import ApiKey
from headrace.wire.records import Record, encode_batch

ESC = "\x1b[2J"


@pytest.fixture
def headrace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Headrace:
    return command_runner(monkeypatch, capsys)


@contextlib.contextmanager
def hung(broker: FakeBroker) -> Iterator[None]:
    broker.stop()
    with socket.create_server((broker.host, broker.port)):
        yield


@pytest.fixture
def cluster(fake_cluster: StartCluster) -> FakeCluster:
    made = fake_cluster(brokers=2, partitions=3)
    with made.lock:
        for partition in range(3):
            for index in range(2):
                record = Record(0, 1_431_856_800_000 + index * 3_600_000, b"k%d" % partition, b"v%d" % index)
                made.log(partition).append(encode_batch([record]))
    return made


def silence(cluster: FakeCluster) -> str:
    broker = cluster.brokers[1]
    return f"broker 2 at {broker.host}:{broker.port} does not answer"


def test_topics_are_listed(headrace: Headrace, cluster: FakeCluster) -> None:
    with hung(cluster.brokers[1]):
        result = headrace("topics", "list", "-b", cluster.bootstrap)
        rows = json.loads(headrace("topics", "list", "-b", cluster.bootstrap, "--json").out)
    assert result.exit_code == ExitCode.UNREACHABLE
    assert result.err == f"error: {silence(cluster)}\n"
    assert "partition 1" in result.out and "more than" in result.out
    known = cluster.log(0).end + cluster.log(2).end
    row = {"topic": "t", "partitions": 3, "bytes": known, "unknown_partitions": [1]}
    assert rows == [row | {"under_replicated_partitions": []}]
    assert headrace("topics", "list", "-b", cluster.bootstrap).exit_code == ExitCode.UNREACHABLE


def test_a_command_that_started_late_asks_for_less_long(
    headrace: Headrace, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own start counts: on a busy machine that alone takes seconds."""
    monkeypatch.setattr(cli_cluster, "process_age_s", lambda: 3.0)
    with hung(cluster.brokers[1]):
        began_s = time.monotonic()
        result = headrace("topics", "list", "-b", cluster.bootstrap)
        took_s = time.monotonic() - began_s
    assert result.exit_code == ExitCode.UNREACHABLE and silence(cluster) in result.err
    assert took_s < cli_cluster.READ_MAX_S - 0.5


@pytest.mark.parametrize(("age_s", "left_s"), [(0.2, 3.5), (1.5, 2.5), (2.3, 1.7), (9.0, 1.5), (4000.0, 3.5)])
def test_how_long_a_command_asks(monkeypatch: pytest.MonkeyPatch, age_s: float, left_s: float) -> None:
    monkeypatch.setattr(cli_cluster, "process_age_s", lambda: age_s)
    assert cli_cluster.read_timeout_ms() == pytest.approx(1000 * left_s)


def test_what_answers_is_listed_without_a_word_on_silence(headrace: Headrace, cluster: FakeCluster) -> None:
    result = headrace("topics", "list", "-b", cluster.bootstrap)
    assert (result.exit_code, result.err) == (0, "")
    assert "not known" not in result.out and "more than" not in result.out


@pytest.mark.parametrize("bounded", [("--to-end",), ()])
def test_a_balancer_is_taken_for_what_it_may_be(
    headrace: Headrace, fake_cluster: StartCluster, bounded: tuple[str, ...]
) -> None:
    """It serves Metadata and Produce alone."""
    alone = fake_cluster(brokers=1)
    alone.versions.pop(ApiKey.LIST_OFFSETS)
    result = headrace("consume", "t", "-b", alone.bootstrap, *bounded)
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "does not serve LIST_OFFSETS; if it is a balancer, which takes records of producers" in result.err
    assert result.err.splitlines()[-1] == "error: no broker tells what t has"


def test_groups_that_nobody_tells_are_not_said_to_be_missing(
    headrace: Headrace, fake_cluster: StartCluster
) -> None:
    alone = fake_cluster(brokers=1)
    alone.versions.pop(ApiKey.LIST_GROUPS, None)
    result = headrace("groups", "list", "-b", alone.bootstrap)
    assert (result.exit_code, result.out) == (ExitCode.UNREACHABLE, "no group is known\n")


def test_records_of_the_others_are_consumed_to_their_ends(headrace: Headrace, cluster: FakeCluster) -> None:
    words = ("consume", "t", "-b", cluster.bootstrap, "--from", "beginning")
    with hung(cluster.brokers[1]):
        result = headrace(*words, "--to-end")
        limited = headrace(*words, "-n", 4)
    assert result.exit_code == ExitCode.UNREACHABLE
    assert len(result.out.splitlines()) == 4 and "k1" not in result.out
    assert f"note: {silence(cluster)}: t-1 left out" in result.err
    assert "t: 1 of 3 partitions were not read" in result.err
    assert limited.exit_code == 0 and len(limited.out.splitlines()) == 4
    assert "t-1 will follow once it answers" in limited.err


def test_a_key_a_search_and_a_time_choose_records(headrace: Headrace, cluster: FakeCluster) -> None:
    words = ("consume", "t", "-b", cluster.bootstrap, "--from", "beginning", "--to-end", "-o", "raw")
    assert headrace(*words, "--key", "k1").out.split() == ["v0", "v1"]
    assert headrace(*words, "--grep", "v1$").out.split() == ["v1"] * 3
    assert headrace(*words, "--grep", "^k2$").out.split() == ["v0", "v1"]
    raw = ("consume", "t", "-b", cluster.bootstrap, "-o", "raw")
    late = headrace(*raw, "--from", "2015-05-17T11", "--to-end")
    assert late.out.split() == ["v1"] * 3
    early = headrace(*raw, "--from", "beginning", "--until", "2015-05-17T11:00:00Z")
    assert early.out.split() == ["v0"] * 3
    assert headrace(*raw, "--from", "2015-05-17T10", "--until", "2015-05-17T10").out == ""


def test_forms_of_records(headrace: Headrace, cluster: FakeCluster) -> None:
    words = ("consume", "t", "-b", cluster.bootstrap, "--from", "beginning", "--to-end", "--key", "k0")
    assert headrace(*words, "-o", "table").out.startswith("0:")
    rows = [json.loads(line) for line in headrace(*words, "-o", "json").out.splitlines()]
    assert [(row["key"], row["value"]) for row in rows] == [("k0", "v0"), ("k0", "v1")]
    assert headrace(*words, "--json").out == headrace(*words, "-o", "json").out


def test_a_mirror_that_does_not_answer_hides_no_other(
    headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {
        "topic": "t",
        "partition": 0,
        "target_partition": 3,
        "lag_bytes": 0,
        "skipped_bytes": 0,
        "state": "caught_up",
        "reason": "",
    }
    why = "the source went back. " * 20
    halted = {**row, "partition": 1, "state": "halted", "reason": why}

    class Status(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            status: object = {"source": "east", "partitions": [row, halted]}
            self.wfile.write(json.dumps(status if self.path == "/status" else ["not a mirror"]).encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Status) as server, socket.create_server(("127.0.0.1", 0)) as silent:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ports = {"east": server.server_port, "west": silent.getsockname()[1]}
        mirrors = tuple(
            ContextMirror(source=name, target="analysis", status_url=f"http://127.0.0.1:{port}/status")
            for name, port in ports.items()
        )
        stranger = f"http://127.0.0.1:{server.server_port}/other"
        mirrors += (ContextMirror(source="south", target="analysis", status_url=stranger),)
        here = Context(name="test", origin="test", datacenters=(), mirrors=mirrors)
        monkeypatch.setattr(cli_mirror, "context", lambda: here)
        result = headrace("mirror", "status")
        server.shutdown()
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "caught up" in result.out
    assert f"t-1 of east is halted: {why.strip()}" in result.out
    assert max(map(len, result.out.split("1 partition is halted")[0].splitlines())) < 80
    assert (
        f"the mirror analysis-mirror-west does not answer at http://127.0.0.1:{ports['west']}/" in result.err
    )
    assert (
        f"the mirror analysis-mirror-south does not answer at {stranger} "
        "(something else than a mirror answers there)" in result.err
    )


def test_a_mirror_that_answers_a_byte_at_a_time_has_no_more_time_than_the_others(
    headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its bytes is in time for one wait: only all waits together have an end."""
    ended = threading.Event()

    def trickle(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            client, _ = listener.accept()
            with client:
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                while not ended.wait(0.05):
                    client.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=trickle, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/status"
        here = Context(
            name="test",
            origin="test",
            datacenters=(),
            mirrors=(ContextMirror(source="east", target="analysis", status_url=url),),
        )
        monkeypatch.setattr(cli_mirror, "context", lambda: here)
        monkeypatch.setattr(cli_mirror, "reading_until_s", lambda: time.monotonic() + 0.5)
        result = headrace("mirror", "status")
        ended.set()
        thread.join()
    assert result.exit_code == ExitCode.UNREACHABLE
    assert f"does not answer at {url} (timed out)" in result.err


def test_partitions_share_the_time_in_which_they_find_where_to_begin() -> None:
    class Slow:
        waits: ClassVar[list[float]] = []

        def position(self, topic: str, number: int, *, timeout_s: float) -> int:
            self.waits.append(timeout_s)
            if number == 2:
                raise MetadataTimeoutError("nobody told")
            time.sleep(0.2)
            return 7

    with pytest.raises(CommandError, match=r"no broker told within 5 s where to begin in t-2"):
        consume._positions(cast(Consumer, Slow()), "t", {0: 9, 1: 9, 2: 9})
    assert Slow.waits == sorted(Slow.waits, reverse=True) and Slow.waits[2] < consume.STALL_MAX_S - 0.3


def test_a_registry_that_does_not_answer_is_not_asked_for_each_record(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[str] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        raise httpx.ReadTimeout("timed out")

    now = [0.0]
    transport = httpx.MockTransport(refuse)
    with SchemaRegistryClient("http://127.0.0.1:1", retry_rounds=1, transport=transport) as registry:
        printer = Printer(Form.RAW, Filter(), AvroDeserializer(registry), clock=lambda: now[0])
        record = ConsumerRecord("t", 0, 1, 1_000, None, b"\0\0\0\0\x07event", ())
        counts = []
        for now[0] in (0.0, 1.0, ASK_AGAIN_S - 1.0, ASK_AGAIN_S):
            assert printer.print(record)
            counts.append(len(asked))
    assert counts == [1, 1, 1, 2]
    notes = " ".join(capsys.readouterr().err.split())
    assert notes.count("no schema registry answered") == notes.count("Events are shown as bytes") == 2


def test_names_of_topics_are_escaped(headrace: Headrace, cluster: FakeCluster) -> None:
    name = f"a{ESC}b"
    with cluster.lock:
        cluster.create(name, 2)
        cluster.log(0, name).append(encode_batch([Record(0, 1_000, ESC.encode(), ESC.encode())]))
    assert "a\\x1b[2Jb" in headrace("topics", "list", "-b", cluster.bootstrap).out
    document = headrace("topics", "list", "-b", cluster.bootstrap, "--json").out
    assert name in {row["topic"] for row in json.loads(document)}
    with hung(cluster.brokers[1]):
        result = headrace("consume", name, "-b", cluster.bootstrap, "--from", "beginning", "--to-end")
    assert "\\x1b[2J" in result.out
    assert "a\\x1b[2Jb-1 left out" in result.err
