"""A mirror over a WAN: a round trip of 80 ms may cost at most half of its throughput."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from fix_network import WAN_DELAY_MS
from fix_network_site import NetworkSite, OpenSite
from headrace.client import Admin, Producer

pytestmark = [pytest.mark.network, pytest.mark.slow]

TOPIC = "page-view"
PARTITIONS = 8
TOPIC_BYTES = 128 << 20
VALUE_BYTES = 100_000
COUNTED_FROM = 1 / 3  # of the bytes: at first, TCP connections are still growing their windows
LOOK_PAUSE_S = 0.02
RATIO_MIN = 0.5
ROUNDS_MAX = 6
COPY_WAIT_MAX_S = 120.0
FLUSH_WAIT_MAX_S = 120.0


@pytest.fixture(scope="module")
def site(open_site: OpenSite) -> NetworkSite:
    """East with data, analysis empty, and no mirror yet."""
    made = open_site({"east": {"east-1": (2, 11)}, "analysis": {"analysis-1": (2, 11, 21)}}, mirrors=["east"])
    made.start("east-zookeeper", "east-broker-1", "analysis-zookeeper", "analysis-broker-1")
    made.call("east", publish, made.site.datacenter("east").bootstrap)
    return made


def publish(bootstrap: str) -> None:
    rng = random.Random(5)
    values = [rng.randbytes(VALUE_BYTES) for _ in range(2 * PARTITIONS + 1)]
    with Admin(bootstrap) as admin:
        admin.create_topic(TOPIC, PARTITIONS)
    with Producer(bootstrap, batch_size_bytes=1 << 18, buffer_memory_bytes=1 << 26) as producer:
        for index in range(TOPIC_BYTES // VALUE_BYTES):
            producer.send(TOPIC, values[index % len(values)], partition=index % PARTITIONS)
        producer.flush(FLUSH_WAIT_MAX_S)


def delete(bootstrap: str) -> None:
    """Deletes the topic, if it is there."""
    with Admin(bootstrap) as admin:
        if TOPIC in admin.topics():
            admin.delete_topic(TOPIC)


class Copy:
    """A copy of east's topic in the analysis cluster, where the one before is deleted first."""

    def __init__(self, site: NetworkSite) -> None:
        self._site = site
        self._arguments = ["--topics", TOPIC]
        self._partitions = range(PARTITIONS)

    def make(self, delay_ms: float) -> float:
        """Copies; returns the bytes per second that arrived, from the first third to the last byte."""
        self._site.call("analysis", delete, self._site.site.datacenter("analysis").bootstrap)
        deleted_s = time.monotonic() + COPY_WAIT_MAX_S
        while any(self._site.files_of("analysis", TOPIC, partition) for partition in self._partitions):
            assert time.monotonic() < deleted_s, "the copy before is not deleted"
            time.sleep(LOOK_PAUSE_S)
        self._site.network.set_delay(delay_ms)
        whole = sum(map(len, contents(self._site, "east", range(PARTITIONS))))
        self._site.start("analysis-mirror-east", extra=self._arguments)
        try:
            deadline = time.monotonic() + COPY_WAIT_MAX_S
            first_s, first_bytes = 0.0, 0
            while (copied := self._copied_bytes()) < whole:
                now_s = time.monotonic()
                assert now_s < deadline, f"{copied} of {whole}: {self._site.log('analysis-mirror-east')}"
                if copied >= whole * COUNTED_FROM and not first_bytes:
                    first_s, first_bytes = now_s, copied
                time.sleep(LOOK_PAUSE_S)
            assert first_bytes, "everything arrived at once: nothing can be measured"
            return (whole - first_bytes) / (time.monotonic() - first_s)
        finally:
            self._site.stop("analysis-mirror-east")

    def _copied_bytes(self) -> int:
        return sum(
            path.stat().st_size
            for partition in self._partitions
            for path in self._site.files_of("analysis", TOPIC, partition)
        )

    def assert_same(self) -> None:
        for source, copy in zip(
            contents(self._site, "east", range(PARTITIONS)),
            contents(self._site, "analysis", self._partitions),
            strict=True,
        ):
            assert source == copy


def contents(site: NetworkSite, datacenter: str, partitions: range) -> Iterator[bytes]:
    for partition in partitions:
        yield b"".join(path.read_bytes() for path in site.files_of(datacenter, TOPIC, partition))


def test_a_round_trip_of_80_ms_costs_less_than_half_of_the_throughput(site: NetworkSite) -> None:
    """Both are measured in turn, a few times, so that other load of the machine affects both alike."""
    measured = []
    for _ in range(ROUNDS_MAX):
        near = Copy(site).make(0.0)
        far_copy = Copy(site)
        far = far_copy.make(WAN_DELAY_MS)
        far_copy.assert_same()
        measured.append(f"{near / 1e6:.0f} MB/s without delay, {far / 1e6:.0f} with {2 * WAN_DELAY_MS:g} ms")
        if far / near >= RATIO_MIN:
            print("; ".join(measured))
            return
    pytest.fail("; ".join(measured))
