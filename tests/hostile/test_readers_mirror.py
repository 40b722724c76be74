"""Bad batches in a source's log: the mirror copies what its CRC vouches for, and halts at the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fix_audit import MirrorProcess, StartMirror, wait_for
from fix_bad_batches import flipped, poisoned, spoil_in_file, timed
from fix_broker import BrokerCluster, StartCluster
from fix_registry import StartRegistry
from headrace.audit.topic.reader import AuditReader
from headrace.audit.topic.records import ANALYSIS_AUDIT_TOPIC, GapRecord
from headrace.cli import main as cli
from headrace.client import Admin, Producer
from headrace.client.admin import EARLIEST
from headrace.wire.batch import BatchHeader


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


def accept_gap(
    east: BrokerCluster, analysis: BrokerCluster, mirror: MirrorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = SimpleNamespace(
        mirrors=[SimpleNamespace(source="east", target="analysis", status_url=mirror.status_url)],
        datacenter=lambda name: SimpleNamespace(
            bootstrap={"east": east, "analysis": analysis}[name].bootstrap
        ),
    )
    monkeypatch.setattr("headrace.cli.mirror.context", lambda: context)
    command = ["headrace", "mirror", "accept-gap", "rotten", "0", "--source", "east", "--yes"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit):
        cli.main()


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

    for resumes_at in (first.next_offset, second.next_offset):
        capsys.readouterr()
        accept_gap(east, analysis, mirror, monkeypatch)
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


def zeroed(_: BatchHeader, batch: bytes) -> bytes:
    return bytes(len(batch))


def test_damage_before_the_copys_end_stops_no_copy(
    broker_cluster: StartCluster, start_mirror: StartMirror
) -> None:
    """Nothing says where the batches behind the damage begin, after the source was restarted: but the copy
    knows, and names the address of its last one.
    """
    east, analysis = broker_cluster(datacenter="east"), broker_cluster(datacenter="analysis")
    with Admin(east.bootstrap) as admin:
        admin.create_topic("rotten", 1)
    send_batches(east, "rotten", 6)
    mirror = start_mirror(east, analysis)
    wait_for(lambda: log_of(analysis, "rotten") == log_of(east, "rotten"), mirror.output)
    good = log_of(analysis, "rotten")
    mirror.terminate()
    east[1].stop()
    bad = spoil_in_file(partition(east, "rotten"), {3: zeroed})[3]
    east[1].start()
    send_batches(east, "rotten", 2)
    mirror = start_mirror(east, analysis)
    wait_for(lambda: len(log_of(analysis, "rotten")) == len(log_of(east, "rotten")), mirror.output)
    copied = log_of(analysis, "rotten")
    assert copied[: len(good)] == good
    assert copied[bad.next_offset :] == log_of(east, "rotten")[bad.next_offset :]
    wait_for(lambda: mirror.partitions()["rotten", 0]["state"] == "caught_up", mirror.status)


def test_damage_of_unknown_length_halts_the_copy_between_addresses(
    broker_cluster: StartCluster,
    start_mirror: StartMirror,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    east, analysis = broker_cluster(datacenter="east"), broker_cluster(datacenter="analysis")
    with Admin(east.bootstrap) as admin:
        admin.create_topic("rotten", 1)
    send_batches(east, "rotten", 6)
    east[1].stop()
    bad = spoil_in_file(partition(east, "rotten"), {3: zeroed})[3]
    restarted_at = len(log_of(east, "rotten"))
    east[1].start()
    send_batches(east, "rotten", 2)
    mirror = start_mirror(east, analysis)
    wait_for(lambda: len(mirror.partitions()) == 1, mirror.output)
    gap = {"from": bad.address, "to": restarted_at}
    wait_for(lambda: mirror.partitions()["rotten", 0]["gap"] == gap, mirror.output)
    found = mirror.partitions()["rotten", 0]
    assert found["state"] == "halted"
    assert f"addresses {bad.address} to {restarted_at} is damaged" in found["reason"]
    assert "`headrace mirror accept-gap rotten 0 --source east`" in found["reason"]
    assert log_of(analysis, "rotten") == log_of(east, "rotten")[: bad.address]

    accept_gap(east, analysis, mirror, monkeypatch)
    assert f"continues at {restarted_at:,} within seconds" in " ".join(capsys.readouterr().out.split())
    wait_for(lambda: log_of(analysis, "rotten") == log_of(east, "rotten")[restarted_at:], mirror.output)


def test_a_copy_that_cannot_be_compared_halts_by_name(
    broker_cluster: StartCluster, start_mirror: StartMirror
) -> None:
    """The source's damage is the copy's last batch, and then the damage is in the copy's own log."""
    east, analysis = broker_cluster(datacenter="east"), broker_cluster(datacenter="analysis")
    with Admin(east.bootstrap) as admin:
        admin.create_topic("rotten", 1)
    send_batches(east, "rotten", 4)
    mirror = start_mirror(east, analysis)
    wait_for(lambda: log_of(analysis, "rotten") == log_of(east, "rotten"), mirror.output)
    mirror.terminate()
    (segment,) = partition(east, "rotten").glob("*.log")
    whole = segment.read_bytes()
    for damaged, said in ((east, "log set-aside"), (analysis, "the last batch of the copy in partition 0")):
        damaged[1].stop()
        bad = spoil_in_file(partition(damaged, "rotten"), {2: zeroed, 3: zeroed})[3]
        damaged[1].start()
        mirror = start_mirror(east, analysis)
        wait_for(lambda m=mirror: len(m.partitions()) == 1, mirror.output)  # type: ignore[misc]
        wait_for(lambda m=mirror: m.partitions()["rotten", 0]["state"] == "halted", mirror.output)  # type: ignore[misc]
        reason = mirror.partitions()["rotten", 0]["reason"]
        assert said in reason and str(bad.next_offset if damaged is analysis else bad.address) in reason
        mirror.terminate()
        if damaged is east:
            east[1].stop()
            segment.write_bytes(whole)
            east[1].start()


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
