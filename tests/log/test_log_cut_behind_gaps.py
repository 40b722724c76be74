"""A log is cut behind a gap that it has passed as its leader has."""

from __future__ import annotations

from pathlib import Path

import pytest

from fix_log import LED_SIZE_BYTES, append, segments, written
from headrace.log.errors import LogError
from headrace.log.partition import PartitionLog
from headrace.log.passing import pass_gap


@pytest.mark.parametrize("is_crash", [False, True])
def test_a_log_is_cut_at_the_end_of_a_gap(tmp_path: Path, is_crash: bool) -> None:
    """A follower has passed its leader's gap, and the next leader has no batches behind it yet."""
    log = written(tmp_path / "t-0", (1, 0), (1, 1))
    behind = 10 * LED_SIZE_BYTES
    pass_gap(log, behind)
    append(log, (1, 2))
    log.truncate(behind)
    assert log.end_address == behind == log.position(2 * LED_SIZE_BYTES)
    append(log, (2, 3))
    assert [log.position(behind), log.position(behind + 1)] == [behind, behind]
    log.abandon() if is_crash else log.close()
    try:
        again = PartitionLog(tmp_path / "t-0")
    except LogError as error:
        raise AssertionError("the gap was filled with zeros") from error
    assert sum(path.stat().st_size for path in segments(again.directory)) == 3 * LED_SIZE_BYTES
    again.close()
