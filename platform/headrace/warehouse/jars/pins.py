"""The SHA-256 of each jar of a set: what Maven brings must be what was once tried.

Owns `<set>.sha256` beside a set's pom, in the format of sha256sum. A repository that serves other bytes under
the same name, or a dependency that resolves to another version, stops the set-up before any of it runs.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

PINS_SUFFIX: Final = ".sha256"
PROBLEMS_SHOWN_MAX: Final = 3
_LINE: Final = re.compile(r"([0-9a-f]{64})  (\S+\.jar)")


class PinsError(Exception):
    """A folder's jars are not those that are pinned. The message names the jars."""


def pins_path(pom: Path) -> Path:
    """Returns the file of the pins of the set with this pom."""
    return pom.with_suffix(PINS_SUFFIX)


def read_pins(path: Path) -> dict[str, str]:
    """Reads pins, by the jar's file name. Raises `PinsError`."""
    pins = {}
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise PinsError(f"the jars' checksums in {path} cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        found = _LINE.fullmatch(line)
        if found is None:
            raise PinsError(f"{path}, line {number}: {line!r} is not a SHA-256, two spaces and a jar's name")
        pins[found[2]] = found[1]
    return pins


def check_pins(folder: Path, pins: Path) -> None:
    """Raises `PinsError` unless the folder holds exactly the pinned jars."""
    wanted, found = read_pins(pins), _sums(folder)
    problems = [
        f"{name} has SHA-256 {found[name]}" for name in sorted(found) if found[name] != wanted.get(name)
    ]
    problems += [f"{name} is missing" for name in sorted(set(wanted) - set(found))]
    if problems:
        more = (
            "" if len(problems) <= PROBLEMS_SHOWN_MAX else f" and {len(problems) - PROBLEMS_SHOWN_MAX} more"
        )
        raise PinsError(
            f"not the jars that {pins} pins: {'; '.join(problems[:PROBLEMS_SHOWN_MAX])}{more}. "
            "Somebody may have changed them on the way: do not use them. After a deliberate change of the "
            f"pom, `python -m headrace.warehouse.jars --pin {pins.with_suffix('.xml')}` pins what it brings"
        )


def write_pins(folder: Path, pins: Path) -> None:
    """Pins the jars that the folder holds."""
    pins.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(_sums(folder).items())))


def _sums(folder: Path) -> dict[str, str]:
    sums = {}
    for path in folder.glob("*.jar"):
        with path.open("rb") as file:
            sums[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums
