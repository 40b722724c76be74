"""A log is cut, and other batches come in the place of those that were cut off, while an answer with those is
still on its way to a follower.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from fix_log import LED_SIZE_BYTES, SMALL, append, content, written
from headrace.broker.handlers.leader_epochs import diverging
from headrace.broker.partition import Partition
from headrace.broker.settings.config import BrokerConfig
from headrace.log.directory import PartitionName
from headrace.log.partition import PartitionLog
from headrace.replication.following import Append, OwnLog, next_step
from headrace.wire.fetch import FetchPartitionResult

NAME = PartitionName("t", 0)


def take(log: PartitionLog, records: bytes, **fields: Any) -> None:
    """What a follower does with an answer."""
    result = FetchPartitionResult(0, 0, 0, records, 0, 0)._replace(**fields)
    step = next_step(OwnLog(log.start_address, log.end_address, log.epochs), result)
    if isinstance(step, Append) and step.batches:
        log.append_verbatim(step.batches, step.headers)


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_follower_does_not_take_the_next_leaders_batches_for_those_of_the_one_that_it_asked(
    tmp_path: Path, kept: int
) -> None:
    """It had `kept` and one batch more than the next leader: those in between would never be the same."""
    common = [(1, number) for number in range(kept)]
    deposed = written(tmp_path / "deposed", *common, (1, 10), (1, 11), (1, 12))
    follower = written(tmp_path / "follower", *common, (1, 10), (1, 11))
    next_leader = written(tmp_path / "next", *common, (2, 20), (2, 21), (2, 22))
    sent = deposed.slices(follower.end_address, 1 << 20)
    # The leader is none any more, and follows the next one.
    deposed.truncate(kept * LED_SIZE_BYTES)
    append(deposed, (2, 20), (2, 21), (2, 22))
    assert content(deposed) == content(next_leader)
    take(follower, b"".join(each.read() for each in sent))
    partition = Partition(*NAME, UUID(int=1), BrokerConfig().topic_config({}), next_leader, 2)
    agrees = diverging(partition, follower.epochs.latest, follower.end_address, for_follower=True) is None
    assert not agrees or content(follower) == content(next_leader)[: follower.end_address]
    for log in (deposed, follower, next_leader):
        log.close()


@pytest.mark.parametrize("is_crash", [False, True])
@pytest.mark.parametrize("kept", [0, 1, 2, 3, 5])
def test_a_log_that_was_cut_goes_on_behind_its_last_batch(tmp_path: Path, kept: int, is_crash: bool) -> None:
    log = PartitionLog(tmp_path / "t-0", SMALL)
    append(log, *[(1, number) for number in range(6)])
    for cut_to in (5, kept):
        log.truncate(cut_to * LED_SIZE_BYTES)
        assert log.end_address == cut_to * LED_SIZE_BYTES
    append(log, *[(2, number) for number in range(20, 24)])
    wanted = content(log)
    assert len(wanted) == (kept + 4) * LED_SIZE_BYTES
    log.abandon() if is_crash else log.close()
    again = PartitionLog(tmp_path / "t-0", SMALL)
    assert content(again) == wanted
    assert [(each.epoch, each.address) for each in again.epochs][-1] == (2, kept * LED_SIZE_BYTES)
    again.close()
