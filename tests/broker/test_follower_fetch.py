"""Which fetches with a replica id count for the high watermark: what is acknowledged rests on them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.errors import Refused
from headrace.broker.handlers.follower_fetch import note
from headrace.broker.state import BrokerState
from headrace.log.directory import PartitionName
from headrace.replication.in_sync import InSyncReplicas
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchPartition, FetchRequest

LEADER, FOLLOWER, REGISTERED = 1, 2, 700  # the follower is registered with this broker epoch
END = 1_000


def asked(replica_epoch: int, *, leader_epoch: int = 3, registered: int = REGISTERED) -> int:
    """The high watermark after a fetch at the leader's end by somebody with the follower's id."""
    replicas = InSyncReplicas(
        LEADER, (1, 2), (1, 2), min_in_sync=1, epoch_start=0, high_watermark=0, now_ms=0.0
    )
    partition: Any = SimpleNamespace(
        name=PartitionName("t", 0), replicas=replicas, log=SimpleNamespace(start_address=0, end_address=END)
    )
    state: Any = SimpleNamespace(
        view=SimpleNamespace(broker_epoch=lambda _: registered),
        monotonic_ms=lambda: 5.0,
        partitions=SimpleNamespace(advance=lambda _: replicas.advance(END)),
        follower_asked=lambda *_: None,
    )
    for name in ("is_past_epoch", "is_registered_epoch"):
        setattr(state, name, getattr(BrokerState, name).__get__(state))
    part = FetchPartition(0, END, 1, current_leader_epoch=leader_epoch)
    note(state, partition, part, FetchRequest(0, 0, 1, [], FOLLOWER, replica_epoch=replica_epoch))
    return replicas.high_watermark


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


def test_without_a_leader_epoch_nothing_counts() -> None:
    assert asked(REGISTERED, leader_epoch=-1) == 0
