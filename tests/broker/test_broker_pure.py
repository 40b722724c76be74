"""The broker's pure decisions: settings, validation, responses of every version, what to open or drop."""

from collections.abc import Callable
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from headrace.broker.bodies import Tree, build
from headrace.broker.errors import Refused
from headrace.broker.handlers.init_producer_id import ProducerIds
from headrace.broker.produce.opening import Opened, open_batch
from headrace.broker.produce.validation import check_header, split_verified, to_store
from headrace.broker.promise import Promise
from headrace.broker.replicas.plan import plan
from headrace.broker.settings.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig, TopicConfig
from headrace.broker.settings.setting import ConfigError
from headrace.broker.workers import Outcome, Workers
from headrace.coordination.topics import PartitionState, TopicState
from headrace.log.config import UNLIMITED
from headrace.log.directory import PartitionName
from headrace.wire.batch import hop, read_header, seal, verify
from headrace.wire.checking import scan_records
from headrace.wire.compression import Codec
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import Request, decode_response, encode_response
from headrace.wire.primitives import Buffer
from headrace.wire.records import Record, decode_records, encode_batch

# --- settings ---


def test_every_default_is_allowed() -> None:
    config = BrokerConfig()
    for name in BROKER_SETTINGS:
        assert config[name] is not None
    assert config.topic_config({}).log.retention_ms == 7 * 24 * 3600 * 1000
    assert config.topic_config({}).log.flush_ms is None
    assert not config["auto.create.topics.enable"], "unlike Apache Kafka: strangers fill no disk with topics"


def test_topics_inherit_from_the_broker_and_override_it() -> None:
    config = BrokerConfig({"log.retention.ms": "5000", "log.flush.interval.ms": "7"})
    assert config.topic_config({}).log.retention_ms == 5000
    assert config.topic_config({}).log.flush_ms == 7
    assert config.topic_config({"retention.ms": "-1"}).log.retention_ms == -1
    assert config.topic_config({"headrace.mirror": "true"}).mirror
    for name, setting in TOPIC_SETTINGS.items():
        assert setting.inherits_from is None or setting.inherits_from in BROKER_SETTINGS, name


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("retention.ms", "soon", "not a number"),
        ("retention.ms", "-2", "must be from -1"),
        ("headrace.mirror", "perhaps", "not a boolean"),
        ("message.timestamp.type", "Never", "CreateTime or LogAppendTime"),
        ("cleanup.policy", "keep", "must be delete, compact, or both: compact,delete"),
        ("cleanup.policy", "compact,keep", "must be delete, compact, or both"),
        ("cleanup.policy", ",", "must be delete, compact, or both"),
        ("min.cleanable.dirty.ratio", "nan", "must be from 0 to 1"),
        ("min.cleanable.dirty.ratio", "1.5", "must be from 0 to 1"),
        ("max.compaction.lag.ms", "1000", "no topic setting"),
        ("no.such.setting", "1", "no topic setting"),
    ],
)
def test_wrong_topic_settings_say_what_is_allowed(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        BrokerConfig().topic_config({name: value})


@pytest.mark.parametrize(
    ("policy", "is_by_retention", "needs_keys"),
    [
        ("delete", True, False),
        ("compact", False, True),
        ("compact,delete", True, True),
        (" delete , compact ", True, True),
        ("", False, False),
    ],
)
def test_retention_and_keys_go_by_the_policy(policy: str, is_by_retention: bool, needs_keys: bool) -> None:
    limits = {"retention.ms": "60000", "retention.bytes": "5000", "message.validation": "headers"}
    config = BrokerConfig().topic_config({"cleanup.policy": policy, **limits})
    found = (config.log.retention_ms, config.log.retention_bytes)
    assert found == ((60_000, 5_000) if is_by_retention else (UNLIMITED, UNLIMITED))
    assert (config.cleanup.compacts, config.checks_records) == (needs_keys, needs_keys)


def test_wrong_broker_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="no broker setting"):
        BrokerConfig({"log.retention": "1"})
    with pytest.raises(ConfigError, match="must be from"):
        BrokerConfig({"num.partitions": "0"})


# --- validation ---

PLAIN = BrokerConfig().topic_config({})


def opened(batch: memoryview, config: TopicConfig = PLAIN) -> Opened:
    return open_batch(batch, read_header(batch), config, 2_000, scan_records)


def code_of(batch: Buffer) -> ErrorCode:
    with pytest.raises(Refused) as caught:
        for _, header in split_verified(memoryview(batch)):
            check_header(header, PLAIN)
    return caught.value.code


def test_a_valid_batch_is_stored_unchanged() -> None:
    raw = memoryview(bytearray(encode_batch([Record(0, 1, None, b"v")])))
    ((batch, header),) = split_verified(raw)
    check_header(header, PLAIN)
    assert to_store(batch, header, PLAIN, 5, opened(batch)) == (batch, header)


def test_invalid_batches_are_refused_with_their_codes() -> None:
    good = bytearray(encode_batch([Record(0, 1, None, b"v"), Record(1, 1, None, b"w")]))
    flipped = bytearray(good)
    flipped[-1] ^= 1
    old = bytearray(good)
    old[16] = 1
    assert code_of(b"") is ErrorCode.INVALID_RECORD
    assert code_of(flipped) is ErrorCode.CORRUPT_MESSAGE
    assert code_of(good[:-1]) is ErrorCode.CORRUPT_MESSAGE
    assert code_of(good + b"more") is ErrorCode.CORRUPT_MESSAGE
    assert code_of(old) is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert code_of(encode_batch([Record(0, 1, None, bytes(1_100_000))])) is ErrorCode.MESSAGE_TOO_LARGE

    def sealed(**fields: int) -> bytes:
        defaults = {"record_count": 1, "base_timestamp_ms": 1, "max_timestamp_ms": 1}
        return seal(b"records", **{**defaults, **fields})

    assert code_of(sealed(record_count=0, last_offset_delta=0)) is ErrorCode.INVALID_RECORD
    assert code_of(sealed(record_count=3, last_offset_delta=7)) is ErrorCode.INVALID_RECORD
    assert code_of(sealed(attributes=0x10)) is ErrorCode.INVALID_TXN_STATE
    assert code_of(sealed(attributes=0x20)) is ErrorCode.INVALID_RECORD
    assert code_of(sealed(attributes=0x40)) is ErrorCode.INVALID_RECORD
    assert code_of(sealed(attributes=6)) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert code_of(sealed(producer_id=4, producer_epoch=0, base_sequence=-1)) is ErrorCode.INVALID_RECORD


def test_more_records_than_bytes_are_stored_uncompressed() -> None:
    records = [Record(at, 1_000, None, b"") for at in range(10_000)]
    raw = memoryview(
        bytearray(encode_batch(records, codec=Codec.GZIP, producer_id=3, producer_epoch=1, base_sequence=5))
    )
    ((batch, header),) = split_verified(raw)
    if header.record_count <= header.size_bytes:  # `wire` may have refused it already
        batch = memoryview(bytearray(_squeezed(records)))
        header = read_header(batch)
    assert header.record_count > header.size_bytes
    stored, stored_header = to_store(batch, header, PLAIN, 5, opened(batch))
    assert stored_header.codec is Codec.NONE and stored_header.record_count <= stored_header.size_bytes
    verify(stored, 0, stored_header)
    assert len(decode_records(stored)) == 10_000
    assert stored_header[8:] == header[8:]


def _squeezed(records: list[Record]) -> bytes:
    from headrace.wire.compression import compress

    plain = encode_batch(records)
    header = read_header(plain)
    return seal(
        compress(Codec.ZSTD, plain[61:]),
        attributes=int(Codec.ZSTD),
        record_count=header.record_count,
        base_timestamp_ms=header.base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
    )


def test_log_append_time_stamps_the_batch() -> None:
    config = BrokerConfig().topic_config({"message.timestamp.type": "LogAppendTime"})
    raw = memoryview(bytearray(encode_batch([Record(0, 1, None, b"v")])))
    ((batch, header),) = split_verified(raw)
    stored, stored_header = to_store(batch, header, config, 777, opened(batch, config))
    verify(stored, 0, stored_header)
    assert stored_header.is_log_append_time and stored_header.max_timestamp_ms == 777
    assert decode_records(stored)[0].timestamp_ms == 777
    # A client may not set the LogAppendTime bit unless the topic uses LogAppendTime.
    claimed, claimed_header = to_store(
        memoryview(stored), stored_header, PLAIN, 5, opened(memoryview(stored))
    )
    assert not claimed_header.is_log_append_time
    assert [h.size_bytes for _, h in hop(claimed)] == [len(stored)]


# --- responses ---


@pytest.mark.parametrize("version", range(14))
def test_one_tree_makes_every_version_of_a_response(version: int) -> None:
    topic_id = uuid4()
    tree = {
        "brokers": [{"node_id": 1, "host": "a", "port": 9, "rack": "east"}],
        "cluster_id": "c",
        "controller_id": 1,
        "topics": [
            {
                "error_code": ErrorCode.NONE,
                "name": "t",
                "topic_id": topic_id,
                "partitions": [
                    {
                        "error_code": ErrorCode.LEADER_NOT_AVAILABLE,
                        "partition_index": 0,
                        "leader_id": 1,
                        "leader_epoch": 3,
                        "replica_nodes": (1,),
                        "isr_nodes": (1,),
                    }
                ],
            }
        ],
    }
    frame = encode_response(build(3, version, tree), correlation_id=5)
    correlation_id, body = decode_response(frame[4:], api_key=3, version=version)
    assert correlation_id == 5
    assert body.topics[0].partitions[0].error_code.name == "leader_not_available"
    assert version < 7 or body.topics[0].partitions[0].leader_epoch == 3
    assert version < 10 or body.topics[0].topic_id == topic_id


# --- the replica manager's plan ---


def topic(name: str, topic_id: UUID, leaders: list[int]) -> TopicState:
    return TopicState(name, topic_id, {i: PartitionState(b, 0, (b,), (b,)) for i, b in enumerate(leaders)})


def test_plan_opens_closes_and_deletes() -> None:
    same, gone, again, moved = uuid4(), uuid4(), uuid4(), uuid4()
    present = {
        PartitionName("same", 0): same,
        PartitionName("gone", 0): gone,
        PartitionName("again", 0): uuid4(),
        PartitionName("moved", 0): moved,
    }
    topics = {
        "same": topic("same", same, [1, 2, 1]),
        "again": topic("again", again, [1]),
        "moved": topic("moved", moved, [2]),
    }
    made = plan(1, present, topics)
    assert sorted(made.open) == sorted([(PartitionName("same", 2), same), (PartitionName("again", 0), again)])
    assert made.close == [PartitionName("moved", 0)]
    assert sorted(made.delete) == [PartitionName("again", 0), PartitionName("gone", 0)]
    after = {PartitionName("same", 0): same, PartitionName("same", 2): same, PartitionName("again", 0): again}
    assert plan(1, after, topics) == plan(1, {}, {}), "nothing more to do"


# --- producer ids ---


class ManualWorkers:
    """Workers that run a job when `run` is called."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Outcome]] = []

    def submit(self, job: Callable[[], Any], done: Outcome) -> None:
        self.jobs.append((job, done))

    def run(self) -> None:
        job, done = self.jobs.pop(0)
        try:
            result, error = job(), None
        except OSError as caught:
            result, error = None, caught
        done(result, error)


class InitProducerIdBody:
    transactional_id = None


def test_producer_ids_come_from_blocks_and_requests_wait_for_the_next() -> None:
    control = ManualWorkers()
    outcomes: list[range | OSError] = [range(10, 12), OSError("no ZooKeeper"), range(50, 52)]
    blocks = iter(outcomes)

    def allocate() -> range:
        block = next(blocks)
        if isinstance(block, OSError):
            raise block
        return block

    ids = ProducerIds(cast(Workers, control), allocate)
    got: list[tuple[int, int]] = []

    def note(tree: Tree) -> None:
        got.append((tree["producer_id"], int(tree["error_code"])))

    def ask() -> None:
        response = ids.handle(Request(22, 4, 1, None, InitProducerIdBody()))
        if isinstance(response, Promise):
            response.then(note)
        else:
            note(response)

    ask()
    ask()
    ask()
    assert got == []
    control.run()
    assert got == [(10, 0), (11, 0)], "the third waits for another block"
    control.run()
    assert got[2:] == [(-1, int(ErrorCode.COORDINATOR_NOT_AVAILABLE))]
    ask()
    control.run()
    assert got[3:] == [(50, 0)]
