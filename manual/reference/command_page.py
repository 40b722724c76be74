"""The page of all commands, as Markdown for mkdocs: an option is a term of a definition list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from reference.commands import Command, Entry
from reference.markdown import GENERATED, escaped

INTRODUCTION: Final = (
    "Options stand behind the command to which they belong; `-h` and `--help` show those of a command. "
    "[The command line](../cli.md) says which site a command works on."
)


def page(root: Command, exit_codes: str) -> str:
    """Returns the page: each group is a section, each command a part of it."""
    parts = [
        "# Commands",
        GENERATED,
        escaped(root.help),
        INTRODUCTION,
        "## Exit codes",
        exit_codes,
    ]
    plain = [command for command in root.commands if not command.commands]
    parts += ["## headrace", *_entries("Options", root.options)]
    for command in plain:
        parts += _section(command, 3)
    for group in root.commands:
        if group.commands:
            parts += _section(group, 2)
            for command in group.commands:
                parts += [part for each in command.every() for part in _section(each, 3)]
    return "\n\n".join(parts) + "\n"


def _section(command: Command, level: int) -> Iterator[str]:
    yield f"{'#' * level} {command.name}"
    yield escaped(command.help)
    if not command.commands:
        yield f"```\n{command.usage}\n```"
    yield from _entries("Arguments", command.arguments)
    yield from _entries("Options", command.options)


def _entries(title: str, entries: tuple[Entry, ...]) -> Iterator[str]:
    told = [entry for entry in entries if "--help" not in entry.name]
    if told:
        yield f"**{title}**"
        yield "\n\n".join(f"`{entry.name}`\n:   {escaped(entry.help)}" for entry in told)
