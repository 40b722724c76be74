"""The wall clock is set two days forward or back while a broker runs: no producer is forgotten, nothing is
stored twice, no member of a group expires, and no wait gets longer or shorter.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from kio.schema.describe_groups.v4.request import DescribeGroupsRequest
from kio.schema.heartbeat.v3.request import HeartbeatRequest
from kio.schema.join_group.v5.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.sync_group.v3.request import SyncGroupRequest, SyncGroupRequestAssignment
from kio.schema.types import GroupId
from kio.static.primitive import i32, i32Timedelta

from fix_broker import BrokerCluster, RawClient, StartCluster
from headrace.broker.handlers.groups import GroupService
from headrace.broker.promise import Promise
from headrace.broker.settings.config import BrokerConfig
from headrace.log.config import LogConfig
from headrace.log.partition import PartitionLog
from headrace.wire.batch import read_header
from headrace.wire.records import Record, encode_batch

DAY_S: Final = 24 * 3600
WAIT_MAX_S: Final = 60.0
SET_CLOCK: Final = Path(__file__).parents[1] / "programs" / "set_clock"


def sequenced(first_sequence: int, count: int = 1) -> bytes:
    records = [Record(0, 1_000, None, b"value %d" % (first_sequence + at)) for at in range(count)]
    return encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=first_sequence)


# --- a partition's log ---


@pytest.mark.parametrize("step_ms", [2 * DAY_S * 1000, -2 * DAY_S * 1000])
def test_a_log_forgets_no_producer_when_the_clock_is_set(tmp_path: Path, step_ms: int) -> None:
    wall_ms = [1_700_000_000_000]
    config = LogConfig(retention_ms=-1, producer_expiration_ms=DAY_S * 1000)
    log = PartitionLog(tmp_path / "t-0", config, lambda: wall_ms[0])
    for first in (0, 5):
        log.append(sequenced(first, 5))
    for _ in range(2):  # running, then after a restart
        before = log.producers.get(7)
        wall_ms[0] += step_ms
        log.delete_expired_segments()
        after = log.producers.get(7)
        assert after is not None and before is not None
        assert after.batches == before.batches
        log.close()
        log = PartitionLog(tmp_path / "t-0", config, lambda: wall_ms[0])
    log.close()


def test_a_producer_s_silence_adds_up_over_restarts(tmp_path: Path) -> None:
    now_ms = [5_000]
    config = LogConfig(retention_ms=-1, producer_expiration_ms=10_000)
    for _ in range(3):
        log = PartitionLog(tmp_path / "t-0", config)
        log.producers = log.producers.restored(log.producers, log.producers.clock_ms(), lambda: now_ms[0])
        if not log.end_address:
            log.append(sequenced(0))
        log.delete_expired_segments()
        assert log.producers.get(7) is not None
        now_ms[0] += 6_000
        log.request_checkpoint()
        log.delete_expired_segments()
        kept = log.producers.get(7)
        log.close()
        if kept is None:
            return
    pytest.fail("a producer that was silent for 12 s is kept, though the bound is 10 s")


# --- groups, with the broker's own timer ---


def test_the_timer_of_groups_runs_on_the_monotonic_clock() -> None:
    state = SimpleNamespace(
        config=BrokerConfig({"group.initial.rebalance.delay.ms": "0"}),
        broker_id=1,
        view=SimpleNamespace(brokers={1: None}),
        peer="127.0.0.1:5",
        monotonic_ms=lambda: 1_000,
        loop=SimpleNamespace(call_later=lambda delay_ms, _call: delays_ms.append(delay_ms)),
    )
    delays_ms: list[float] = []
    unknown: Promise[Any] = Promise()
    unknown.resolve(None)
    service = GroupService(cast(Any, state), cast(Any, SimpleNamespace(load=lambda _: unknown)))
    request = SimpleNamespace(body=join_request("g"), version=3, client_id="c")
    service.join(cast(Any, state), cast(Any, request))
    assert delays_ms == [6_000]


# --- a broker whose clock is set ---


class SettableBroker:
    """A broker of its own, and its wall clock."""

    def __init__(self, start: StartCluster, directory: Path) -> None:
        self._offset = directory / "offset"
        self.set(0)
        settings = {
            "log.retention.ms": "-1",
            "log.retention.check.interval.ms": "50",
            "group.initial.rebalance.delay.ms": "0",
        }
        environment = {"PYTHONPATH": str(SET_CLOCK), "WALL_CLOCK_OFFSET_FILE": str(self._offset)}
        self.cluster: BrokerCluster = start(config=settings, environment=environment)

    def set(self, offset_s: int) -> None:
        new = self._offset.with_suffix(".new")
        new.write_text(str(offset_s))
        new.replace(self._offset)

    @property
    def client(self) -> RawClient:
        return RawClient(self.cluster.bootstrap)


@pytest.fixture
def broker(broker_cluster: StartCluster, tmp_path: Path) -> SettableBroker:
    return SettableBroker(broker_cluster, tmp_path)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_MAX_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def stamped_ms(client: RawClient) -> int:
    """The broker's time of day, by a record that it stamps."""
    topic = f"now-{uuid.uuid4().hex[:8]}"
    client.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
    assert client.produce(topic, 0, sequenced(0)).error_code == 0
    return read_header(client.read_all(topic, 0)).max_timestamp_ms


def wait_for_upkeep(client: RawClient) -> None:
    """Until upkeep has run, by a topic that it empties whatever the clock shows."""
    topic = f"short-{uuid.uuid4().hex[:8]}"
    client.create_topic(topic, config={"segment.ms": "1", "retention.bytes": "0"})
    assert client.produce(topic, 0, sequenced(0)).error_code == 0
    wait_for(lambda: client.list_offset(topic, 0, -2)[0] > 0)


@pytest.mark.parametrize("days", [2, -2])
def test_nothing_is_stored_twice(broker: SettableBroker, days: int) -> None:
    with broker.client as client:
        client.create_topic("t")
        results = [client.produce("t", 0, sequenced(number)) for number in range(17)]
        assert {each.error_code for each in results} == {0}
        end = client.list_offset("t", 0, -1)
        broker.set(days * DAY_S)
        now_ms = stamped_ms(client)
        assert abs(now_ms - (time.time() + days * DAY_S) * 1000) < 3600_000, "the broker's clock was set"
        wait_for_upkeep(client)
        for number in range(12, 17):  # the last five: as many as a partition remembers
            again = client.produce("t", 0, sequenced(number))
            assert (again.error_code, again.base_offset) == (0, results[number].base_offset)
        assert client.list_offset("t", 0, -1) == end
    broker.set(-days * DAY_S)
    broker.cluster[1].restart()
    with broker.client as client:
        wait_for_upkeep(client)
        again = client.produce("t", 0, sequenced(16))
        assert (again.error_code, again.base_offset) == (0, results[16].base_offset)
        assert client.list_offset("t", 0, -1) == end
        assert client.produce("t", 0, sequenced(17)).error_code == 0


def test_one_clock_that_jumps_ahead_deletes_nothing(broker: SettableBroker) -> None:
    """ZooKeeper's does not say that the events are old (decision 45)."""
    with broker.client as client:
        client.create_topic("t", config={"retention.ms": str(DAY_S * 1000), "segment.ms": "1000"})
        assert client.produce("t", 0, sequenced(0)).error_code == 0
        broker.set(2 * DAY_S)
        for number in (1, 2):
            wait_for_upkeep(client)
            assert client.produce("t", 0, sequenced(number)).error_code == 0
        assert client.list_offset("t", 0, -2)[0] == 0
    broker.cluster[1].restart()
    with broker.client as client:
        wait_for_upkeep(client)
        assert client.list_offset("t", 0, -2)[0] == 0


def join_request(group: str, session_ms: int = 6_000) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=GroupId(group),
        session_timeout=i32Timedelta.parse(timedelta(milliseconds=session_ms)),
        rebalance_timeout=i32Timedelta.parse(timedelta(milliseconds=session_ms)),
        member_id="",
        protocol_type="consumer",
        protocols=(JoinGroupRequestProtocol(name="range", metadata=b""),),
    )


class Member:
    """A member of a group of its own, which has synced."""

    def __init__(self, client: RawClient, group: str, session_ms: int) -> None:
        self._client = client
        self._group = GroupId(group)
        request = join_request(group, session_ms)
        first = client.call(request)
        assert first.error_code.name == "member_id_required"
        self._member_id = first.member_id
        joined = client.call(
            JoinGroupRequest(
                group_id=request.group_id,
                session_timeout=request.session_timeout,
                rebalance_timeout=request.rebalance_timeout,
                member_id=first.member_id,
                protocol_type=request.protocol_type,
                protocols=request.protocols,
            )
        )
        assert joined.error_code.name == "none"
        self._generation_id: i32 = joined.generation_id
        synced = client.call(
            SyncGroupRequest(
                group_id=self._group,
                generation_id=self._generation_id,
                member_id=self._member_id,
                assignments=(SyncGroupRequestAssignment(member_id=self._member_id, assignment=b"all"),),
            )
        )
        assert synced.error_code.name == "none"

    def heartbeat(self) -> str:
        request = HeartbeatRequest(
            group_id=self._group, generation_id=self._generation_id, member_id=self._member_id
        )
        return str(self._client.call(request).error_code.name)


def members(client: RawClient, group: str) -> int:
    (found,) = client.call(
        DescribeGroupsRequest(groups=(GroupId(group),), include_authorized_operations=False)
    ).groups
    assert found.error_code.name == "none"
    return len(found.members)


@pytest.mark.parametrize("days", [2, -2])
def test_members_stay_and_silent_ones_go(broker: SettableBroker, days: int) -> None:
    with broker.client as client:
        steady = Member(client, "steady", 30_000)
        silent = Member(client, "silent", 1_000)
        broker.set(days * DAY_S)
        assert abs(stamped_ms(client) - (time.time() + days * DAY_S) * 1000) < 3600_000
        wait_for(lambda: members(client, "silent") == 0)
        assert members(client, "steady") == 1
        assert (steady.heartbeat(), silent.heartbeat()) == ("none", "unknown_member_id")
