"""Addresses that a source has set aside: copies that lack them halt by name, and go on when told to."""

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
from headrace.cli import main as cli
from headrace.client import Admin, Producer
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
