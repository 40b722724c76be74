"""Files of an agent's state that a disk or a hand has damaged, and copies that a hand has left beside them:
the agent names them, and none of them becomes a unit.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from headrace.agent.desired import DesiredState, DesiredUnit
from headrace.agent.errors import AgentStateError, ConfigurationError
from headrace.agent.kinds import parse_configuration
from headrace.agent.permitted import PermittedPaths, permit

BROKER = {"kind": "broker", "datacenter": "east", "broker_id": 1, "zookeeper": "127.0.0.1:2181"}
DAMAGED = b"/srv/data\n/srv/\xff\x80\n"


def test_a_copy_of_a_units_file_is_no_second_unit_with_its_id_and_its_addresses(tmp_path: Path) -> None:
    state = DesiredState(tmp_path, parse_configuration)
    state.write("one", DesiredUnit(parse_configuration("one", BROKER), is_applied=True))
    assert set(state.load()) == {"one"}
    shutil.copy(tmp_path / "one.json", tmp_path / "one-before.json")
    with pytest.raises(AgentStateError, match=r"one-before\.json: it is the file of unit one"):
        state.load()


def test_a_file_at_a_name_that_no_unit_can_have_is_named(tmp_path: Path) -> None:
    """Such a unit could not be deleted by any request."""
    state = DesiredState(tmp_path, parse_configuration)
    state.write("one (copy)", DesiredUnit(parse_configuration("one", BROKER), is_applied=True))
    with pytest.raises(AgentStateError, match=r"one \(copy\)\.json: .* no unit can have"):
        state.load()


def test_json_that_is_too_deep_is_named(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_bytes(b"[" * 100_000)
    with pytest.raises(AgentStateError, match=r"cannot read .*one\.json"):
        DesiredState(tmp_path, parse_configuration).load()


def test_permitted_paths_that_are_damaged_permit_the_others(tmp_path: Path) -> None:
    file = tmp_path / "permitted-paths"
    file.write_bytes(DAMAGED)
    permitted = PermittedPaths((tmp_path / "home",), file=file)
    permitted.check("one", parse_configuration("one", {**BROKER, "data_dir": "/srv/data"}))
    other = parse_configuration("one", {**BROKER, "data_dir": "/srv/other"})
    with pytest.raises(ConfigurationError):
        permitted.check("one", other)
    permit(file, [other])
    assert file.read_text() == "/srv/data\n/srv/other\n"


def test_units_that_cannot_be_listed_are_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restore by root: the agent stopped everything that ran, as units it did not have."""
    state = DesiredState(tmp_path / "units", parse_configuration)
    assert state.load() == {}
    state.write("one", DesiredUnit(parse_configuration("one", BROKER), is_applied=True))

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(AgentStateError, match=r"cannot read .*units: Permission denied"):
        state.load()
