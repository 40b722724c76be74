"""Loads while HDFS fails: one line names the problem, and the repeated load loses and duplicates nothing."""

import shutil
import time
from dataclasses import replace
from typing import Any

import pytest

from fix_hdfs import HdfsProcess
from fix_warehouse import BASE_TIME_MS, TestTopic, World, click
from headrace.warehouse import crash
from headrace.warehouse.api import load_topics
from headrace.warehouse.errors import known_error
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.hdfs.errors import HdfsError, HdfsFullError, explain
from headrace.warehouse.loading import LoadResult
from headrace.warehouse.options import WarehouseOptions

pytestmark = [pytest.mark.spark, pytest.mark.hdfs]


def clicks(first: int, count: int) -> list[dict[str, Any]]:
    return [click(number, BASE_TIME_MS + number) for number in range(first, first + count)]


def load(topic: TestTopic, patience_s: float = 60.0, **changes: Any) -> LoadResult:
    warehouse = WarehouseOptions(**topic.world.addresses, audit=False, patience_s=patience_s)
    return load_topics(topic.world.spark, replace(warehouse, **changes), [topic.name])[0]


def refused(topic: TestTopic, **changes: Any) -> tuple[str, bool]:
    """The line of a load that fails, and whether the error, HDFS's own or out of Spark, is retriable."""
    with pytest.raises(Exception) as caught:
        load(topic, **{"patience_s": 0.5, **changes})
    line = known_error(caught.value, f"load {topic.name}")
    assert line is not None, caught.value
    assert "\n" not in line
    error = caught.value
    named = error if isinstance(error, HdfsError) else explain(str(error), "")
    return line, named is not None and named.retriable


def wait_for(client: HdfsClient, words: str) -> None:
    deadline = time.monotonic() + 60
    while words not in str(client.problem()):
        assert time.monotonic() < deadline, client.problem()
        time.sleep(0.2)


def wait_for_room(client: HdfsClient) -> None:
    """Waits until the NameNode knows of the DataNode's room."""
    deadline = time.monotonic() + 60
    while True:
        try:
            client.write("/probe", b"?", overwrite=True)
            return
        except HdfsFullError:
            assert time.monotonic() < deadline
            time.sleep(0.5)


@pytest.mark.timeout(600)
def test_restarts_safe_mode_and_a_full_datanode(world: World, own_hdfs: HdfsProcess) -> None:
    with own_hdfs.client() as client:
        topic = replace(world, process=own_hdfs, hdfs=client).topic("problems")
        topic.publish(clicks(0, 100))

        own_hdfs.kill("datanode")
        line, retriable = refused(topic)
        assert "DataNode" in line
        assert "start it, then repeat" in line
        assert retriable

        own_hdfs.kill("namenode")
        line, retriable = refused(topic)
        assert "start HDFS or fix the address, then repeat" in line
        assert retriable

        own_hdfs.start("namenode")
        wait_for(client, "safe mode")
        line, retriable = refused(topic)
        assert "safe mode" in line
        assert retriable

        # A disk that is full up to the reserved bytes.
        disk_bytes = shutil.disk_usage(own_hdfs.config.data_dir).total
        own_hdfs.config.extra["dfs.datanode.du.reserved"] = str(disk_bytes - (64 << 20))
        own_hdfs.start("datanode")
        own_hdfs.wait_ready()
        line, retriable = refused(topic)
        assert "no DataNode has room for another block; add space, then repeat" in line
        assert not retriable

        own_hdfs.kill("datanode")
        del own_hdfs.config.extra["dfs.datanode.du.reserved"]
        own_hdfs.start("datanode")
        wait_for_room(client)
        line, retriable = refused(topic, user="stranger")
        assert "Permission denied: user=stranger" in line
        assert "chown" in line
        assert not retriable

        assert load(topic).rows == 100
        assert sorted(row.number for row in topic.table().collect()) == list(range(100))
        assert len(topic.log.manifests()) == 1


@pytest.mark.timeout(600)
def test_hdfs_killed_right_after_the_commit(
    world: World, own_hdfs: HdfsProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_hdfs.client() as client:
        topic = replace(world, process=own_hdfs, hdfs=client).topic("power")
        topic.publish(clicks(0, 100))
        killed = iter([True])

        def reached(step: str) -> None:
            if step == "committed" and next(killed, False):
                own_hdfs.kill("datanode")
                own_hdfs.kill("namenode")
                own_hdfs.start("namenode")
                own_hdfs.start("datanode")

        monkeypatch.setattr(crash, "reached", reached)
        # The load waits for HDFS to come back, and finds everything that was committed.
        assert load(topic).rows == 100
        assert topic.table().count() == 100
        assert not topic.log.staged_changes()
