"""The paths that a request may name: the agent's user writes there, and runs what it finds there.

Owns `PermittedPaths`. By default these are the agent's home, and the interpreter and the DAGs that this
host's headrace has; `--allow-path` adds folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from headrace.agent.configuration import Configuration
from headrace.agent.errors import ConfigurationError, FieldProblem


class PermittedPaths(NamedTuple):
    """`folders`: everything below them. `paths`: these alone."""

    folders: tuple[Path, ...]
    paths: tuple[Path, ...] = ()

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
        if Path(os.path.normpath(path)) in self.paths:
            return True
        resolved = Path(os.path.realpath(path))
        return any(resolved.is_relative_to(os.path.realpath(folder)) for folder in self.folders)


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
