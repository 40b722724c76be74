"""What the host should run, on disk: one file for each unit, which a crash leaves either old or new.

Owns `<home>/agent/units/<name>.json`. `keeper` applies it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.agent.errors import AgentStateError, BadRequestError
from headrace.agent.folders import NEW, remove_durably, write_durably

if TYPE_CHECKING:
    # Slow to import, and `brokers_made_by`, which every command of the CLI may ask, needs none of it.
    from headrace.agent.configuration import Configuration

FORMAT: Final = 1


class DesiredUnit(NamedTuple):
    """A unit as it was last put. `is_applied` is False until the host runs this configuration.

    `made_by` names the program that put it, such as "terraform"; "" if that did not say.
    """

    configuration: Configuration
    is_applied: bool
    made_by: str = ""


class DesiredState:
    """The files of one home. `parse`: (unit, JSON data) → configuration; it raises `BadRequestError`."""

    def __init__(self, directory: Path, parse: Callable[[str, object], Configuration]) -> None:
        self.directory = directory
        self._parse = parse

    def load(self) -> dict[str, DesiredUnit]:
        """Reads all units. Raises `AgentStateError` for a file, or a folder, that cannot be read."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            for unfinished in self.directory.glob(f"*{NEW}"):
                unfinished.unlink()
        except OSError as error:
            raise _unreadable(self.directory, error) from error
        return {name: self.read(name) for name in unit_names(self.directory)}

    def read(self, name: str) -> DesiredUnit:
        """Reads one unit. Raises `AgentStateError`."""
        path = self.directory / f"{name}.json"
        try:
            data: dict[str, Any] = json.loads(path.read_bytes())
            if data["format"] != FORMAT:
                raise ValueError(f"it has format {data['format']}, and this agent knows {FORMAT}")
            # Files of earlier versions have neither `name` nor `made_by`.
            _check_name(name, data.get("name", name))
            made_by = str(data.get("made_by", ""))
            return DesiredUnit(self._parse(name, data["configuration"]), bool(data["is_applied"]), made_by)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, BadRequestError) as error:
            raise AgentStateError(
                f"the agent cannot read {path}: {error}. Fix the file, or delete it and put the unit again"
            ) from error

    def write(self, name: str, desired: DesiredUnit) -> None:
        """Writes one unit, durably: a crash, of the machine, too, leaves the old file or the new one."""
        data = {
            "format": FORMAT,
            "name": name,
            "is_applied": desired.is_applied,
            "made_by": desired.made_by,
            "configuration": desired.configuration.model_dump(mode="json"),
        }
        # Readable by its owner only: a database's URL may hold a password.
        write_durably(self.directory / f"{name}.json", json.dumps(data, indent=1))

    def remove(self, name: str) -> None:
        """Removes one unit, durably; it need not exist."""
        remove_durably(self.directory / f"{name}.json")


def _check_name(name: str, written_as: object) -> None:
    """Raises `ValueError` for a file that a hand has copied or renamed: it would be another unit, with the
    addresses, the data and the broker's id of the first."""
    from headrace.agent.configuration import NAME_PATTERN

    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError(f"{name!r} is a name that no unit can have: move the file out of its folder")
    if written_as != name:
        raise ValueError(f"it is the file of unit {written_as}: move it out of its folder, or rename it back")


def unit_names(directory: Path) -> list[str]:
    """The names of the units in a folder of desired units. Raises `AgentStateError`: a folder that cannot be
    read is not one without units, whose processes would be stopped."""
    try:
        files = [path.name for path in directory.iterdir()]  # `glob` finds nothing in such a folder
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(directory, error) from error
    return sorted(name.removesuffix(".json") for name in files if name.endswith(".json"))


def _unreadable(directory: Path, error: OSError) -> AgentStateError:
    return AgentStateError(
        f"the agent cannot read {directory}: {error.strerror}. Give that folder, and what is in it, to "
        "the user as whom the agent runs"
    )


def brokers_made_by(maker: str, directory: Path) -> dict[str, str]:
    """Name → address of the brokers that this program has put to the agent; skips what cannot be read."""
    found = {}
    for path in sorted(directory.glob("*.json")):
        try:
            data = json.loads(path.read_bytes())
            configuration = data["configuration"]
            if data["made_by"] == maker and configuration["kind"] == "broker":
                found[path.stem] = str(configuration["listen"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return found


def forget_all(directory: Path) -> None:
    """Forgets all units. Call it once all are stopped and no agent runs."""
    for path in directory.glob("*.json"):
        path.unlink()
