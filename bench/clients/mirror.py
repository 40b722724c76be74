"""A mirror from one cluster into another: headrace's own, or MirrorMaker 2 between Apache Kafka's brokers.

Owns how a mirror is started, how its progress is read, and the check that the copy holds every record. The
measured time begins when the copy's first bytes are visible and ends when all are, so that neither the start
of a JVM nor the search for topics counts.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from clients.outcome import ClientFailedError
from clients.running import run
from peers.headrace_broker import ZOOKEEPER_PORT
from peers.jars import bench_jars, class_path
from peers.kafka import JAVA_ENV, JVM, QUIET
from peers.peer import KafkaPeer
from side_by_side.figures import CPU_PER_GB, MB_PER_S, OTHER_CORES, Sample
from side_by_side.measuring import Reading, settle
from side_by_side.process import PinnedProcess

from clients import rdkafka
from headrace.client import Admin
from headrace.client.errors import ClientError
from headrace.warehouse.jars import java

GB: Final = 1_000_000_000
POLL_S: Final = 0.02
START_MAX_S: Final = 120.0
COPY_MAX_S: Final = 900.0
MIRROR_MAKER_HEAP: Final = ("-Xms256M", "-Xmx2G")
"""As connect-mirror-maker.sh."""


class StartMirror(Protocol):
    """Starts a mirror of one topic, which keeps its name, from `source` into `target`."""

    def __call__(
        self, source: KafkaPeer, target: KafkaPeer, topic: str, *, cores: Collection[int], home: Path
    ) -> PinnedProcess: ...


@dataclass(frozen=True)
class Job:
    """What is mirrored: `partitions` partitions with values of `value_bytes`, `size_bytes` in all."""

    topic: str
    size_bytes: int
    value_bytes: int = 200
    partitions: int = 1

    @property
    def records(self) -> int:
        return self.size_bytes // self.value_bytes


def fill(source: KafkaPeer, job: Job, *, cores: Collection[int], log: Path) -> None:
    """Creates the topic in the source and produces its records. Raises `ClientFailedError`."""
    source.create_topic(job.topic, job.partitions)
    command = rdkafka.produce_command(
        source.bootstrap,
        job.topic,
        records=job.records,
        partitions=job.partitions,
        value_bytes=job.value_bytes,
    )
    run(command, cores=cores, log=log)


def measure(
    start: StartMirror,
    source: KafkaPeer,
    target: KafkaPeer,
    job: Job,
    *,
    cores: Collection[int],
    home: Path,
) -> Sample:
    """Mirrors a topic that `fill` has filled; returns MB of values a second and CPU seconds a GB.

    The CPU is that of the mirror and of both clusters' brokers. `home` is a folder for logs and settings.
    Raises `ClientFailedError` if the copy is not complete in time or has other records.
    """
    settle()
    with Admin(source.bootstrap, client_id="bench-mirror") as admin:
        whole = _end(admin, job.topic)
    mirror = start(source, target, job.topic, cores=cores, home=home)
    pids = [mirror.pid, *source.pids(), *target.pids()]
    try:
        with Admin(target.bootstrap, client_id="bench-mirror") as admin:
            first = _wait_for_end(admin, job.topic, 1, mirror, START_MAX_S)
            reading = Reading(pids)
            _wait_for_end(admin, job.topic, whole, mirror, COPY_MAX_S)
            reading.stop()
    finally:
        mirror.stop()
    command = rdkafka.consume_command(
        target.bootstrap, job.topic, partitions=job.partitions, value_bytes=job.value_bytes
    )
    copied = run(command, cores=cores, log=home / "check.log")
    if copied.records != job.records:
        raise ClientFailedError(
            f"the copy of {job.topic} has {copied.records} records, its source {job.records}"
        )
    if first >= whole:
        raise ClientFailedError(f"all of {job.topic} was copied between two looks: mirror more than that")
    # Offsets are bytes in headrace and records in Kafka: their share of the whole is the same measure.
    size_bytes = job.size_bytes * (whole - first) / whole
    return {
        MB_PER_S: size_bytes / reading.seconds / 1e6,
        CPU_PER_GB: reading.broker_cpu_s / (size_bytes / GB),
        OTHER_CORES: reading.other_cores,
        "size_bytes": size_bytes,
        "seconds": reading.seconds,
    }


def _end(admin: Admin, topic: str) -> int:
    """Returns the sum of a topic's end offsets; 0 while there is no such topic."""
    try:
        return sum(end.offset for end in admin.list_offsets(topic).values())
    except ClientError:
        return 0


def _wait_for_end(admin: Admin, topic: str, end: int, mirror: PinnedProcess, wait_max_s: float) -> int:
    """Returns the topic's end once it is at least `end`. Raises `ClientFailedError`."""
    deadline_s = time.monotonic() + wait_max_s
    while (now := _end(admin, topic)) < end:
        mirror.check_running()
        if time.monotonic() > deadline_s:
            raise ClientFailedError(
                f"the copy of {topic} is at {now} of {end} after {wait_max_s:.0f} s: {mirror.log_tail()}"
            )
        time.sleep(POLL_S)
    return now


# --- headrace's mirror ---


def start_headrace(
    source: KafkaPeer, target: KafkaPeer, topic: str, *, cores: Collection[int], home: Path
) -> PinnedProcess:
    """Starts headrace's mirroring service. `target` is a `HeadraceBroker`, whose ZooKeeper it needs, too."""
    host = target.bootstrap.partition(":")[0]
    options = {
        "source-datacenter": "source",
        "source-bootstrap": source.bootstrap,
        "target-datacenter": "target",
        "target-bootstrap": target.bootstrap,
        "target-zookeeper": f"{host}:{ZOOKEEPER_PORT}",
        "topics": re.escape(topic),
    }
    command = [sys.executable, "-m", "headrace.mirror"]
    command += [f"--{name}={value}" for name, value in options.items()]
    return PinnedProcess(command, cores=cores, log=home / "mirror.log")


# --- the mirror of Apache Kafka ---


def mirror_maker_properties(source: str, target: str, topic: str) -> str:
    """Returns MirrorMaker's settings: its defaults, for one direction, one topic and one node.

    What it does beside copying is off, because headrace's mirror has no counterpart: heartbeats, checkpoints
    of consumer groups, access rules. The copy keeps the topic's name.
    """
    settings = {
        "clusters": "source, target",
        "source.bootstrap.servers": source,
        "target.bootstrap.servers": target,
        "source->target.enabled": "true",
        "source->target.topics": re.escape(topic),
        "target->source.enabled": "false",
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "sync.group.offsets.enabled": "false",
        "sync.topic.acls.enabled": "false",
        "replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "offset.storage.replication.factor": "1",
        "status.storage.replication.factor": "1",
        "config.storage.replication.factor": "1",
    }
    return "".join(f"{name} = {value}\n" for name, value in settings.items())


def start_mirror_maker(
    source: KafkaPeer, target: KafkaPeer, topic: str, *, cores: Collection[int], home: Path
) -> PinnedProcess:
    """Starts MirrorMaker 2 in its dedicated mode. Fetches its jars if they are missing."""
    properties = home / "mirror-maker.properties"
    home.mkdir(parents=True, exist_ok=True)
    # In a properties file a backslash, which re.escape may write, is doubled.
    text = mirror_maker_properties(source.bootstrap, target.bootstrap, topic)
    properties.write_text(text.replace("\\", "\\\\"))
    libraries = class_path(bench_jars("kafka-mirror"))
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    return PinnedProcess(
        [java(), *MIRROR_MAKER_HEAP, *JVM, QUIET, "-cp", libraries, main, str(properties)],
        cores=cores,
        log=home / "mirror-maker.log",
        env=JAVA_ENV,
        cwd=home,
    )
