"""The mirror as a process, between real clusters: byte-identical copies, whichever process dies."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fix_audit import WAIT_MAX_S, MirrorProcess, StartMirror, wait_for
from fix_broker import RawClient, StartCluster
from fix_copies import assert_same, files_of, send
from headrace.client import Admin, Producer
from headrace.client.errors import BrokerError
from headrace.coordination.topics import TopicRegistry
from headrace.log.partition import PartitionLog
from headrace.mirror.__main__ import main
from headrace.mirror.discovery import MIRROR_SETTING
from headrace.wire.records import Record, encode_batch


def test_two_datacenters_into_one_topic(broker_cluster: StartCluster, start_mirror: StartMirror) -> None:
    east, west = broker_cluster(datacenter="east"), broker_cluster(datacenter="west")
    analysis = broker_cluster(count=2, datacenter="analysis")
    for cluster in (east, west):
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("page-view", 2)
            admin.create_topic("__internal", 1)
        send(cluster, "page-view", 3_000, partitions=2, codec="lz4")
    first, second = start_mirror(east, analysis, "--exclude", "nothing"), start_mirror(west, analysis)
    for mirror in (first, second):
        wait_for(lambda m=mirror: len(m.partitions()) == 2, mirror.output)  # type: ignore[misc]
        wait_for(
            lambda m=mirror: all(p["state"] == "caught_up" for p in m.partitions().values()),  # type: ignore[misc]
            mirror.output,
        )
    copies = [each["target_partition"] for m in (first, second) for each in m.partitions().values()]
    assert sorted(copies) == [0, 1, 2, 3]
    assert_same(first, "page-view", 0, 1)
    assert_same(second, "page-view", 0, 1)

    with Admin(east.bootstrap) as admin:
        admin.create_partitions("page-view", 3)
        admin.create_topic("later", 1)
    send(east, "page-view", 300, partitions=3)
    send(east, "later", 300, partitions=1, codec="zstd")
    wait_for(lambda: len(first.partitions()) == 4, first.output)
    assert_same(first, "page-view", 0, 1, 2)
    assert_same(first, "later", 0)
    assert first.status()["trouble"] == ""
    with Admin(analysis.bootstrap) as admin:
        assert "__internal" not in admin.topics()
    assert first.terminate() == 0


def test_the_copy_of_a_compacted_topic_is_compacted(
    broker_cluster: StartCluster, start_mirror: StartMirror
) -> None:
    """By the target's retention it would lose what nobody writes any more, though it is the last of its key.
    What has no key, of a time before the topic was compacted, is copied all the same.
    """
    east, analysis = broker_cluster(datacenter="east"), broker_cluster(datacenter="analysis")
    with Admin(east.bootstrap) as admin:
        admin.create_topic("table", 1)
        with RawClient(east.bootstrap) as client:
            assert client.produce("table", 0, one_record(b"x")).error_code == 0
        admin.alter_configs("table", {"cleanup.policy": "compact"})
        admin.create_topic("events", 1)
    mirror = start_mirror(east, analysis)
    wait_for(lambda: [p["state"] for p in mirror.partitions().values()] == ["caught_up"] * 2, mirror.output)
    assert_same(mirror, "table", 0)
    with Admin(analysis.bootstrap) as admin:
        policies = {
            topic: admin.describe_configs(topic)["cleanup.policy"].value for topic in ("table", "events")
        }
    assert policies == {"table": "compact", "events": "delete"}


def test_a_source_whose_bytes_are_another_leader_s_halts_that_partition(
    broker_cluster: StartCluster, start_mirror: StartMirror
) -> None:
    """The source's log was X Z, and is Y Z, all of them equally long: its last batch is the copy's."""
    east, analysis = broker_cluster(datacenter="east"), broker_cluster(datacenter="analysis")
    with Admin(east.bootstrap) as admin:
        admin.create_topic("t", 1)
    with RawClient(east.bootstrap) as client:
        for value in (b"x", b"z"):
            assert client.produce("t", 0, one_record(value)).error_code == 0
    mirror = start_mirror(east, analysis)
    wait_for(lambda: len(mirror.partitions()) == 1, mirror.output)
    assert_same(mirror, "t", 0)
    copied = files_of(analysis, "t", 0)
    mirror.kill()
    with east.zookeeper.session() as session:
        topics = TopicRegistry(session)
        before = topics.get("t").partitions[0]
        topics.set_partition_state("t", 0, replace(before, leader_epoch=1), expected=before)
    east[1].stop()
    log = PartitionLog(east[1].data_dir / "t-0")
    log.truncate(0)
    log.leader_epoch = 1
    for value in (b"y", b"z"):
        log.append(bytearray(one_record(value)))
    log.close()
    east[1].start()
    changed = files_of(east, "t", 0)
    last_at = len(copied) // 2 + 20  # behind what the brokers write into a batch
    assert len(changed) == len(copied) and changed[last_at:] == copied[last_at:]
    mirror.start()
    wait_for(lambda: [p["state"] for p in mirror.partitions().values()] == ["halted"], mirror.output)
    assert "leader epoch 0 ends at 0" in mirror.partitions()["t", 0]["reason"]
    assert files_of(analysis, "t", 0) == copied


def one_record(value: bytes) -> bytes:
    return encode_batch([Record(0, 1_000, None, value * 100)])


@pytest.mark.kill
def test_a_mirror_killed_repeatedly_under_load_neither_skips_nor_repeats(
    broker_cluster: StartCluster, start_mirror: StartMirror
) -> None:
    rng = random.Random(4)
    small = {"log.segment.bytes": "1048576"}
    east = broker_cluster(datacenter="east", config=small)
    analysis = broker_cluster(datacenter="analysis", config={"log.segment.bytes": "524288"})
    with Admin(east.bootstrap) as admin:
        admin.create_topic("page-view", 3)
    done = threading.Event()

    def load() -> None:
        with Producer(east.bootstrap, linger_ms=1, batch_size_bytes=4096) as producer:
            index = 0
            while not done.is_set():
                producer.send("page-view", rng.randbytes(300), partition=index % 3)
                index += 1
                if index % 200 == 0:
                    time.sleep(0.01)
            producer.flush(WAIT_MAX_S)

    loader = threading.Thread(target=load)
    loader.start()
    mirror = start_mirror(east, analysis)
    try:
        for round_number in range(8):
            time.sleep(rng.uniform(0.2, 1.2))
            if round_number == 4:
                analysis[1].kill()
                analysis[1].start()
            elif round_number == 6:
                east[1].kill()
                east[1].start()
            else:
                mirror.kill()
                mirror.start()
    finally:
        done.set()
        loader.join()
    wait_for(lambda: len(mirror.partitions()) == 3, mirror.output)
    assert sum(len(files_of(east, "page-view", partition)) for partition in range(3)) > 2_000_000
    assert_same(mirror, "page-view", 0, 1, 2)
    assert "halted" not in {each["state"] for each in mirror.partitions().values()}


def test_a_source_that_lost_its_log_halts_that_partition_only(
    broker_cluster: StartCluster, start_mirror: StartMirror
) -> None:
    east, analysis = broker_cluster(datacenter="east"), broker_cluster(datacenter="analysis")
    with Admin(east.bootstrap) as admin, Admin(analysis.bootstrap) as target:
        for topic in ("made-again", "forged", "good", "own"):
            admin.create_topic(topic, 1)
        target.create_topic("own", 1)
        for topic in ("made-again", "forged", "good"):
            send(east, topic, 200, partitions=1)
        mirror = start_mirror(east, analysis)
        wait_for(lambda: len(mirror.partitions()) == 3, mirror.output)
        wait_for(lambda: all(p["state"] == "caught_up" for p in mirror.partitions().values()), mirror.output)
        assert "of its own" in mirror.status()["topic_troubles"]["own"]
        mirror.kill()
        before = {topic: files_of(analysis, topic, 0) for topic in ("made-again", "forged")}
        for topic, count in (("made-again", 20), ("forged", 400)):
            admin.delete_topic(topic)
            wait_for(lambda t=topic: t not in admin.topics())  # type: ignore[misc]
            admin.create_topic(topic, 1)
            send(east, topic, count, partitions=1)
    send(east, "good", 200, partitions=1)
    mirror.start()
    wait_for(
        lambda: [p["state"] for p in mirror.partitions().values()] == ["halted", "caught_up", "halted"],
        lambda: (mirror.status(), mirror.output()),
    )
    assert_same(mirror, "good", 0)
    found = mirror.partitions()
    for topic in before:
        assert f"topic {topic} was deleted in the source and made again" in found[topic, 0]["reason"]
    assert {topic: files_of(analysis, topic, 0) for topic in before} == before
    with Admin(analysis.bootstrap) as target:
        target.delete_topic("forged")
    wait_for(lambda: files_of(analysis, "forged", 0) != before["forged"], mirror.status)
    assert_same(mirror, "forged", 0)
    assert mirror.partitions()["made-again", 0]["state"] == "halted"


def test_a_topic_that_is_made_again_at_the_target_is_copied_from_the_beginning(
    broker_cluster: StartCluster, start_mirror: StartMirror
) -> None:
    """An empty partition takes any address: a mirror that went on where it was would leave out the rest."""
    east, analysis = broker_cluster(datacenter="east"), broker_cluster(datacenter="analysis")
    with Admin(east.bootstrap) as admin, Admin(analysis.bootstrap) as target:
        for topic in ("busy", "idle"):
            admin.create_topic(topic, 1)
            send(east, topic, 200, partitions=1)
        mirror = start_mirror(east, analysis)
        wait_for(lambda: len(mirror.partitions()) == 2, mirror.output)
        wait_for(lambda: all(p["state"] == "caught_up" for p in mirror.partitions().values()), mirror.output)
        for topic in ("busy", "idle"):
            target.delete_topic(topic)
            wait_for(lambda t=topic: t not in target.topics())  # type: ignore[misc]
            with contextlib.suppress(BrokerError):  # the mirror was faster
                target.create_topic(topic, 1, config={MIRROR_SETTING: "true"})
    send(east, "busy", 200, partitions=1)
    assert_same(mirror, "busy", 0)
    assert_same(mirror, "idle", 0)


def test_a_copy_whose_broker_comes_back_with_an_empty_disk_is_copied_from_the_beginning(
    broker_cluster: StartCluster, start_mirror: StartMirror
) -> None:
    """Nothing of it was on its way, so no request fails: the next events would begin the copy."""
    east, analysis = broker_cluster(datacenter="east"), broker_cluster(datacenter="analysis")
    with Admin(east.bootstrap) as admin:
        admin.create_topic("idle", 1)
    send(east, "idle", 200, partitions=1)
    mirror = start_mirror(east, analysis)
    wait_for(lambda: len(mirror.partitions()) == 1, mirror.output)
    wait_for(lambda: all(p["state"] == "caught_up" for p in mirror.partitions().values()), mirror.output)
    broker = analysis.brokers[0]
    broker.stop()
    shutil.rmtree(broker.data_dir)
    broker.start()
    send(east, "idle", 200, partitions=1)
    assert_same(mirror, "idle", 0)


def test_the_mirror_waits_for_clusters_that_are_not_up_yet(
    broker_cluster: StartCluster, start_mirror: StartMirror, tmp_path: Path
) -> None:
    east, analysis = broker_cluster(datacenter="east"), broker_cluster(datacenter="analysis")
    with Admin(east.bootstrap) as admin:
        admin.create_topic("page-view", 1)
    send(east, "page-view", 100, partitions=1)
    east[1].stop()
    analysis[1].stop()
    mirror = start_mirror(east, analysis)
    time.sleep(1.0)
    assert mirror.status()["partitions"] == []
    analysis[1].start()
    east[1].start()
    wait_for(lambda: mirror.partitions(), mirror.output)
    assert_same(mirror, "page-view", 0)
    assert mirror.terminate() == 0

    lonely = MirrorProcess(east, analysis, tmp_path)
    lonely.command[lonely.command.index("--target-zookeeper") + 1] = "127.0.0.1:1"
    lonely.start()
    try:
        assert lonely.status()["trouble"] in ("not started", "")
        assert lonely.terminate() == 0
        assert "Traceback" not in lonely.output()
    finally:
        lonely.kill()


def test_invalid_settings_are_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    needed = [
        "--source-datacenter",
        "east",
        "--target-bootstrap",
        "127.0.0.1:1",
        "--target-zookeeper",
        "127.0.0.1:1",
    ]
    assert main([*needed, "--source-bootstrap", ","]) == 1
    assert capsys.readouterr().err.startswith("the mirror cannot start: no broker address")
    assert main([*needed, "--source-bootstrap", "127.0.0.1:1", "--status", "nowhere"]) == 1
    assert "cannot serve its status on nowhere" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*needed, "--source-bootstrap", "127.0.0.1:1", "--topics", "("])
    assert "is not a regular expression" in capsys.readouterr().err
