"""The loads on a host's disk, also of one that a disk or a hand has damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.agent.errors import AgentStateError
from headrace.agent.loads import LoadStore, LoadUnknownError
from headrace.agent.report import ChangeOutcome

LOAD = {"owner": "web"}


@pytest.mark.parametrize("damaged", [b"", b'{"owner": "we', b"[]", b"\x00" * 40, b"[" * 100_000])
def test_a_damaged_load_is_named_and_can_be_put_again_or_deleted(tmp_path: Path, damaged: bytes) -> None:
    loads, file = LoadStore(tmp_path), tmp_path / "page-view.json"
    assert loads.put("page-view", LOAD) is ChangeOutcome.CREATED
    written = loads.load("page-view")
    file.write_bytes(damaged)
    with pytest.raises(AgentStateError, match=r"page-view\.json holds no load \(.*\): PUT the load again"):
        loads.load("page-view")
    assert loads.put("page-view", LOAD) is ChangeOutcome.CHANGED
    assert loads.load("page-view") == written
    assert loads.put("page-view", LOAD) is ChangeOutcome.UNCHANGED
    file.write_bytes(damaged)
    loads.delete("page-view")
    assert loads.topics() == []
    with pytest.raises(LoadUnknownError):
        loads.delete("page-view")
    with pytest.raises(LoadUnknownError, match="is not a topic name"):
        loads.delete("../agent/token")
