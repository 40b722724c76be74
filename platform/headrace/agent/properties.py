"""Files of Java's settings (java.util.Properties). Java reads them as Latin-1, whatever the locale is, so
letters beyond ASCII are escaped. Pure.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def properties_text(settings: Mapping[str, object]) -> str:
    """The file with these settings. No value may begin with a space, or hold a line's end."""
    return "".join(f"{key}={_escaped(str(value))}\n" for key, value in settings.items())


def _escaped(text: str) -> str:
    units = (each for letter in text.replace("\\", "\\\\") for each in _units(letter))
    return "".join(units)


def _units(letter: str) -> list[str]:
    if letter.isascii():
        return [letter]
    data = letter.encode("utf-16-be", "surrogatepass")
    return [f"\\u{data[at : at + 2].hex()}" for at in range(0, len(data), 2)]


def misread(path: Path) -> Path:
    """The path as Java took it from a file in UTF-8 without escapes."""
    return Path(os.fsencode(path).decode("latin-1").replace("\\", ""))
