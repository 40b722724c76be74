"""The mirror's measurement: between real headrace brokers, and the settings that MirrorMaker 2 is given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clients.mirror import Job
from clients.outcome import ClientFailedError
from peers.headrace_broker import HeadraceBroker
from side_by_side.figures import CPU_PER_GB, MB_PER_S

from clients import mirror, rdkafka

CORES = range(8)
NETWORK = "127.114.0"


Brokers = tuple[HeadraceBroker, HeadraceBroker]


@pytest.fixture
def brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Brokers]:
    if not rdkafka.is_installed():
        pytest.skip("librdkafka-dev is not installed")
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    source = HeadraceBroker(tmp_path / "source", f"{NETWORK}.1", CORES)
    target = HeadraceBroker(tmp_path / "target", f"{NETWORK}.2", CORES)
    try:
        source.start()
        target.start()
        yield source, target
    finally:
        source.stop()
        target.stop()


@pytest.mark.zookeeper
def test_headraces_mirror_is_measured_and_its_copy_counted(brokers: Brokers, tmp_path: Path) -> None:
    job = Job("page.view", size_bytes=60_000_000, value_bytes=1000, partitions=2)
    mirror.fill(brokers[0], job, cores=CORES, log=tmp_path / "fill.log")
    sample = mirror.measure(mirror.start_headrace, *brokers, job, cores=CORES, home=tmp_path / "mirror")
    assert sample[MB_PER_S] > 0
    assert sample[CPU_PER_GB] > 0
    assert 0 < sample["size_bytes"] < job.size_bytes, "what was copied before the first look does not count"

    smaller = Job(job.topic, job.size_bytes // 2, job.value_bytes, job.partitions)
    with pytest.raises(ClientFailedError, match="has 60000 records, its source 30000"):
        mirror.measure(mirror.start_headrace, *brokers, smaller, cores=CORES, home=tmp_path / "again")


def test_mirror_maker_copies_one_topic_in_one_direction_under_its_name() -> None:
    text = mirror.mirror_maker_properties("127.0.0.1:9092", "127.0.0.2:9092", "page.view")
    settings = dict(line.split(" = ", 1) for line in text.splitlines())
    assert settings["source.bootstrap.servers"] == "127.0.0.1:9092"
    assert settings["source->target.topics"] == r"page\.view"
    assert settings["target->source.enabled"] == "false"
    assert settings["replication.policy.class"].endswith("IdentityReplicationPolicy")
