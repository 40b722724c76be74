"""The contexts of a home on disk, and which of them is in use.

Owns `<home>/contexts/`: a file for each imported context, readable by its owner only because an audit store's
URL may hold a password, and the name of the one that commands use.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Final

from headrace.site.context import NAME_PATTERN, SITE, Context, ContextError, context_of
from headrace.site.site import Site

FORMAT: Final = 1
FILE_MAX_BYTES: Final = 1 << 20
_IN_USE: Final = "in-use"


class ContextStore:
    """The contexts of one home. Methods raise `ContextError` for what the user can correct."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / "contexts"

    def names(self) -> list[str]:
        """All contexts; the site's own first."""
        return [SITE, *sorted(path.stem for path in self.folder.glob("*.json"))]

    def in_use(self) -> str | None:
        """The name of the context that was chosen; None if none was."""
        try:
            return (self.folder / _IN_USE).read_text().strip() or None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ContextError(f"{error.filename} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            raise ContextError(
                f"{self.folder / _IN_USE} holds no context's name: choose one by `headrace context use`"
            ) from None

    def use(self, name: str) -> None:
        """Chooses the context of all later commands."""
        self.check_known(name)
        self._write(self.folder / _IN_USE, name + "\n")

    def load(self, name: str) -> Context:
        if name == SITE:
            return context_of(Site.load(self.home))
        self.check_known(name)
        path = self._path(name)
        try:
            with path.open() as file:
                data = json.loads(file.read(FILE_MAX_BYTES))
            if data.pop("format") != FORMAT:
                raise ValueError("it has another format than this version knows")
            return Context.model_validate(data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            problem = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
            raise ContextError(f"{path} is not a context: {problem}. Import it again") from error

    def save(self, context: Context) -> None:
        """Stores a context; one of the same name is replaced."""
        self.check_name(context.name)
        data = {"format": FORMAT, **context.model_dump(mode="json")}
        self._write(self._path(context.name), json.dumps(data, indent=1) + "\n")

    def check_name(self, name: str) -> None:
        """Raises `ContextError` for a name that an imported context cannot have."""
        if name == SITE or not re.fullmatch(NAME_PATTERN, name):
            why = "is the context of this home's own site" if name == SITE else "is not a name for a context"
            raise ContextError(
                f"{name!r} {why}: give 1 to 40 lowercase letters, digits and hyphens, beginning with a letter"
            )

    def check_known(self, name: str) -> None:
        """Raises `ContextError` if there is no such context."""
        if name not in self.names():
            raise ContextError(
                f"there is no context {name!r} in {self.home}; there are {', '.join(self.names())}. "
                f"Make it by `terraform output -json | headrace context import {name}`"
            )

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _write(self, path: Path, text: str) -> None:
        new = path.with_name(path.name + ".new")
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError as error:
            raise ContextError(f"{path} cannot be written: {error.strerror}") from error
