"""The paths that a request may name: the agent's user writes there, and runs what it finds there.

Owns `PermittedPaths`. By default these are the agent's home, and the interpreter and the DAGs that this
host's headrace has; `--allow-path` adds folders. Commands of this host add what their site names to a file of
the home (`permit`): a user who can write there has the agent's rights already.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from headrace.agent.configuration import Configuration
from headrace.agent.errors import ConfigurationError, FieldProblem
from headrace.agent.folders import write_durably


class PermittedPaths(NamedTuple):
    """`folders`: everything below them. `paths`: these alone. `file`: names further paths, one a line."""

    folders: tuple[Path, ...]
    paths: tuple[Path, ...] = ()
    file: Path | None = None

    def check(self, name: str, configuration: Configuration) -> None:
        """Raises `ConfigurationError` that names each field with a path outside."""
        problems = [
            FieldProblem(field, str(path), f"outside of {self.folders[0]}; {_WAY_OUT}")
            for field, path in _paths_of(configuration)
            if not self._allows(path)
        ]
        if problems:
            raise ConfigurationError(name, problems)

    def _allows(self, path: Path) -> bool:
        # As written, for an interpreter that is a link; and as it is, so that no link or `..` leads out.
        added = _added(self.file) if self.file is not None else ()
        if Path(os.path.normpath(path)) in (*self.paths, *added):
            return True
        resolved = Path(os.path.realpath(path))
        folders = (*self.folders, *added)
        return any(resolved.is_relative_to(os.path.realpath(folder)) for folder in folders)


def permit(file: Path, configurations: Iterable[Configuration]) -> None:
    """Permits all paths that these configurations name."""
    known = dict.fromkeys(_added(file))
    wanted = known | dict.fromkeys(path for each in configurations for _, path in _paths_of(each))
    if wanted != known:
        write_durably(file, "".join(f"{path}\n" for path in wanted))


def _added(file: Path) -> tuple[Path, ...]:
    try:
        # A line that a disk has damaged permits nothing, and keeps none of the others from counting.
        text = file.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return ()
    return tuple(Path(line) for line in text.splitlines() if line.startswith("/") and _is_text(line))


def _is_text(line: str) -> bool:
    return not any("\ud800" <= each <= "\udfff" for each in line)


_WAY_OUT = "start the agent with --allow-path FOLDER to permit another folder"


def _paths_of(configuration: Configuration) -> Iterator[tuple[str, Path]]:
    for field, value in configuration:
        if isinstance(value, Path):
            yield field, value
        elif field == "settings" and isinstance(value, Mapping):
            for name, text in value.items():
                yield from ((f"settings.{name}", path) for path in _paths_in(text))


def _paths_in(text: str) -> Iterator[Path]:
    """Absolute paths in a setting: alone, in a list, or as `file:` URLs."""
    for word in text.split(","):
        word = word.strip().removeprefix("file:")
        if word.startswith("/"):
            yield Path("/" + word.lstrip("/"))
