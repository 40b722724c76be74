"""Addresses that a source has set aside or deleted: copies that lack them halt, and go on when told to."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fix_audit import MirrorProcess, StartMirror, wait_for
from fix_bad_batches import flipped, spoil_in_file
from fix_broker import BrokerCluster, BrokerProcess, StartCluster
from fix_copies import assert_same, send
from fix_registry import StartRegistry
from headrace.audit.topic.reader import AuditReader
from headrace.audit.topic.records import ANALYSIS_AUDIT_TOPIC, GapRecord
from headrace.cli import main as cli
from headrace.client import Admin, Producer
from headrace.client.admin import EARLIEST
from headrace.client.errors import BrokerError
from headrace.wire.batch import BatchHeader, hop

Accept = Callable[[MirrorProcess, str], str]
HANG_S = 20.0
"""Below the time after which a registry's client gives up."""
NO_SCRUB = {"log.scrub.bytes.per.second": "0"}


def holder(cluster: BrokerCluster, partition: str) -> BrokerProcess:
    """The broker that leads it."""
    return next(each for each in cluster.brokers if (each.data_dir / partition).exists())


def log_of(cluster: BrokerCluster, partition: str) -> bytes:
    """What a broker's segments hold, without what was set aside."""
    folder = holder(cluster, partition).data_dir / partition
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def send_batches(cluster: BrokerCluster, topic: str, count: int, partitions: Iterable[int] = (0, 1)) -> None:
    """Each of three records, in a batch of its own."""
    with Producer(cluster.bootstrap) as producer:
        for index in range(count):
            for partition in partitions:
                for record in range(3):
                    producer.send(topic, b"event %d/%d " % (index, record) * 5, partition=partition)
            producer.flush(60)


def set_aside(cluster: BrokerCluster, partition: str, numbers: Iterable[int]) -> list[BatchHeader]:
    """Damages batches of a log, by their number, and lets the operator's command set them aside."""
    broker = holder(cluster, partition)
    broker.stop()
    bad = spoil_in_file(broker.data_dir / partition, dict.fromkeys(numbers, flipped))
    done = CliRunner().invoke(cli.app, ["log", "set-aside", str(broker.data_dir)])
    assert done.exit_code == 0, done.output
    broker.start()
    return [bad[number] for number in sorted(bad)]


@pytest.fixture
def accept(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Accept:
    """Runs the command that a halted copy names; returns what it prints."""

    def run(mirror: MirrorProcess, problem: str) -> str:
        words = problem.split("`headrace mirror accept-gap ")[1].split("`")[0].split()
        clusters = {each.datacenter: each for each in (mirror.source, mirror.target)}
        context = SimpleNamespace(
            mirrors=[
                SimpleNamespace(
                    source=mirror.source.datacenter,
                    target=mirror.target.datacenter,
                    status_url=mirror.status_url,
                )
            ],
            datacenter=lambda name: SimpleNamespace(bootstrap=clusters[name].bootstrap),
        )
        monkeypatch.setattr("headrace.cli.mirror.context", lambda: context)
        monkeypatch.setattr(sys, "argv", ["headrace", "mirror", "accept-gap", *words, "--yes"])
        capsys.readouterr()
        with pytest.raises(SystemExit):
            cli.main()
        return " ".join(capsys.readouterr().out.split())

    return run


def state_of(mirror: MirrorProcess, topic: str, partition: int) -> object:
    return mirror.partitions().get((topic, partition), {}).get("state")


def test_batches_that_were_set_aside_halt_their_copy_until_the_gap_is_accepted(
    broker_cluster: StartCluster, start_mirror: StartMirror, accept: Accept
) -> None:
    east = broker_cluster(2, NO_SCRUB, datacenter="east")
    analysis = broker_cluster(datacenter="analysis")
    with Admin(east.bootstrap) as admin:
        admin.create_topic("holed", 2, 1)
    send_batches(east, "holed", 6)
    whole = log_of(east, "holed-0")
    first, second = set_aside(east, "holed-0", (2, 3))
    mirror = start_mirror(east, analysis)
    wait_for(lambda: state_of(mirror, "holed", 0) == "halted", mirror.output)
    wait_for(lambda: state_of(mirror, "holed", 1) == "caught_up", mirror.output)

    found = mirror.partitions()["holed", 0]
    assert found["gap"] == {"from": first.address, "to": second.next_offset}
    assert f"addresses {first.address} to {second.next_offset}" in found["reason"]
    assert "`headrace mirror accept-gap holed 0 --source east`" in found["reason"]
    assert "holed-0 is halted" in mirror.output()
    copy = f"holed-{found['target_partition']}"
    assert log_of(analysis, copy) == whole[: first.address]

    assert f"continues at {second.next_offset:,} within seconds" in accept(mirror, found["reason"])
    wait_for(lambda: state_of(mirror, "holed", 0) == "caught_up", mirror.status)
    send_batches(east, "holed", 2)
    wait_for(
        lambda: log_of(analysis, copy) == log_of(east, "holed-0")[first.address :], lambda: mirror.status()
    )
    assert log_of(east, "holed-0")[first.address :].startswith(whole[second.next_offset :])
    assert mirror.partitions()["holed", 0]["skipped"] == [found["gap"]]
    assert "Traceback" not in mirror.output()


def test_a_gap_at_the_sources_end_halts_a_copy_that_lacks_it_and_no_other(
    broker_cluster: StartCluster, start_mirror: StartMirror, accept: Accept
) -> None:
    east = broker_cluster(2, NO_SCRUB, datacenter="east")
    analysis = broker_cluster(datacenter="analysis")
    with Admin(east.bootstrap) as admin:
        admin.create_topic("holed", 2, 1)
    send_batches(east, "holed", 4)
    mirror = start_mirror(east, analysis)
    wait_for(lambda: state_of(mirror, "holed", 0) == "caught_up", mirror.output)
    wait_for(lambda: state_of(mirror, "holed", 1) == "caught_up", mirror.output)
    mirror.kill()
    # Partition 0 loses what the copy has already, partition 1 what nobody else has.
    (has,) = set_aside(east, "holed-0", (3,))
    send_batches(east, "holed", 1, (1,))
    (lacks,) = set_aside(east, "holed-1", (4,))
    send_batches(east, "holed", 1, (0,))
    mirror.start()
    wait_for(lambda: state_of(mirror, "holed", 1) == "halted", mirror.output)
    wait_for(lambda: state_of(mirror, "holed", 0) == "caught_up", mirror.output)
    found = mirror.partitions()
    assert found["holed", 0]["gap"] is None
    complete = log_of(analysis, f"holed-{found['holed', 0]['target_partition']}")
    assert [header.address for _, header in hop(complete)][-1] == has.next_offset
    assert found["holed", 1]["gap"] == {"from": lacks.address, "to": lacks.next_offset}
    accept(mirror, found["holed", 1]["reason"])
    wait_for(lambda: state_of(mirror, "holed", 1) == "caught_up", mirror.status)
    send_batches(east, "holed", 1, (1,))
    copy = f"holed-{found['holed', 1]['target_partition']}"
    wait_for(lambda: log_of(analysis, copy) == log_of(east, "holed-1")[lacks.address :], mirror.status)


def test_a_partition_without_leader_keeps_no_other_of_its_topic_waiting(
    broker_cluster: StartCluster, start_mirror: StartMirror, tmp_path: Path
) -> None:
    east = broker_cluster(2, NO_SCRUB, datacenter="east")
    analysis = broker_cluster(datacenter="analysis")
    with Admin(east.bootstrap) as admin:
        admin.create_topic("holed", 2, 1)
    send_batches(east, "holed", 3)
    broker = holder(east, "holed-0")
    broker.stop()
    (segment,) = (broker.data_dir / "holed-0").glob("*.log")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-1])
    broker.start()
    mirror = start_mirror(east, analysis)
    wait_for(lambda: state_of(mirror, "holed", 1) == "caught_up", mirror.output)
    assert state_of(mirror, "holed", 0) == "locating"
    assert "holed-0 in the source has no leader" in mirror.partitions()["holed", 0]["reason"]
    # What came back is opened by the running broker, and copied.
    restored = tmp_path / "restored"
    restored.write_bytes(whole)
    restored.replace(segment)
    wait_for(lambda: state_of(mirror, "holed", 0) == "caught_up", mirror.status)
    assert log_of(analysis, f"holed-{mirror.partitions()['holed', 0]['target_partition']}") == whole


def test_a_registry_that_hangs_keeps_no_copy_waiting_for_a_gaps_report(
    broker_cluster: StartCluster, start_mirror: StartMirror
) -> None:
    east, analysis = broker_cluster(datacenter="east", config=NO_SCRUB), broker_cluster(datacenter="analysis")
    with Admin(east.bootstrap) as admin, socket.create_server(("127.0.0.1", 0)) as hanging:
        admin.create_topic("gap", 1)
        send_batches(east, "gap", 5, partitions=[0])
        set_aside(east, "gap-0", [2])
        hung = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        mirror = start_mirror(east, analysis, "--registry", hung)
        hanging.settimeout(60)
        with hanging.accept()[0]:  # the report of the gap has begun
            assert mirror.partitions()["gap", 0]["state"] == "halted"
            admin.create_topic("new", 1)
            begun_s = time.monotonic()
            wait_for(lambda: ("new", 0) in mirror.partitions(), mirror.output)
            assert time.monotonic() - begun_s < HANG_S, "it waited for the registry"
        assert mirror.terminate() == 0


def test_a_gap_halts_its_partition_until_it_is_accepted(
    broker_cluster: StartCluster,
    start_registry: StartRegistry,
    start_mirror: StartMirror,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    eager = {"log.retention.check.interval.ms": "100", "log.segment.bytes": "65536"}
    east = broker_cluster(datacenter="east", config=eager)
    analysis = broker_cluster(datacenter="analysis")
    registry = start_registry(hosts=analysis.zookeeper.hosts)
    with Admin(east.bootstrap) as admin:
        admin.create_topic("short", 1)
        admin.create_topic("good", 1)
        send(east, "short", 200, partitions=1)
        mirror = start_mirror(east, analysis, "--registry", registry.url)
        wait_for(lambda: len(mirror.partitions()) == 2, mirror.output)
        wait_for(lambda: mirror.partitions()["short", 0]["state"] == "caught_up", mirror.status)
        copied_to = mirror.partitions()["short", 0]["address"]
        mirror.kill()
        admin.alter_configs("short", {"retention.bytes": "100000"})
        for _ in range(5):
            send(east, "short", 2_000, partitions=1)
        wait_for(lambda: admin.list_offsets("short", EARLIEST)[0].offset > copied_to)
        # From here on the gap does not grow.
        admin.alter_configs("short", {"retention.bytes": "-1"})
        wait_for(lambda: admin.describe_configs("short")["retention.bytes"].value == "-1")
        send(east, "good", 100, partitions=1)
        mirror.start()
        wait_for(lambda: len(mirror.partitions()) == 2, mirror.output)
        wait_for(lambda: mirror.partitions()["short", 0]["state"] == "halted", mirror.status)
        assert_same(mirror, "good", 0)
        found = mirror.partitions()["short", 0]
        begins = admin.list_offsets("short", EARLIEST)[0].offset
        assert f"addresses {copied_to} to {begins} were deleted" in found["reason"]
        reader = AuditReader(
            bootstrap=analysis.bootstrap, registry_url=registry.url, topics=[ANALYSIS_AUDIT_TOPIC]
        )
        reported: list[object] = []

        def is_reported() -> bool:
            reader.discover()
            reported.extend(each.record for each in reader.poll(0.2).records)
            return bool(reported)

        wait_for(is_reported, mirror.output)
        reader.close()
        (gap,) = reported
        assert isinstance(gap, GapRecord)
        whose = (gap.tier, gap.datacenter, gap.topic, gap.partition, gap.from_address, gap.to_address)
        assert whose == ("analysis", "east", "short", 0, copied_to, begins)

        # The command in the message.
        headrace = one_line(monkeypatch, capsys, mirror)
        assert "`headrace mirror accept-gap short 0 --source east`" in found["reason"]
        assert found["gap"] == {"from": copied_to, "to": begins}
        assert "good-0 of east is not halted over a gap: it is caught up" in headrace("good", "0")
        assert "no-such-0 of east is not mirrored" in headrace("no-such", "0")
        assert f"continues at {begins:,} within seconds" in headrace("short", "0", "--yes")
        wait_for(lambda: mirror.partitions()["short", 0]["state"] == "caught_up", mirror.status)
        assert_same(mirror, "short", 0)
        send(east, "short", 100, partitions=1)
        # The accepted gap is still known after mirror and broker have crashed.
        mirror.kill()
        analysis[1].kill()
        analysis[1].start()
        mirror.start()
        wait_for(lambda: len(mirror.partitions()) == 2, mirror.output)
        wait_for(lambda: mirror.partitions()["short", 0]["state"] == "caught_up", mirror.status)
        again = mirror.partitions()["short", 0]
        assert (again["skipped"], again["gap"]) == ([{"from": copied_to, "to": begins}], None)
        assert again["skipped_bytes"] == begins - copied_to
        assert mirror.partitions()["good", 0]["skipped_bytes"] == 0
        with Admin(analysis.bootstrap) as target:
            assert target.list_offsets("short", EARLIEST)[0].offset == begins
            setting = target.describe_configs("short")["headrace.mirror.accepted.gaps"]
            assert setting.value == f"0:{copied_to}-{begins}"
            with pytest.raises(BrokerError, match="'1:5-5' is not PARTITION:FROM-TO"):
                target.alter_configs("short", {"headrace.mirror.accepted.gaps": "1:5-5"})
    assert_same(mirror, "short", 0)


def one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mirror: MirrorProcess
) -> Callable[..., str]:
    """Returns a runner of `headrace mirror accept-gap … --source east` that returns one line of output."""
    clusters = {"east": mirror.source, "analysis": mirror.target}
    context = SimpleNamespace(
        mirrors=[SimpleNamespace(source="east", target="analysis", status_url=mirror.status_url)],
        datacenter=lambda name: SimpleNamespace(bootstrap=clusters[name].bootstrap),
    )

    def run(*words: str) -> str:
        capsys.readouterr()
        monkeypatch.setattr("headrace.cli.mirror.context", lambda: context)
        command = ["headrace", "mirror", "accept-gap", *words, "--source", "east"]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit):
            cli.main()
        output = capsys.readouterr()
        return " ".join((output.out + output.err).split())

    return run
