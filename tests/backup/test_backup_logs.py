"""What a backup takes of a broker's logs while they are deleted, added or behind; and who reigns later."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fix_bad_sector import BadSector
from fix_log import build, segments
from headrace.agent.configuration import BrokerConfiguration
from headrace.agent.host import Host
from headrace.agent.kinds import unit_of
from headrace.agent.report import report_of
from headrace.agent.unit import UnitState
from headrace.backup import logs, taking, trees
from headrace.backup.errors import UnitUnreachableError
from headrace.backup.logs import Copied, Ends, copy_broker, flushed_ends, size_to_copy
from headrace.backup.pace import Pace
from headrace.backup.trees import (
    LEADER_EPOCHS_SKIPPED,
    Topic,
    chroot_in,
    chroots_in,
    in_later_epochs,
    joined,
    topics_of,
    without_disk_ages,
)
from headrace.backup.units import HomeUnit, _home_unit
from headrace.backup.writer import Writer
from headrace.client.cluster import PartitionInfo, TopicInfo
from headrace.client.survey import LogRange, Survey
from headrace.coordination import znodes
from headrace.coordination.tree import TreeNode
from headrace.log import checkpoint
from headrace.log.snapshot import take

TOPIC = Topic("an id", frozenset({0, 1}))


def home_unit(folder: Path, pid: int | None = None) -> HomeUnit:
    configuration = BrokerConfiguration(
        datacenter="east", broker_id=7, zookeeper="127.0.0.1:1", data_dir=folder / "broker"
    )
    return HomeUnit(unit_of("east-broker-7", configuration, Host.here(folder)), pid, None)


@pytest.fixture
def broker(tmp_path: Path) -> HomeUnit:
    """A broker with two partitions."""
    unit = home_unit(tmp_path)
    for number in (0, 1):
        folder = unit.directory / f"topic-{number}"
        folder.mkdir(parents=True)
        (folder / "partition.json").write_text(json.dumps({"topic_id": TOPIC.topic_id}))
        build(folder, [100] * 12, clean=True)
    return unit


def copied(
    broker: HomeUnit, folder: Path, *, topics: Mapping[str, Topic] | None = None, ends: Ends | None = None
) -> tuple[Copied, set[str]]:
    """What was copied, and the folders that the backup has."""
    folder.mkdir()
    with Writer(folder, [], Pace()) as writer:
        found = copy_broker(broker, ends or {}, topics or {"topic": TOPIC}, writer, lambda line: None)
        return found, {path.split("/")[1] for path in writer.files}


def test_a_log_that_is_deleted_while_it_is_looked_at_ends_no_backup(
    broker: HomeUnit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = checkpoint.decode

    def after_the_deletion(content: bytes, path: Path) -> checkpoint.Checkpoint | None:
        if path.parent.name == "topic-0":
            shutil.rmtree(path.parent)
        return decode(content, path)

    monkeypatch.setattr(checkpoint, "decode", after_the_deletion)
    found, folders = copied(broker, tmp_path / "backup")
    assert (found.problems, set(found.partitions), folders) == ([], {"topic-1"}, {"topic-1"})


def test_a_folder_that_is_deleted_before_its_size_is_asked_counts_nothing(
    broker: HomeUnit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = broker.directory / "topic-1"
    size_bytes = sum(path.stat().st_size for path in there.iterdir())
    monkeypatch.setattr(logs, "folders_of", lambda data_dir: [data_dir / "topic-2", there])
    (tmp_path / "backup").mkdir()
    with Writer(tmp_path / "backup", [], Pace()) as writer:
        assert size_to_copy(broker, writer) == size_bytes


@pytest.mark.parametrize("what", ["a sector", "the checkpoint"])
def test_a_log_that_the_disk_can_no_longer_read_ends_no_backup(
    broker: HomeUnit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    folder = broker.directory / "topic-0"
    path = segments(folder)[1]
    if what == "a sector":
        BadSector(monkeypatch, path, 100, 200)
    else:
        path = folder / "checkpoint"
        path.unlink()
        path.mkdir()  # which no program can read as a file
    found, folders = copied(broker, tmp_path / "backup", ends={(7, "topic-0"): 1200})
    (problem,) = found.problems
    assert problem.startswith("east-broker-7: ") and str(path) in problem and "cannot be read" in problem
    assert (set(found.partitions), folders) == ({"topic-1"}, {"topic-1"})


def test_a_full_disk_of_the_backup_ends_it(
    broker: HomeUnit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "backup").mkdir()
    with Writer(tmp_path / "backup", [], Pace()) as writer:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            copy_broker(broker, {}, {"topic": TOPIC}, writer, lambda line: None)


def test_a_partition_that_was_added_after_zookeeper_was_read_is_left_out(
    broker: HomeUnit, tmp_path: Path
) -> None:
    """Nobody would own it after a restore: the next partition of that number would begin with its bytes."""
    read_before = {"topic": Topic("an id", frozenset({0}))}
    found, folders = copied(broker, tmp_path / "backup", topics=read_before)
    assert (set(found.partitions), folders) == ({"topic-0"}, {"topic-0"})
    assert found.notes == ["east-broker-7: topic-1 is of no partition that ZooKeeper had: left out"]


def test_the_logs_of_a_topic_whose_node_is_damaged_are_copied_and_it_is_a_problem(
    broker: HomeUnit, tmp_path: Path
) -> None:
    """They were left out, with a note alone: `--keep` then removed the backups that had them."""
    whole = node(f"{znodes.TOPICS}/topic", topic_id=TOPIC.topic_id, partitions={"0": [7], "1": [7]})
    rotten = whole._replace(data=whole.data[:-3])
    for tree in ([rotten], joined([rotten], [rotten]), joined([rotten], [whole])):
        assert [each.path for each in tree] == [rotten.path]
    assert joined([whole], [rotten]) == [whole]
    found, folders = copied(broker, tmp_path / "backup", topics=topics_of([rotten], ""))
    assert folders == set(found.partitions) == {"topic-0", "topic-1"} and not found.notes
    (problem,) = found.problems
    assert problem.startswith("east-broker-7: ZooKeeper's node of topic topic is damaged")


def test_a_replica_that_is_behind_is_not_damaged(
    broker: HomeUnit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of topic-0 this broker is no longer in sync, of topic-1 it is."""
    own_end = take(broker.directory / "topic-0", None).end
    parts = {
        0: PartitionInfo(0, 8, replicas=(7, 8), isr=(8,)),
        1: PartitionInfo(1, 8, replicas=(7, 8), isr=(8, 7)),
    }
    ranges = {("topic", 0): LogRange(0, own_end + 500), ("topic", 1): LogRange(0, own_end)}
    survey = Survey({"topic": TopicInfo("topic", parts)}, ranges, {}, (), ())

    class OneAdmin:
        def __init__(self, bootstrap: str) -> None:
            assert bootstrap == str(BrokerConfiguration.model_fields["listen"].default)

        def __enter__(self) -> OneAdmin:
            return self

        def __exit__(self, *_: object) -> None:
            return

        def survey(self) -> Survey:
            return survey

    monkeypatch.setattr(logs, "Admin", OneAdmin)
    ends = flushed_ends([home_unit(tmp_path, pid=1)])
    found, _ = copied(broker, tmp_path / "backup", ends=ends)
    assert found.problems == []
    told = {name: (facts["end"], facts["end_told_by"]) for name, facts in found.partitions.items()}
    assert told == {"topic-0": (own_end, "files"), "topic-1": (own_end, "broker")}


@pytest.mark.parametrize(("state", "is_restarting"), [("BACKOFF", True), ("FATAL", False)])
def test_files_of_a_unit_that_is_started_again_and_again_are_not_copied(
    tmp_path: Path, state: str, is_restarting: bool
) -> None:
    unit = home_unit(tmp_path).unit
    report = report_of(unit, UnitState(unit.name, state, 0, 0, "exited too quickly"), None, ())
    found = _home_unit(report, Host.here(tmp_path))
    if is_restarting:
        with pytest.raises(UnitUnreachableError, match="east-broker-7 ends again and again"):
            found.is_asked()
    else:
        assert not found.is_asked()


def node(path: str, **values: object) -> TreeNode:
    return TreeNode(path, json.dumps(values).encode(), 1, 2)


def test_no_leader_of_a_restored_site_reigns_by_a_number_that_another_may_have_had() -> None:
    state = "/brokers/topics/a.b/partitions/3/state"
    others = [
        node("/brokers/topics/a.b", topic_id="an id", partitions={"3": [1]}),
        node("/consumers/a/state", leader_epoch=5),
        TreeNode("/brokers/topics/c/partitions/0/state", b"damaged", 1, 2),
    ]
    changed, *same = in_later_epochs([node(state, leader=1, leader_epoch=5, isr=[1], version=1), *others])
    assert same == others
    assert (changed.path, changed.created_zxid, changed.modified_zxid) == (state, 1, 2)
    assert json.loads(changed.data) == {
        "leader": 1,
        "leader_epoch": 5 + LEADER_EPOCHS_SKIPPED,
        "isr": [1],
        "version": 1,
    }
    last = in_later_epochs([node(state, leader_epoch=2**31 - 2)])
    assert json.loads(last[0].data) == {"leader_epoch": trees.LEADER_EPOCH_MAX}


@pytest.mark.parametrize("chroot", ["", "/east"])
def test_a_restored_zookeeper_knows_no_age_of_a_disk(chroot: str) -> None:
    """Logs, and the ages of their disks, are copied after it: it would pass for an older one."""
    kept = [node(f"{chroot}/headrace/disks"), node(f"{chroot}/headrace/brokers/1", session=5)]
    assert without_disk_ages([*kept, node(f"{chroot}/headrace/disks/1", age=7)]) == kept


@pytest.mark.parametrize("chroot", ["", "/east", "/headrace/east"])
def test_topics_that_are_deleted_or_made_again_between_two_reads_are_left_out(chroot: str) -> None:
    def topic(name: str, topic_id: str) -> TreeNode:
        return node(f"{chroot}/brokers/topics/{name}", topic_id=topic_id, partitions={"0": [1], "1": [1]})

    def schemas(count: int) -> TreeNode:
        return node(f"{chroot}/headrace/registry", count=count)

    parents = {path for path in (chroot, f"{chroot}/brokers", f"{chroot}/headrace", "/headrace") if path}
    roots = [TreeNode(path, b"", 0, 0) for path in (*sorted(parents), f"{chroot}/brokers/topics")]
    damaged = node(f"{chroot}/brokers/topics/d")
    first = [*roots, topic("a", "1"), topic("b", "2"), topic("c", "3"), damaged, schemas(1)]
    second = [*roots, topic("a", "1"), topic("c", "4"), schemas(2)]
    kept = joined(first, second)
    assert topics_of(kept, chroot) == {"a": Topic("1", frozenset({0, 1}), {0: (1,), 1: (1,)})}
    assert schemas(2) in kept and schemas(1) not in kept


@pytest.mark.parametrize(("hosts", "chroot"), [("h:1,i:2", ""), ("h:1/", ""), ("h:1,i:2/a/east/", "/a/east")])
def test_a_brokers_topics_are_those_below_its_chroot(hosts: str, chroot: str) -> None:
    assert chroot_in(hosts) == chroot
    tree = [node(f"{chroot}/brokers/topics"), node(f"{chroot}/brokers/topics/a", topic_id="1", partitions={})]
    assert chroots_in(tree) == [chroot]
    assert topics_of(tree, chroot_in(hosts)) == {"a": Topic("1", frozenset())}
    state = node(f"{chroot}/brokers/topics/a/partitions/0/state", leader_epoch=1)
    assert in_later_epochs([state]) != [state]


@pytest.mark.parametrize("is_mounted", [True, False])
def test_a_brokers_data_that_is_not_there_is_a_problem(tmp_path: Path, is_mounted: bool) -> None:
    """Its disk is not mounted, or an empty one is: the backup would be whole by its own word."""
    unit = home_unit(tmp_path)
    if is_mounted:
        unit.directory.mkdir()
    (tmp_path / "backup").mkdir()
    orders = json.dumps({"topic_id": "an id", "partitions": {"0": [7], "1": [8]}}).encode()
    tree = [TreeNode(znodes.TOPICS, b"", 1, 1), TreeNode(znodes.topic("orders"), orders, 2, 2)]
    with Writer(tmp_path / "backup", [], Pace()) as writer:
        site = cast(Any, SimpleNamespace(home=tmp_path))
        job = taking._Job(site, [unit], taking.Options(), writer, lambda _: None)
        taking._copy_logs(job, [unit], tree)
    (problem,) = job.problems
    assert ("orders-0 has a replica here" if is_mounted else "is its disk mounted?") in problem
