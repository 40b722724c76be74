"""Bad batches in a source's log: the mirror copies what its CRC vouches for, and halts at the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fix_audit import StartMirror, wait_for
from fix_bad_batches import flipped, poisoned, spoil_in_file, timed
from fix_broker import BrokerCluster, StartCluster
from fix_registry import StartRegistry
from headrace.audit.reader import AuditReader
from headrace.audit.records import ANALYSIS_AUDIT_TOPIC, GapRecord
from headrace.cli import main as cli
from headrace.client import Admin, Producer
from headrace.client.admin import EARLIEST


def log_of(cluster: BrokerCluster, topic: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(partition(cluster, topic).glob("*.log")))


def partition(cluster: BrokerCluster, topic: str) -> Path:
    return cluster[1].data_dir / f"{topic}-0"


def send_batches(cluster: BrokerCluster, topic: str, count: int) -> None:
    """Each of three records, in a batch of its own."""
    with Producer(cluster.bootstrap) as producer:
        for index in range(count):
            for record in range(3):
                producer.send(topic, b"event %d/%d " % (index, record) * 5, partition=0)
            producer.flush(30)


def test_a_bad_crc_halts_that_partition_just_there_until_the_gap_is_accepted(
    broker_cluster: StartCluster,
    start_registry: StartRegistry,
    start_mirror: StartMirror,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    east, analysis = broker_cluster(datacenter="east"), broker_cluster(datacenter="analysis")
    registry = start_registry(hosts=analysis.zookeeper.hosts)
    with Admin(east.bootstrap) as admin:
        for topic in ("rotten", "poisoned", "good"):
            admin.create_topic(topic, 1)
            send_batches(east, topic, 6)
    absurd = {2: poisoned, 3: timed(2**62, 2**63 - 1), 4: timed(-(2**62), -5)}
    spoil_in_file(partition(east, "poisoned"), absurd)
    bad = spoil_in_file(partition(east, "rotten"), {3: flipped, 4: flipped})
    mirror = start_mirror(east, analysis, "--registry", registry.url)
    wait_for(lambda: len(mirror.partitions()) == 3, mirror.output)
    wait_for(lambda: mirror.partitions()["rotten", 0]["state"] == "halted", mirror.output)
    for topic in ("poisoned", "good"):
        wait_for(lambda t=topic: log_of(analysis, t) == log_of(east, t), mirror.output)  # type: ignore[misc]

    first, second = bad[3], bad[4]
    found = mirror.partitions()["rotten", 0]
    assert found["gap"] == {"from": first.address, "to": first.next_offset}
    assert f"addresses {first.address} to {first.next_offset} is damaged" in found["reason"]
    assert "CRC" in found["reason"]
    assert "`headrace mirror accept-gap rotten 0 --source east`" in found["reason"]
    assert "rotten-0 is halted" in mirror.output()
    wait_for(lambda: log_of(analysis, "rotten") == log_of(east, "rotten")[: first.address], mirror.output)

    reader = AuditReader(
        bootstrap=analysis.bootstrap, registry_url=registry.url, topics=[ANALYSIS_AUDIT_TOPIC]
    )
    reported: list[object] = []

    def is_reported() -> bool:
        reader.discover()
        reported.extend(each.record for each in reader.poll(0.2).records)
        return any(isinstance(each, GapRecord) for each in reported)

    wait_for(is_reported, mirror.output)
    reader.close()
    gap = next(each for each in reported if isinstance(each, GapRecord))
    assert (gap.topic, gap.from_address, gap.to_address) == ("rotten", first.address, first.next_offset)
    assert "CRC" in gap.reason

    context = SimpleNamespace(
        mirrors=[SimpleNamespace(source="east", target="analysis", status_url=mirror.status_url)],
        datacenter=lambda name: SimpleNamespace(
            bootstrap={"east": east, "analysis": analysis}[name].bootstrap
        ),
    )
    monkeypatch.setattr("headrace.cli.mirror.context", lambda: context)
    for resumes_at in (first.next_offset, second.next_offset):
        command = ["headrace", "mirror", "accept-gap", "rotten", "0", "--source", "east", "--yes"]
        monkeypatch.setattr(sys, "argv", command)
        capsys.readouterr()
        with pytest.raises(SystemExit):
            cli.main()
        output = " ".join(capsys.readouterr().out.split())
        assert f"continues at {resumes_at:,} within seconds" in output
        if resumes_at == first.next_offset:
            # The batch behind it is bad, too: the copy halts again, over both.
            both = {"from": first.address, "to": second.next_offset}
            wait_for(lambda: mirror.partitions()["rotten", 0]["gap"] == both, mirror.output)  # noqa: B023
    wait_for(lambda: mirror.partitions()["rotten", 0]["state"] == "caught_up", mirror.status)
    wait_for(
        lambda: log_of(analysis, "rotten") == log_of(east, "rotten")[second.next_offset :], mirror.output
    )
    with Admin(analysis.bootstrap) as admin:
        assert admin.list_offsets("rotten", EARLIEST)[0].offset == second.next_offset
    skipped = mirror.partitions()["rotten", 0]["skipped"]
    assert skipped == [{"from": first.address, "to": second.next_offset}]
    # What is sent later follows, and the mirror never died.
    send_batches(east, "rotten", 1)
    wait_for(
        lambda: log_of(analysis, "rotten") == log_of(east, "rotten")[second.next_offset :], mirror.output
    )
    assert "Traceback" not in mirror.output()


def test_a_batch_that_is_good_again_is_copied_without_a_command(
    broker_cluster: StartCluster, start_mirror: StartMirror
) -> None:
    east, analysis = broker_cluster(datacenter="east"), broker_cluster(datacenter="analysis")
    with Admin(east.bootstrap) as admin:
        admin.create_topic("rotten", 1)
    send_batches(east, "rotten", 4)
    (segment,) = partition(east, "rotten").glob("*.log")
    good = segment.read_bytes()
    spoil_in_file(partition(east, "rotten"), {0: flipped})
    mirror = start_mirror(east, analysis)
    wait_for(lambda: len(mirror.partitions()) == 1, mirror.output)
    wait_for(lambda: mirror.partitions()["rotten", 0]["state"] == "halted", mirror.output)
    with segment.open("r+b") as file:
        file.write(good)
    wait_for(lambda: log_of(analysis, "rotten") == good, mirror.output)
    assert mirror.partitions()["rotten", 0]["skipped"] == []
