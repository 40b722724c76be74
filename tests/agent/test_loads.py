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


def test_a_file_that_is_no_load_and_a_load_that_goes_meanwhile_keep_no_other_from_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = LoadStore(tmp_path)
    for topic in ("clicks", "page-view"):
        loads.put(topic, LOAD)
    (tmp_path / "page-view (copy).json").write_bytes((tmp_path / "page-view.json").read_bytes())
    assert loads.topics() == ["clicks", "page-view"]
    monkeypatch.setattr(loads, "topics", lambda: ["clicks", "gone", "page-view"])
    assert list(loads.all()) == ["clicks", "page-view"]
