"""The commands of `headrace`, read from its own parser; nothing of them is written a second time.

Owns the reading. `command_page` and `man` write what was read as Markdown and as man pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import typer
import typer.main
from rich.text import Text

PROGRAM: Final = "headrace"
USAGE_PREFIX: Final = re.compile(r"^Usage:\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Entry:
    """An argument or an option: how it is written, and what it means."""

    name: str
    help: str


@dataclass(frozen=True)
class Command:
    """One command, or a group of commands. `words` are what a user types, `headrace` first."""

    words: tuple[str, ...]
    usage: str
    help: str
    arguments: tuple[Entry, ...]
    options: tuple[Entry, ...]
    commands: tuple[Command, ...]

    @property
    def name(self) -> str:
        return " ".join(self.words)

    @property
    def summary(self) -> str:
        """The first sentence of its help."""
        return re.split(r"(?<=\.)\s", self.help, maxsplit=1)[0]

    def every(self) -> Iterator[Command]:
        """Itself, and all commands below it."""
        yield self
        for command in self.commands:
            yield from command.every()


def read(app: typer.Typer) -> Command:
    """Returns the command line with all its commands; hidden ones are left out."""
    return _read(typer.main.get_command(app), (PROGRAM,), None)


def _read(command: Any, words: tuple[str, ...], parent: typer.Context | None) -> Command:
    context = typer.Context(command, info_name=words[-1], parent=parent, **command.context_settings)
    entries: dict[str, list[Entry]] = {"argument": [], "option": []}
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is not None:  # None: a hidden one
            entries[param.param_type_name].append(Entry(record[0], _plain(record[1])))
    below = getattr(command, "commands", {}).items()
    return Command(
        words,
        USAGE_PREFIX.sub("", " ".join(command.get_usage(context).split())),
        _plain(command.help or ""),
        tuple(entries["argument"]),
        tuple(entries["option"]),
        tuple(_read(child, (*words, name), context) for name, child in below if not child.hidden),
    )


def _plain(text: str) -> str:
    """The text of a help without Rich's markup; paragraphs keep their empty lines."""
    # A bracket that is no markup, as in [default: 1], stays.
    kept = re.sub(r"\[(/?(?:bold|dim|red|green|yellow)|/)\]", "", text)
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", Text(kept).plain)]
    return "\n\n".join(part for part in paragraphs if part)
