"""What a checkpoint holds of a log at its present end."""

from __future__ import annotations

from headrace.log.checkpoint import BegunSegment, Checkpoint
from headrace.log.epochs import LeaderEpochs
from headrace.log.producers import ProducerStates
from headrace.log.segments import SegmentList


def checkpoint_of(
    end_address: int, segments: SegmentList, producers: ProducerStates, epochs: LeaderEpochs, lineage: int
) -> Checkpoint:
    """Nothing may be staged: `producers` would hold it already."""
    known = {
        segment.base_address: greatest
        for segment in segments.sealed()
        if (greatest := segment.max_timestamp_if_known_ms) is not None
    }
    saved_ms = producers.clock_ms() if len(producers) else None
    active = segments.active
    return Checkpoint(
        end_address,
        producers.saved(),
        known,
        saved_ms,
        epochs.starts(),
        segments.sparse_starts(),
        lineage,
        BegunSegment(active.base_address, active.created_ms),
    )
