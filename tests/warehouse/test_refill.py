"""Refilling: what HDFS lost comes back from the log, once, and nothing else changes."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fix_warehouse import BASE_TIME_MS, HOUR_MS, NUMBER, WORD, TestTopic, World, click, event_schema
from headrace.registry.client import SchemaRegistryClient
from headrace.warehouse import crash
from headrace.warehouse.api import (
    compact_topics,
    list_hours,
    refill_topic_hours,
    replay_topics,
    unsound,
    verify_topics,
)
from headrace.warehouse.checksums import checksum_of
from headrace.warehouse.commitlog import CommitConflictError
from headrace.warehouse.hdfs.remote_file import RemoteFile
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.refill import RefillResult
from headrace.warehouse.report import load_report
from headrace.warehouse.seal import NotSealedError, seal_hours

pytestmark = [pytest.mark.spark, pytest.mark.hdfs]

COUNT = 600


def clicks(first: int, count: int) -> list[dict[str, Any]]:
    """Half of them in one hour, half in the next."""
    step_ms = 2 * HOUR_MS // COUNT
    return [click(number, BASE_TIME_MS + number % COUNT * step_ms) for number in range(first, first + count)]


def options(world: World) -> WarehouseOptions:
    return WarehouseOptions(**{**world.addresses, "audit": False})


def filled(world: World, name: str) -> TestTopic:
    topic = world.topic(name, partitions=2)
    for first in (0, COUNT):
        topic.publish(clicks(first, COUNT))
        topic.load()
    return topic


def refill(world: World, topic: TestTopic, *hours: int) -> list[RefillResult]:
    return refill_topic_hours(world.spark, options(world), topic.name, hours)


def numbers(topic: TestTopic) -> list[int]:
    return sorted(row.number for row in topic.table().select("number").collect())


def files_of(topic: TestTopic, hour_ms: int) -> list[str]:
    return [file.path for file in topic.log.state().hours()[hour_ms]]


def delete(world: World, path: str) -> None:
    world.hdfs.delete(path)


def cut(world: World, path: str) -> None:
    world.hdfs.write(path, world.hdfs.read(path)[:-100], overwrite=True)


def rot(world: World, path: str) -> None:
    data = bytearray(world.hdfs.read(path))
    data[-60:] = bytes(60)
    world.hdfs.write(path, bytes(data), overwrite=True)


def rot_block(world: World, path: str) -> None:
    """On the DataNode's disk, of which HDFS holds one replica."""
    block = block_of(world, path)
    data = bytearray(block.read_bytes())
    data[len(data) // 2] ^= 1
    block.write_bytes(data)


def lose_block(world: World, path: str) -> None:
    block_of(world, path).unlink()


def block_of(world: World, path: str) -> Path:
    data = world.hdfs.read(path)
    blocks = world.process.config.data_dir.glob("data/**/blk_*")
    return next(each for each in blocks if each.read_bytes() == data)


@pytest.mark.parametrize("harm", [rot_block, lose_block])
def test_a_file_of_which_hdfs_lost_a_block_is_named_and_holds_up_no_other(
    world: World, harm: Callable[[World, str], None]
) -> None:
    """The verification, compactions and seals of the whole table ended with "start HDFS, then repeat", and
    the repair as well.
    """
    topic = filled(world, harm.__name__.replace("_", "-"))
    path = files_of(topic, BASE_TIME_MS)[0]
    harm(world, path)
    [verified] = verify_topics(options(world), [topic.name])
    assert len(verified.problems) == 1 and [each.path for each in verified.of_files] == [path]
    assert "no DataNode has a sound replica of one of its blocks" in verified.problems[0]
    [compacted] = compact_topics(world.spark, options(world), [topic.name])
    assert compacted.hours == (BASE_TIME_MS + HOUR_MS,) and path in compacted.problems[0]
    with pytest.raises(NotSealedError, match=path) as caught:
        hours: dict[int, Any] = {BASE_TIME_MS: {}, BASE_TIME_MS + HOUR_MS: {}}
        seal_hours(world.process.webhdfs_url, topic.name, hours)
    assert caught.value.sealed.keys() == {BASE_TIME_MS + HOUR_MS}
    [done] = refill(world, topic, BASE_TIME_MS)
    assert (done.replaced, done.problem) == ((path,), "")
    assert numbers(topic) == list(range(2 * COUNT))
    assert verify_topics(options(world), [topic.name])[0].problems == ()


@pytest.mark.parametrize("harm", [delete, cut, rot])
def test_a_file_that_is_harmed_comes_back_from_the_log(
    world: World, harm: Callable[[World, str], None]
) -> None:
    topic = filled(world, f"harmed-{harm.__name__}")
    first, _second = files_of(topic, BASE_TIME_MS)[:2]
    harm(world, first)
    assert list(unsound(options(world), topic.name, [BASE_TIME_MS, BASE_TIME_MS + HOUR_MS])) == [BASE_TIME_MS]
    (done,) = refill(world, topic, BASE_TIME_MS)
    assert (done.replaced, done.problem) == ((first,), "") and done.rows > 0
    assert numbers(topic) == list(range(2 * COUNT))
    assert verify_topics(options(world), [topic.name])[0].problems == ()
    # The audit has heard of these rows already.
    report = load_report(topic.log.manifest(done.sequence or 0))
    assert report is not None and report.partitions == ()
    assert refill(world, topic, BASE_TIME_MS, BASE_TIME_MS + HOUR_MS) == [
        RefillResult(topic.name, BASE_TIME_MS),
        RefillResult(topic.name, BASE_TIME_MS + HOUR_MS),
    ]
    assert len(list_hours(options(world), topic.name)) == 2


def test_rows_that_a_load_did_not_write_are_reported_with_the_refill(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic("fewer", partitions=1)
    topic.publish(clicks(0, COUNT))
    with monkeypatch.context() as patched:
        drop_rows(patched, world, 7)
        topic.load()
    assert len(numbers(topic)) == COUNT - 7
    (done,) = refill(world, topic, BASE_TIME_MS)
    assert (done.rows, done.replaced) == (7, ())
    assert numbers(topic) == list(range(COUNT))
    report = load_report(topic.log.manifest(done.sequence or 0))
    assert report is not None
    (partition,) = report.partitions
    assert partition.from_address == partition.to_address
    (hour,) = partition.hours
    assert (hour.hour_ms, hour.rows, hour.distinct_offsets) == (BASE_TIME_MS, 7, 7)


def drop_rows(patched: pytest.MonkeyPatch, world: World, count: int) -> None:
    """Makes a load forget rows of the first hour, as a defect of the decoder would."""
    from headrace.warehouse import loading, stage

    def forgetful(*arguments: Any) -> stage.WrittenHours:
        written = stage.stage_load(*arguments)
        for path, entry in world.hdfs.walk(arguments[4]):
            if f"_hour={BASE_TIME_MS // HOUR_MS}/" in path and path.endswith(".parquet"):
                rows = pq.ParquetFile(RemoteFile(world.hdfs, path, entry.size_bytes)).read()
                sink = pa.BufferOutputStream()
                pq.write_table(rows.slice(count), sink)
                data = sink.getvalue().to_pybytes()
                world.hdfs.write(path, data, overwrite=True)
                return replace(written, checksums={**written.checksums, path: checksum_of(data)})
        raise AssertionError("the load wrote no file of the first hour")

    patched.setattr(loading, "stage_load", forgetful)


def test_dead_letters_whose_cause_is_fixed_come_back_by_a_replay_alone(world: World) -> None:
    topic = filled(world, "letters")
    foreign, subject = event_schema(NUMBER, WORD, {"name": "later", "type": "int"}), f"{topic.name}-other"
    with SchemaRegistryClient(world.registry_url) as registry:
        foreign_id = registry.register(subject, foreign)
        registry.delete_subject(subject)
        registry.delete_subject(subject, permanent=True)
    parsed, values = fastavro.parse_schema(foreign), []
    for event in clicks(5_000, 4):
        out = io.BytesIO(b"\0" + foreign_id.to_bytes(4, "big"))
        out.seek(5)
        fastavro.schemaless_writer(out, parsed, {**event, "later": 7})
        values.append((out.getvalue(), BASE_TIME_MS))
    topic.publish(clicks(2 * COUNT, COUNT))
    topic.send(values)
    assert topic.load().dead_lettered == 4
    with SchemaRegistryClient(world.registry_url) as registry:
        assert registry.register(subject, foreign) == foreign_id
    hours = sorted(topic.log.state().hours())
    assert refill(world, topic, *hours) == [RefillResult(topic.name, each) for each in hours]
    delete(world, files_of(topic, BASE_TIME_MS)[0])
    done = refill(world, topic, *hours)
    assert [each.problem for each in done] == ["", ""]
    report = load_report(topic.log.manifest(done[0].sequence or 0))
    assert report is not None and report.partitions == ()
    assert numbers(topic) == list(range(3 * COUNT))
    (replayed,) = replay_topics(world.spark, options(world), [topic.name])
    assert (replayed.rows, replayed.still_dead) == (4, 0)
    assert numbers(topic) == [*range(3 * COUNT), *range(5_000, 5_004)]
    assert verify_topics(options(world), [topic.name])[0].problems == ()


class Died(BaseException):
    """Stands for SIGKILL."""


def test_a_refill_that_is_killed_is_completed_and_one_that_comes_second_is_discarded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(world, "killed")
    delete(world, files_of(topic, BASE_TIME_MS)[0])
    for step in ("prepared", "committed", "moved-one"):

        def reached(now: str, at: str = step) -> None:
            if now == at:
                raise Died(now)

        with monkeypatch.context() as patched:
            patched.setattr(crash, "reached", reached)
            with pytest.raises(Died):
                refill(world, topic, BASE_TIME_MS)
        refill(world, topic, BASE_TIME_MS)
        assert numbers(topic) == list(range(2 * COUNT)), step
        delete(world, files_of(topic, BASE_TIME_MS)[0])
    commit = type(topic.log).commit
    calls: list[int] = []

    def overtaken(self: Any, *arguments: Any) -> Any:
        if not calls:
            calls.append(1)
            refill(world, topic, BASE_TIME_MS)
        return commit(self, *arguments)

    monkeypatch.setattr(type(topic.log), "commit", overtaken)
    with pytest.raises(CommitConflictError, match="nothing is duplicated"):
        refill(world, topic, BASE_TIME_MS)
    assert numbers(topic) == list(range(2 * COUNT))
