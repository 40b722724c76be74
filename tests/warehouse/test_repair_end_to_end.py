"""Repairs between real clusters: what is lost in two datacenters, their copies and HDFS is named, is brought
again by the command that the report names, and is then there once; also after SIGKILLs in the middle.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from fix_audit import MirrorProcess, wait_for
from fix_audit_site import Site, page_view, running_site
from fix_audit_world import HOUR_A
from fix_bad_batches import flipped, spoil_in_file
from fix_contexts import NAME, run_command, save_context, start_command
from fix_hdfs import HdfsProcess
from fix_zookeeper import ZooKeeperServer
from headrace.audit.findings import LOAD_HOP, MIRROR_HOP, PRODUCER_HOP, Policy
from headrace.audit.times import HOUR_MS
from headrace.cli.errors import ExitCode
from headrace.client import Consumer, Producer
from headrace.client.faults import DropPlan
from headrace.events.publisher import EventPublisher
from headrace.site.context_store import ContextStore
from headrace.tables.options import warehouse_of
from headrace.warehouse.api import load_topics
from headrace.warehouse.hdfs.remote_file import RemoteFile
from headrace.warehouse.layout import TopicPaths, hour_name
from headrace.warehouse.loading import LoadResult
from headrace.warehouse.options import DEFAULT_ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.hdfs]

DROPPED = 7
BATCH = 10
HOUR_B = HOUR_A + HOUR_MS
HOURS = ("--hour", hour_name(HOUR_A), "--hour", hour_name(HOUR_B))
KILL_WAIT_MAX_S = 120.0


@dataclass
class Scene:
    """The site, HDFS, and a home whose commands work on them."""

    site: Site
    hdfs: HdfsProcess
    spark: SparkSession
    home: Path

    @property
    def state_dir(self) -> Path:
        return self.home / "state"

    def run(self, *words: object, **environment: str) -> tuple[int, str]:
        done = run_command(self.home, *words, **environment)
        return done.returncode, done.stdout

    def said(self, *words: object) -> Any:
        """What a command prints as JSON."""
        return json.loads(self.run(*words, "--json")[1])

    def load(self, topic: str, *, accept_gap: bool = False) -> LoadResult:
        options = warehouse_of(ContextStore(self.home).load(NAME), patience_s=30.0)
        (result,) = load_topics(self.spark, options, [topic], accept_gap=accept_gap)
        return result

    def wait_copied(self, topic: str, *sources: str) -> None:
        """Waits until the mirrors of these datacenters have copied all, and all auditors have counted it."""
        for name in sources:
            mirror = self.site.mirrors[name]
            wait_for(partial(_is_copied, mirror, topic), mirror.status)
        ends = {name: [_end(self.site, name, topic)] for name in sources}
        ends["analysis"] = sorted(end for (end,) in ends.values())
        for name, wanted in ends.items():
            wait_for(partial(_is_counted, self.site, name, topic, wanted))

    def paths(self, topic: str) -> Counter[str]:
        """The `path` of every row in HDFS: each event that was published has its own."""
        found: Counter[str] = Counter()
        with self.hdfs.client() as client:
            for path, entry in client.walk(TopicPaths(DEFAULT_ROOT, topic).hourly):
                rows = pq.ParquetFile(RemoteFile(client, path, entry.size_bytes)).read(columns=["path"])
                found.update(rows.column("path").to_pylist())
        return found


def _is_copied(mirror: MirrorProcess, topic: str) -> bool:
    row = mirror.partitions().get((topic, 0), {})
    return row.get("state") == "caught_up" and row["lag_bytes"] == 0


def _segment(site: Site, name: str, topic: str) -> Path:
    (file,) = (site.clusters[name][1].data_dir / f"{topic}-0").glob("*.log")
    return file


def _end(site: Site, name: str, topic: str) -> int:
    return _segment(site, name, topic).stat().st_size


def _is_counted(site: Site, name: str, topic: str, ends: list[int]) -> bool:
    rows = site.auditors[name].status()["partitions"]
    return sorted(row["counted_to"] for row in rows if row["topic"] == topic) == ends


@pytest.fixture(scope="module")
def scene(
    zookeeper_server: ZooKeeperServer,
    tmp_path_factory: pytest.TempPathFactory,
    hdfs: HdfsProcess,
    java_jars: dict[str, Path],
    spark: SparkSession,
) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("repairs")
    home = directory / "home"
    with running_site(zookeeper_server, directory, Policy()) as site:
        save_context(
            home, site.clusters.values(), site.registry_of, site.mirrors.values(), site.store_url, hdfs
        )
        (home / "jars").symlink_to(java_jars["spark"].parent)
        yield Scene(site, hdfs, spark, home)
    shutil.rmtree(home, ignore_errors=True)


def publish(publisher: EventPublisher, topic: str, first: int, count: int, hour_ms: int = HOUR_A) -> set[str]:
    """Events in batches of `BATCH`; returns their paths, which no other event has."""
    for start in range(first, first + count, BATCH):
        for index in range(start, min(start + BATCH, first + count)):
            publisher.publish(topic, page_view(index), time_ms=hour_ms + index, partition=0)
        publisher.flush()
    return {f"/{index}" for index in range(first, first + count)}


def planted(scene: Scene, topic: str) -> set[str]:
    """Loses seven events in west's client, ten in a gap of east's copy, and a file in HDFS; returns the paths
    of all events that were published.
    """
    site = scene.site
    plan = DropPlan(topic, DROPPED, after=BATCH)
    options = {"state_dir": scene.state_dir}
    east = site.publisher("east", "frontend-1", topic, **options)
    with site.publisher("west", "frontend-2", topic, interceptor=plan, **options) as west:
        paths = publish(west, topic, 1_000, 5 * BATCH) | publish(west, topic, 2_000, 2 * BATCH, HOUR_B)
    with east:
        paths |= publish(east, topic, 0, 3 * BATCH)
        scene.wait_copied(topic, "east", "west")
        assert scene.load(topic).rows == len(paths) - DROPPED
        _lose_a_batch(scene, topic, east, paths)
    scene.wait_copied(topic, "east", "west")
    assert scene.load(topic, accept_gap=True).rows == 2 * BATCH
    with scene.hdfs.client() as client:
        hours = client.walk(TopicPaths(DEFAULT_ROOT, topic).hour_dir(HOUR_B))
        (file,) = [path for path, _ in hours if path.endswith(".parquet")]
        assert client.delete(file)
    scene.run("warehouse", "verify", topic)
    return paths


def _lose_a_batch(scene: Scene, topic: str, east: EventPublisher, paths: set[str]) -> None:
    """A batch rots in east before it is copied. Its gap is accepted, and then its bytes are restored."""
    site, mirror = scene.site, scene.site.mirrors["east"]
    mirror.terminate()
    paths |= publish(east, topic, 30, BATCH)
    segment = _segment(site, "east", topic)
    wait_for(partial(_is_counted, site, "east", topic, [_end(site, "east", topic)]))
    whole = segment.read_bytes()
    spoil_in_file(segment.parent, {3: flipped})
    mirror.start()
    save_context(
        scene.home,
        site.clusters.values(),
        site.registry_of,
        site.mirrors.values(),
        site.store_url,
        scene.hdfs,
    )
    wait_for(lambda: mirror.partitions().get((topic, 0), {}).get("state") == "halted", mirror.status)
    paths |= publish(east, topic, 40, 2 * BATCH)
    wait_for(lambda: mirror.partitions()[topic, 0]["gap"] is not None, mirror.status)
    code, _ = scene.run("mirror", "accept-gap", topic, 0, "--source", "east", "--yes")
    assert code == ExitCode.DONE
    wait_for(partial(_is_copied, mirror, topic), mirror.status)
    with segment.open("r+b") as file:
        file.write(whole)


def test_one_command_repairs_all_that_is_lost_also_when_it_is_killed_twice(scene: Scene) -> None:
    topic = f"repaired-{uuid.uuid4().hex[:8]}"
    scene.site.create_topic(topic, partitions=1)
    published = planted(scene, topic)
    named = {("lost", PRODUCER_HOP): DROPPED, ("lost", MIRROR_HOP): BATCH, ("lost", LOAD_HOP): 2 * BATCH}
    wait_for(lambda: _named(scene, topic) == named, lambda: _named(scene, topic))
    assert f"headrace audit repair {topic} --hour" in scene.run("audit", "report", "--topic", topic)[1]
    repair = ("audit", "repair", topic, *HOURS, "--state-dir", scene.state_dir, "--wait", "1m")
    plan = scene.said(*repair, "--plan")
    assert (plan["events_to_bring"], plan["problems"]) == (DROPPED, [])
    (wanted,) = plan["ranges_to_take"]
    assert (wanted["datacenter"], wanted["partition"], wanted["record_count"]) == ("east", 0, BATCH)
    assert list(plan["hours_to_refill"]) == [hour_name(HOUR_B)]

    _killed_while_it_brings(scene, *repair)
    code, _ = scene.run(*repair, HEADRACE_CRASH_AT="committed")
    assert code == -signal.SIGKILL
    code, out = scene.run(*repair)
    assert code == ExitCode.DONE, out
    report = scene.said("audit", "report", "--topic", topic)
    assert report["status"] == "complete", report
    assert any("from east's own log" in note for each in report["verdicts"] for note in each["notes"])
    assert scene.paths(topic) == Counter(published)
    code, out = scene.run(*repair)
    assert (code, "nothing to repair here" in out) == (ExitCode.DONE, True), out
    assert scene.paths(topic) == Counter(published)
    assert scene.run("warehouse", "verify", topic)[0] == ExitCode.DONE


def _named(scene: Scene, topic: str) -> dict[tuple[str, str], int]:
    """How many events the report names, by status and hop, without what is pending. What it says of a file,
    it says for each datacenter that may have rows in it: that counts once.
    """
    verdicts = scene.said("audit", "report", "--topic", topic)["verdicts"]
    findings = [(each["hour"], finding) for each in verdicts for finding in each["findings"]]
    whole = {hour + finding["text"]: finding for hour, finding in findings if finding["status"] != "pending"}
    found: Counter[tuple[str, str]] = Counter()
    for finding in whole.values():
        found[finding["status"], finding["hop"]] += finding["record_count"] or 0
    return dict(found)


def _killed_while_it_brings(scene: Scene, *words: object) -> None:
    """SIGKILL, as soon as the intent of what is to be sent is on disk."""
    deadline = time.monotonic() + KILL_WAIT_MAX_S
    with start_command(scene.home, *words) as process:
        while not list((scene.state_dir / "repairs").glob("*.json")):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.005)
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("step", ["committed", "moved"])
def test_doubles_are_removed_once_also_when_the_command_is_killed(scene: Scene, step: str) -> None:
    topic = f"doubled-{uuid.uuid4().hex[:8]}"
    scene.site.create_topic(topic, partitions=1, datacenters=["east"])
    with scene.site.publisher("east", "frontend-1", topic, state_dir=scene.state_dir) as east:
        published = publish(east, topic, 0, 3 * BATCH)
    _sent_again(scene, topic, 5)
    scene.wait_copied(topic, "east")
    assert scene.load(topic).doubled == 5
    named = {("duplicated", PRODUCER_HOP): 5}
    wait_for(lambda: _named(scene, topic) == named, lambda: _named(scene, topic))
    dedupe = ("audit", "dedupe", topic, "--hour", hour_name(HOUR_A))
    (plan,) = scene.said(*dedupe, "--plan")["plan"]
    assert (plan["events"], plan["extra"]) == (5, 5)
    assert sum(scene.paths(topic).values()) == len(published) + 5

    code, _ = scene.run(*dedupe, HEADRACE_CRASH_AT=step)
    assert code == -signal.SIGKILL
    scene.run(*dedupe, "--plan")  # whatever it can say then
    code, out = scene.run(*dedupe)
    assert code == ExitCode.DONE, out
    assert scene.paths(topic) == Counter(published)
    report = scene.said("audit", "report", "--topic", topic)
    assert report["status"] == "complete" and any(each["notes"] for each in report["verdicts"]), report
    code, out = scene.run(*dedupe)
    assert (code, "no event is there more than once" in out) == (ExitCode.DONE, True), out
    assert scene.paths(topic) == Counter(published)


def _sent_again(scene: Scene, topic: str, count: int) -> None:
    """Another producer, which reports nothing, sends events again as they are: their guids are the same."""
    bootstrap = scene.site.clusters["east"].bootstrap
    records: list[Any] = []
    with Consumer(bootstrap) as consumer, Producer(bootstrap) as producer:
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning(topic, 0)
        while len(records) < count:
            records += consumer.poll(1.0)
        for record in records[:count]:
            producer.send(topic, record.value, partition=0, timestamp_ms=record.timestamp_ms)
        producer.flush()
