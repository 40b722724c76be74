"""The same raw requests to headrace and to Apache Kafka: every answer that differs is named in `DIFFERENCES`,
and, with its reason, in docs/compatibility.md. Also: what Debian's kcat compresses stays compressed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from fix_broker import BrokerCluster, RawClient, StartCluster
from fix_clients import Kcat, require_kcat
from fix_difference_cases import fresh
from fix_difference_records import CASES
from fix_differences import CLOSED, Asker, Case
from fix_kafka import ApacheKafka
from fix_samples import make_samples
from headrace.wire.batch import hop
from headrace.wire.compression import Codec

pytestmark = pytest.mark.real_client

PAGE: Final = Path(__file__).parents[2] / "docs" / "compatibility.md"
SERVED: Final = ("NONE", [(0, "NONE", 0)])


class Difference(NamedTuple):
    headrace: Any
    apache: Any


DIFFERENCES: Final[dict[str, Difference]] = {
    "Fetch: offsets out of range": Difference(
        [("NONE", [(0, "OFFSET_OUT_OF_RANGE", 0)])] * 3, [("NONE", [(0, "OFFSET_OUT_OF_RANGE", -1)])] * 3
    ),
    "Fetch: a partition twice": Difference(("NONE", [(0, "NONE", 0)] * 2), SERVED),
    "OffsetCommit: a leader epoch": Difference((["NONE"], [(5, -1)]), (["NONE"], [(5, 3)])),
    "OffsetCommit: an empty group id": Difference(["INVALID_GROUP_ID"], ["NONE"]),
    "OffsetCommit: a group id of 1025 bytes": Difference(["INVALID_GROUP_ID"], ["NONE"]),
    "IncrementalAlterConfigs: an unknown operation": Difference(
        [(2, "INVALID_CONFIG")], [(2, "UNKNOWN_SERVER_ERROR")]
    ),
    "InitProducerId: a transactional id": Difference("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "NONE"),
}


@pytest.fixture(scope="module")
def ours(one_broker: BrokerCluster) -> str:
    return one_broker.bootstrap


@pytest.fixture(scope="module")
def theirs(apache_kafka: ApacheKafka) -> str:
    return apache_kafka.bootstrap


def answer(case: Case, bootstrap: str) -> Any:
    asker = Asker(bootstrap)
    try:
        return case(asker)
    except EOFError:
        return CLOSED
    finally:
        asker.close()


@pytest.mark.parametrize("name", CASES)
def test_both_answer_the_same_or_the_difference_is_named(name: str, ours: str, theirs: str) -> None:
    here, there = answer(CASES[name], ours), answer(CASES[name], theirs)
    if name in DIFFERENCES:
        assert (here, there) == DIFFERENCES[name]
    else:
        assert here == there


def test_every_difference_is_a_case_and_stands_on_the_page() -> None:
    rows = re.findall(r"^\| (\w+: [^|]+?) \|", PAGE.read_text(), flags=re.MULTILINE)
    assert set(DIFFERENCES) <= CASES.keys()
    assert sorted(rows) == sorted(DIFFERENCES)


# --- Debian's kcat ---


@pytest.fixture
def cluster(broker_cluster: StartCluster) -> Iterator[BrokerCluster]:
    require_kcat()
    yield broker_cluster()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_kcat_s_batches_are_compressed(cluster: BrokerCluster, codec: str, tmp_path: Path) -> None:
    """librdkafka 2.0.2 compresses for a broker that offers Produce 0, though it sends version 7."""
    with RawClient(cluster.bootstrap) as client:
        topic = fresh()
        client.create_topic(topic)
        Kcat(tmp_path).produce(cluster.bootstrap, topic, make_samples(500), codec=codec)
        data = client.read_all(topic, 0)
    headers = [header for _, header in hop(data)]
    assert sum(header.record_count for header in headers) == 500
    assert {header.codec for header in headers} == {Codec.parse(codec)}
