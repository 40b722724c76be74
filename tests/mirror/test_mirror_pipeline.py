"""The loops that move bytes, step by step: what they keep, and for how long."""

from __future__ import annotations

import time

import pytest

from fix_audit_world import HOUR_A, PartitionBytes
from headrace.mirror import pipeline
from headrace.mirror.copying import CopyState, PartitionCopy
from headrace.mirror.pipeline import Pipeline
from headrace.replication.pull import Fetched
from headrace.wire.records import Record, encode_batch

NOBODY = "127.0.0.1:1"
WAIT_MAX_S = 10.0


def test_a_copy_whose_target_cannot_be_reached_gives_its_room_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds counts for its lane: two such copies would keep all others there from fetching."""
    monkeypatch.setattr(pipeline, "TARGET_WAIT_MAX_S", 0.05)
    source = PartitionBytes()
    source.append(encode_batch([Record(0, HOUR_A, None, b"value")]))
    copy = PartitionCopy("t", 0, 0, draw=lambda: 0.5)
    opened = Pipeline(NOBODY, NOBODY, client_id="test")
    opened.add([copy])
    copy.located(0, source.end)
    copy.fetched(1, 0, Fetched(bytes(source.data), 0, source.end), time.monotonic())
    opened._append_step()
    assert copy.ahead_bytes == source.end
    deadline = time.monotonic() + WAIT_MAX_S
    while copy.ahead_bytes and time.monotonic() < deadline:
        time.sleep(0.01)
        opened._append_step()
    assert (copy.ahead_bytes, copy.state) == (0, CopyState.LOCATING)
    assert copy.problem == "the leader of t-0 in the target cannot be reached"
    opened.close()
