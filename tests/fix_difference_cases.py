"""The cases of tests/clients/test_clients_differences.py: raw requests that clients hardly send, in `CASES`.

Each returns the same from any broker that answers like Apache Kafka: codes, and values that do not depend on
how a broker numbers records.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, Final

from fix_differences import Asker, Case, name_of, one_record, part_to_fetch, raw
from headrace.wire.apis import ApiKey
from headrace.wire.messages import decode_response
from headrace.wire.records import Record, encode_batch

CASES: Final[dict[str, Case]] = {}


def case(name: str) -> Callable[[Case], Case]:
    def keep(ask: Case) -> Case:
        assert name not in CASES
        CASES[name] = ask
        return ask

    return keep


def fresh(prefix: str = "n") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


# --- topics ---

NEW_TOPICS: Final[dict[str, dict[str, Any]]] = {
    "CreateTopics: assignment with a gap": {"assignments": [(0, [1]), (2, [1])]},
    "CreateTopics: assignment that does not begin at 0": {"assignments": [(1, [1])]},
    "CreateTopics: a broker twice in an assignment": {"assignments": [(0, [1, 1])]},
    "CreateTopics: an unknown broker in an assignment": {"assignments": [(0, [99])]},
    "CreateTopics: an empty assignment": {"assignments": [(0, [])]},
    "CreateTopics: a partition twice in an assignment": {"assignments": [(0, [1]), (0, [1])]},
    "CreateTopics: an assignment and a number of partitions": {
        "assignments": [(0, [1])],
        "num_partitions": 1,
    },
    "CreateTopics: 0 partitions": {"num_partitions": 0},
    "CreateTopics: -2 partitions": {"num_partitions": -2},
    "CreateTopics: replication factor 0": {"replication_factor": 0},
    "CreateTopics: replication factor 2 with one broker": {"replication_factor": 2},
    "CreateTopics: a null value of a setting": {"configs": [("retention.ms", None)]},
    "CreateTopics: an unknown setting": {"configs": [("no.such.setting", "1")]},
    "CreateTopics: a wrong value of a setting": {"configs": [("retention.ms", "soon")]},
    "CreateTopics: a setting twice": {"configs": [("retention.ms", "1"), ("retention.ms", "2")]},
}

for _name, _values in NEW_TOPICS.items():

    def _create(asker: Asker, values: dict[str, Any] = _values) -> Any:
        values = dict(values)
        if "assignments" in values:
            values = {"num_partitions": -1, "replication_factor": -1} | values
            values["assignments"] = [
                {"partition_index": index, "broker_ids": brokers} for index, brokers in values["assignments"]
            ]
        if "configs" in values:
            values["configs"] = [{"name": name, "value": value} for name, value in values["configs"]]
        return asker.create(fresh(), **values)

    CASES[_name] = _create

for _name, _names in {
    "CreateTopics: names that no topic may have": ["", ".", "..", "a/b", "a b", "é", "a\n", "x" * 250],
    "CreateTopics: no topic": [],
}.items():
    CASES[_name] = lambda asker, names=_names: sorted(asker.create(*names))  # type: ignore[misc]


@case("CreateTopics: a name twice in one request")
def _(asker: Asker) -> Any:
    return asker.create(*[fresh()] * 2)


@case("CreateTopics: a topic that exists")
def _(asker: Asker) -> Any:
    return asker.create(asker.topic())


@case("CreateTopics: a_b beside a.b")
def _(asker: Asker) -> Any:
    return asker.create(asker.topic(prefix="a.b").replace(".", "_"))


@case("CreateTopics: a_b beside a.b, validated only")
def _(asker: Asker) -> Any:
    return asker.create(asker.topic(prefix="a.b").replace(".", "_"), validate_only=True)


@case("DeleteTopics: a topic twice in one request")
def _(asker: Asker) -> Any:
    return asker.delete(*[asker.topic()] * 2)


@case("DeleteTopics: unknown and impossible names")
def _(asker: Asker) -> Any:
    return [asker.delete(name) for name in (fresh(), "", "a/b", "..")]


@case("DeleteTopics: no topic")
def _(asker: Asker) -> Any:
    return asker.delete()


@case("DeleteTopics: an unknown id")
def _(asker: Asker) -> Any:
    topics = [{"name": None, "topic_id": uuid.uuid4()}]
    response = asker.ask(ApiKey.DELETE_TOPICS, 6, topics=topics, timeout=30_000)
    return [(each.name, name_of(each.error_code)) for each in response.responses]


@case("DeleteTopics: a name and an id")
def _(asker: Asker) -> Any:
    topics = [{"name": asker.topic(), "topic_id": uuid.uuid4()}]
    response = asker.ask(ApiKey.DELETE_TOPICS, 6, topics=topics, timeout=30_000)
    return [name_of(each.error_code) for each in response.responses]


def more_partitions(asker: Asker, name: str, count: int, assignments: Any = None, times: int = 1) -> Any:
    topic = {"name": name, "count": count, "assignments": assignments}
    response = asker.ask(
        ApiKey.CREATE_PARTITIONS, 3, topics=[topic] * times, timeout=30_000, validate_only=False
    )
    return [name_of(each.error_code) for each in response.results]


@case("CreatePartitions: as many, fewer, 0 and -1")
def _(asker: Asker) -> Any:
    name = asker.topic(2)
    return [more_partitions(asker, name, count) for count in (2, 1, 0, -1)]


@case("CreatePartitions: an unknown topic")
def _(asker: Asker) -> Any:
    return more_partitions(asker, fresh(), 2)


@case("CreatePartitions: a topic twice in one request")
def _(asker: Asker) -> Any:
    return more_partitions(asker, asker.topic(), 2, times=2)


@case("CreatePartitions: assignments that do not fit")
def _(asker: Asker) -> Any:
    name = asker.topic()
    wrong: Any = ([], [{"broker_ids": [99]}], [{"broker_ids": []}], [{"broker_ids": [1]}] * 2)
    return [more_partitions(asker, name, 2, each) for each in wrong]


# --- metadata and versions ---


def described(asker: Asker, topics: Any, version: int = 12) -> Any:
    response = asker.ask(
        ApiKey.METADATA,
        version,
        topics=topics,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    return [(name_of(each.error_code), len(each.partitions)) for each in response.topics]


@case("Metadata: an unknown topic and impossible names")
def _(asker: Asker) -> Any:
    return sorted(
        described(asker, [{"name": name, "topic_id": uuid.UUID(int=0)} for name in (fresh(), "", "a/b")])
    )


@case("Metadata: an unknown id")
def _(asker: Asker) -> Any:
    return described(asker, [{"name": None, "topic_id": uuid.uuid4()}])


@case("Metadata: ids, with a name that is null, empty, the topic's, or another one's")
def _(asker: Asker) -> Any:
    name, other = asker.topic(), asker.topic()
    response = asker.ask(
        ApiKey.METADATA,
        12,
        topics=[{"name": name, "topic_id": uuid.UUID(int=0)}],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    (known,) = response.topics
    wanted = [(each, known.topic_id) for each in (None, "", name, other, fresh())]
    wanted += [("", uuid.uuid4()), (other, uuid.uuid4())]
    return [described(asker, [{"name": each, "topic_id": topic_id}]) for each, topic_id in wanted]


@case("Metadata: no topics")
def _(asker: Asker) -> Any:
    return described(asker, [])


@case("Metadata: a topic twice")
def _(asker: Asker) -> Any:
    return described(asker, [{"name": asker.topic(), "topic_id": uuid.UUID(int=0)}] * 2)


@case("ApiVersions: an unknown version")
def _(asker: Asker) -> Any:
    _, body = decode_response(raw(asker, 18, 99, b"\0\0"), api_key=18, version=0)
    return name_of(body.error_code), bool(body.api_keys)


@case("ApiVersions: bodies of other versions")
def _(asker: Asker) -> Any:
    found = []
    for version, body in ((0, b"\0\0\0"), (1, b"\x02a\x02b\0"), (2, b"x"), (0, b"")):
        _, answer = decode_response(raw(asker, 18, version, body), api_key=18, version=version)
        found.append(name_of(answer.error_code))
    return found


@case("ApiVersions: names of software that are no names")
def _(asker: Asker) -> Any:
    found = []
    for name in ("", "a b", "-a", "a\n"):
        response = asker.ask(ApiKey.API_VERSIONS, 3, client_software_name=name, client_software_version="1")
        found.append(name_of(response.error_code))
    return found


@case("SaslHandshake: where nobody authenticates")
def _(asker: Asker) -> Any:
    found = [asker.ask(ApiKey.SASL_HANDSHAKE, version, mechanism="PLAIN") for version in (0, 1)]
    return [(name_of(each.error_code), each.mechanisms) for each in found]


@case("ApiVersions: the first version of Produce, Fetch, ListOffsets and Metadata")
def _(asker: Asker) -> Any:
    response = asker.ask(ApiKey.API_VERSIONS, 3, client_software_name="a", client_software_version="1")
    return {each.api_key: each.min_version for each in response.api_keys if each.api_key < 4}


for _version in (0, 1, 2):
    CASES[f"Produce: version {_version}"] = lambda asker, version=_version: raw(  # type: ignore[misc]
        asker, 0, version, struct.pack(">hii", 1, 1000, 0)
    )
CASES["an unknown API"] = lambda asker: raw(asker, 999, 0)
CASES["an unknown version"] = lambda asker: raw(asker, 3, 99)

# --- offsets by time ---

for _time in (-100, -6, -5, -4, -3, 0, 2**63 - 1, -(2**63)):

    def _nothing(asker: Asker, when: int = _time) -> Any:
        return asker.offsets(asker.topic(), (0, when))

    CASES[f"ListOffsets: time {_time} of an empty partition"] = _nothing


def with_record(asker: Asker) -> str:
    topic = asker.topic()
    assert name_of(asker.client.produce(topic, 0, one_record()).error_code) == "NONE"
    return topic


for _time in (-100, -6, -5, -4, 2**63 - 1, -(2**63)):

    def _found(asker: Asker, when: int = _time) -> Any:
        ((_, code, offset),) = asker.offsets(with_record(asker), (0, when))
        return code, "none" if offset < 0 else "the start or the record"

    CASES[f"ListOffsets: time {_time}"] = _found


@case("ListOffsets: unknown topic, unknown and negative partitions")
def _(asker: Asker) -> Any:
    return asker.offsets(fresh(), (0, -1)), asker.offsets(asker.topic(), (-1, -1), (0, -1), (7, -1))


@case("ListOffsets: a partition twice")
def _(asker: Asker) -> Any:
    return asker.offsets(asker.topic(), (0, -1), (0, -2))


@case("ListOffsets: a leader epoch to come, and no partitions")
def _(asker: Asker) -> Any:
    name = asker.topic()
    return asker.offsets(name, (0, -1), epoch=7), asker.offsets(name)


# --- produce and fetch ---


@case("Produce: unknown topic, unknown and negative partition")
def _(asker: Asker) -> Any:
    places = ((fresh(), 0), (asker.topic(), 7), (asker.topic(), -1))
    return [name_of(asker.client.produce(*place, one_record()).error_code) for place in places]


@case("Produce: acks=2")
def _(asker: Asker) -> Any:
    return name_of(asker.client.produce(asker.topic(), 0, one_record(), acks=2).error_code)


@case("Produce: no records")
def _(asker: Asker) -> Any:
    return name_of(asker.client.produce(asker.topic(), 0, b"").error_code)


@case("Produce: two batches for one partition")
def _(asker: Asker) -> Any:
    return name_of(asker.client.produce(asker.topic(), 0, one_record() * 2).error_code)


@case("Produce: a wrong CRC")
def _(asker: Asker) -> Any:
    batch = bytearray(one_record())
    batch[-1] ^= 1
    return name_of(asker.client.produce(asker.topic(), 0, bytes(batch)).error_code)


@case("Produce: a sequence that leaves a gap")
def _(asker: Asker) -> Any:
    topic = asker.topic()
    batches = [
        encode_batch([Record(0, 1_000, None, b"v")], producer_id=77, producer_epoch=0, base_sequence=at)
        for at in (0, 5, 0)
    ]
    return [name_of(asker.client.produce(topic, 0, batch).error_code) for batch in batches]


def fetched(asker: Asker, topic: str, *parts: Any, **values: Any) -> Any:
    return asker.fetch([{"topic": topic, "partitions": list(parts)}] if parts else [], **values)


@case("Fetch: sessions that nobody was given, of each epoch")
def _(asker: Asker) -> Any:
    name = asker.topic()
    return [
        fetched(asker, name, *parts, session_id=session_id, session_epoch=epoch)
        for parts in ((part_to_fetch(0),), ())
        for session_id in (0, 12345, -1)
        for epoch in (0, -1, 1, 5, -2, -7, 2**31 - 1)
    ]


@case("Fetch: unknown topic, unknown and negative partition")
def _(asker: Asker) -> Any:
    name = asker.topic()
    return [
        fetched(asker, *each)
        for each in ((fresh(), part_to_fetch(0)), (name, part_to_fetch(7)), (name, part_to_fetch(-1)))
    ]


@case("Fetch: offsets out of range")
def _(asker: Asker) -> Any:
    name = asker.topic()
    return [fetched(asker, name, part_to_fetch(0, offset)) for offset in (-1, 99, 2**63 - 1)]


@case("Fetch: a leader epoch to come")
def _(asker: Asker) -> Any:
    return fetched(asker, asker.topic(), part_to_fetch(0, epoch=7))


@case("Fetch: limits of 0, no partitions")
def _(asker: Asker) -> Any:
    name = asker.topic()
    return [fetched(asker, name, part_to_fetch(0, max_bytes=0), max_bytes=0), fetched(asker, name)]


@case("Fetch: a partition twice")
def _(asker: Asker) -> Any:
    return fetched(asker, asker.topic(), part_to_fetch(0), part_to_fetch(0))


@case("InitProducerId: a transactional id")
def _(asker: Asker) -> Any:
    name = fresh()

    def ask() -> str:
        asker.ask(ApiKey.FIND_COORDINATOR, 2, key=name, key_type=1)
        response = asker.ask(ApiKey.INIT_PRODUCER_ID, 1, transactional_id=name, transaction_timeout=10_000)
        return name_of(response.error_code)

    return asker.until_settled(ask)
