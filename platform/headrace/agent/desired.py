"""What the host should run, on disk: one file a unit, written so that a crash leaves the old one or the new.

Owns `<home>/agent/units/<name>.json`. What it means to have a unit is `keeper`'s.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.agent.configuration import Configuration
from headrace.agent.errors import AgentStateError, BadRequestError
from headrace.agent.folders import NEW, remove_durably, write_durably

FORMAT: Final = 1


class Entry(NamedTuple):
    """A unit as it was put. `is_applied` False: the host had not been brought to it when this was written."""

    configuration: Configuration
    is_applied: bool


class DesiredState:
    """The files of one home. `parse`: (unit, JSON data) → configuration, raising `BadRequestError`."""

    def __init__(self, directory: Path, parse: Callable[[str, object], Configuration]) -> None:
        self.directory = directory
        self._parse = parse

    def load(self) -> dict[str, Entry]:
        """Everything that was put. Raises `AgentStateError` for a file that cannot be read."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for unfinished in self.directory.glob(f"*{NEW}"):
            unfinished.unlink()
        return {name: self.read(name) for name in unit_names(self.directory)}

    def read(self, name: str) -> Entry:
        """One unit. Raises `AgentStateError`."""
        path = self.directory / f"{name}.json"
        try:
            said: dict[str, Any] = json.loads(path.read_bytes())
            if said["format"] != FORMAT:
                raise ValueError(f"it has format {said['format']}, and this agent knows {FORMAT}")
            return Entry(self._parse(name, said["configuration"]), bool(said["is_applied"]))
        except (OSError, ValueError, KeyError, TypeError, BadRequestError) as error:
            raise AgentStateError(
                f"the agent cannot read {path}: {error}. Mend the file, or delete it and put the unit again"
            ) from error

    def write(self, name: str, entry: Entry, *, is_durable: bool = True) -> None:
        """Durable once it returns, if that is asked for; whole at any time."""
        said = {
            "format": FORMAT,
            "is_applied": entry.is_applied,
            "configuration": entry.configuration.model_dump(mode="json"),
        }
        # A database's URL may hold a password.
        write_durably(self.directory / f"{name}.json", json.dumps(said, indent=1), is_durable=is_durable)

    def remove(self, name: str) -> None:
        """Durable once it returns."""
        remove_durably(self.directory / f"{name}.json")


def unit_names(directory: Path) -> list[str]:
    """The units that were put to the agent whose files lie here."""
    return sorted(path.stem for path in directory.glob("*.json"))


def forget_all(directory: Path) -> None:
    """Every unit is let go of, without any agent: for who has stopped them all."""
    for path in directory.glob("*.json"):
        path.unlink()
