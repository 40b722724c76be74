"""Cuts of followed logs: at the address where the leader has other batches, at its start, behind its gap."""

from __future__ import annotations

import logging

from headrace.broker.replicas.followed import FollowedPartition
from headrace.log.partition import PartitionLog
from headrace.log.passing import pass_gap
from headrace.log.segment import ColdSegmentError
from headrace.replication.following import PassGap, Restart, Truncate

logger = logging.getLogger(__name__)

Cut = Truncate | Restart | PassGap


def log_cut(followed: FollowedPartition, leader: int, step: Cut) -> None:
    """Says in this process's log what is cut, and whether anything acknowledged is lost by it."""
    end = followed.log.end_address
    if isinstance(step, Restart):
        logger.warning(
            "%s: broker %d has nothing of this log, which ends at %d: the log restarts at %d",
            *(followed, leader, end, step.address),
        )
    elif isinstance(step, PassGap):
        logger.warning(
            "%s: broker %d has set aside addresses %d to %d: this log has the same gap from now on",
            *(followed, leader, end, step.address),
        )
    elif step.address < followed.high_watermark:
        logger.error(
            "%s: broker %d has other batches from address %d on, below the high watermark %d: what was "
            "acknowledged there is lost; %d bytes are cut off",
            *(followed, leader, step.address, followed.high_watermark, end - step.address),
        )
    else:
        logger.info(
            "%s: broker %d has other batches from address %d on: %d bytes are cut off",
            *(followed, leader, step.address, end - step.address),
        )


def cut_log(log: PartitionLog, step: Cut) -> None:
    """Truncates a log, begins it anew or behind a gap; runs on a thread. Raises `LogError`, `OSError`."""
    if isinstance(step, PassGap):
        pass_gap(log, step.address)
        return
    if isinstance(step, Restart):
        log.restart(step.address, may_go_back=True)
        return
    while True:
        try:
            # The start of a batch, whatever was asked for.
            log.truncate(log.position(step.address))
            return
        except ColdSegmentError as cold:
            indexing = log.begin_index(cold.segment)
            if indexing is None:
                raise
            cold.segment.learn(indexing.run(), indexing.problem, indexing.islands)
            if indexing.problem is not None:
                raise indexing.problem from None
