"""Which fetches with a replica id count for the high watermark: what is acknowledged rests on them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.errors import Refused
from headrace.broker.handlers.follower_fetch import Allowance, note
from headrace.broker.settings.config import BrokerConfig
from headrace.broker.settings.dynamic import Throttles
from headrace.broker.state import BrokerState
from headrace.log.directory import PartitionName
from headrace.replication.in_sync import UNKNOWN_ADDRESS, InSyncReplicas
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchPartition, FetchRequest

LEADER, FOLLOWER, REGISTERED = 1, 2, 700  # the follower is registered with this broker epoch
END = 1_000


def asked(replica_epoch: int, *, leader_epoch: int = 3, registered: int = REGISTERED) -> int:
    """The high watermark after a fetch at the leader's end by somebody with the follower's id."""
    replicas = InSyncReplicas(
        LEADER, (1, 2), (1, 2), min_in_sync=1, epoch_start=0, high_watermark=0, now_ms=0.0
    )
    fetch(replicas, replica_epoch, END, leader_epoch=leader_epoch, registered=registered)
    return replicas.high_watermark


def fetch(
    replicas: InSyncReplicas,
    replica_epoch: int,
    address: int,
    *,
    leader_epoch: int = 3,
    registered: int = REGISTERED,
    start: int = 0,
    follower: int = FOLLOWER,
) -> None:
    """Notes a fetch at `address`; the leader's log goes from `start` to `END`."""
    log = SimpleNamespace(start_address=start, end_address=END)
    partition: Any = SimpleNamespace(name=PartitionName("t", 0), replicas=replicas, log=log)
    state: Any = SimpleNamespace(
        view=SimpleNamespace(broker_epoch=lambda _: registered),
        monotonic_ms=lambda: 5.0,
        partitions=SimpleNamespace(advance=lambda _: replicas.advance(END)),
        follower_asked=lambda *_: None,
    )
    for name in ("is_past_epoch", "is_registered_epoch"):
        setattr(state, name, getattr(BrokerState, name).__get__(state))
    part = FetchPartition(0, address, 1, current_leader_epoch=leader_epoch)
    note(state, partition, part, FetchRequest(0, 0, 1, [], follower, replica_epoch=replica_epoch))


def test_the_registered_follower_counts() -> None:
    assert asked(REGISTERED) == END


@pytest.mark.parametrize("epoch", [-1, REGISTERED + 1, 2**62])
def test_somebody_who_only_says_that_it_is_the_follower_counts_for_nothing(epoch: int) -> None:
    assert asked(epoch) == 0


def test_a_follower_whose_registration_is_gone_counts_for_nothing() -> None:
    assert asked(REGISTERED, registered=-1) == 0
    assert asked(-1, registered=-1) == 0


def test_an_older_self_of_the_follower_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        asked(REGISTERED - 1)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_the_leader_is_no_follower_of_its_own() -> None:
    """Anybody may say that it is, with the broker epoch that DescribeCluster tells."""
    replicas = InSyncReplicas(
        LEADER, (1, 2), (1, 2), min_in_sync=1, epoch_start=0, high_watermark=0, now_ms=0.0
    )
    with pytest.raises(Refused) as refused:
        fetch(replicas, REGISTERED, END, follower=LEADER)
    assert refused.value.code is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_without_a_leader_epoch_nothing_counts() -> None:
    assert asked(REGISTERED, leader_epoch=-1) == 0


def test_a_log_that_ends_below_the_leaders_start_is_known_to_lack_something_at_once() -> None:
    """Its first fetch tells that it was emptied. By its second, the leader may be dead, and it elected."""
    replicas = InSyncReplicas(
        LEADER, (1, 2), (1,), (2,), min_in_sync=2, epoch_start=END, high_watermark=END, now_ms=0.0
    )
    fetch(replicas, REGISTERED, 0, start=500)
    assert replicas.unfit == {FOLLOWER}
    assert replicas.end_address(FOLLOWER) == 0


def test_what_a_log_beyond_the_leaders_end_has_below_it_is_not_known() -> None:
    replicas = InSyncReplicas(
        LEADER, (1, 2), (1,), (2,), min_in_sync=2, epoch_start=END, high_watermark=END, now_ms=0.0
    )
    fetch(replicas, REGISTERED, END + 1)
    assert not replicas.unfit
    assert replicas.end_address(FOLLOWER) == UNKNOWN_ADDRESS


# --- throttles (KIP-73) ---


def allowed(
    throttled: str, follower: int = FOLLOWER, *, in_sync: tuple[int, ...] = (1,), rate: int = 500
) -> int | None:
    replicas = InSyncReplicas(
        LEADER, (1, 2), in_sync, min_in_sync=1, epoch_start=0, high_watermark=0, now_ms=0.0
    )
    config = BrokerConfig().topic_config({"leader.replication.throttled.replicas": throttled})
    partition: Any = SimpleNamespace(name=PartitionName("t", 0), index=0, replicas=replicas, config=config)
    state: Any = SimpleNamespace(throttles=Throttles(), broker_id=LEADER, monotonic_ms=lambda: 5.0)
    state.throttles.configure({"leader.replication.throttled.rate": str(rate)}, 5.0)
    return Allowance(state, FetchRequest(0, 0, 1, [], follower)).left_bytes(partition)


def test_a_throttled_leader_sends_as_much_as_its_rate_allows() -> None:
    assert allowed("0:1") == allowed("*") == 500
    assert allowed("0:1", rate=0) == 0


def test_others_are_not_throttled() -> None:
    assert allowed("0:2") is None, "that is the follower's"
    assert allowed("1:1") is None and allowed("") is None
    assert allowed("0:1", rate=2**63 - 1) is None


def test_a_follower_in_sync_gets_everything() -> None:
    assert allowed("0:1", in_sync=(1, 2), rate=0) is None


def test_an_answer_counts_once_though_it_is_begun_twice() -> None:
    state: Any = SimpleNamespace(throttles=Throttles())
    quota = state.throttles.leader
    quota.set_rate(1_000, 0.0)
    allowance = Allowance(state, FetchRequest(0, 0, 1, [], FOLLOWER))
    for _ in range(2):
        allowance.begin()
        allowance.take(300)
    allowance.send()
    assert quota.available_bytes(0.0) == 700
