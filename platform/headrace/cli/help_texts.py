"""What `--help` shows of every command: paragraphs that fit the terminal, and what an option takes.

Owns the words for values (TIME, DURATION, …), one for each kind. Changes nothing but texts.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, Final

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.models import CommandInfo

# By option: an option of one name takes the same kind of value in every command.
VALUES: Final = {
    **dict.fromkeys(("--from", "--to", "--until"), "TIME"),
    **dict.fromkeys(("--wait", "--timeout", "--seconds", "--grace-hours", "--keep-hours"), "DURATION"),
    **dict.fromkeys(("--datacenter", "--source", "--name", "--compression"), "NAME"),
    **dict.fromkeys(("--access-log", "--tls-certificate", "--tls-key", "--contract-test"), "FILE"),
    "--acks": "0|1|all",
    "--compatibility": "LEVEL",
    "--hour": "HOUR",
    "--key": "KEY",
    "--key-separator": "TEXT",
    "--partition": "PARTITION",
    "--reason": "TEXT",
    "--resume-at": "ADDRESS",
    "--state-dir": "FOLDER",
    "--to-offset": "OFFSET",
    "--topic": "TOPIC",
    "--version": "VERSION",
    "--without": "PART",
}
NUMBERS: Final = frozenset(
    {"--broker", "--lines", "--limit", "--drop", "--count", "--keep", "--partitions", "--replication-factor"}
)
NUMBER: Final = "N"
FLAG: Final = ""
"""What a flag takes, and an argument's type: without this the terminal would show `<bool>` or `<str>`."""


class NamedArgument(TyperArgument):
    """An argument as docs/cli.md writes it: `TOPIC`, `[FILE]`, `TOPIC...`, without Python's `<str>`."""

    def display_type(self, ctx: Any) -> str:
        return str(super().display_type(ctx)) if self.type_descriptor.is_choice else FLAG

    def _usage_display_name(self) -> str:
        name = str(self.display_name_raw)
        return (name if self.required else f"[{name}]") + ("" if self.nargs == 1 else "...")


class HelpfulCommand(TyperCommand):
    """A command whose `--help` names what each option and argument takes, in place of Python's type."""

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        _name_values(self.params)

    def get_help_option(self, ctx: Any) -> TyperOption | None:
        return _without_value(super().get_help_option(ctx))


class HelpfulGroup(TyperGroup):
    """A group of commands whose own options are shown as those of commands are."""

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        _name_values(self.params)

    def get_help_option(self, ctx: Any) -> TyperOption | None:
        return _without_value(super().get_help_option(ctx))


def complete(app: typer.Typer) -> None:
    """Gives every command of the application, and of its groups, its help as `--help` should show it."""
    for group in (app, *(each.typer_instance for each in app.registered_groups)):
        assert group is not None
        group.info.cls = HelpfulGroup
    for command in commands(app):
        assert command.callback is not None
        command.cls = HelpfulCommand
        command.help = unwrapped(command.help or inspect.getdoc(command.callback) or "")


def commands(app: typer.Typer) -> Iterator[CommandInfo]:
    """All commands of the application and of its groups."""
    yield from app.registered_commands
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance)


def unwrapped(text: str) -> str:
    """Returns a docstring with each paragraph as one line, which the terminal breaks where it ends."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _name_values(params: Sequence[Any]) -> None:
    for param in params:
        if isinstance(param, TyperOption) and param.metavar is None:
            param.metavar = FLAG if param.is_flag else _value(param.opts)
        if isinstance(param, TyperArgument):
            param.__class__ = NamedArgument
            many = param.nargs != 1
            param.metavar = param.metavar or str(param.name).removesuffix("s" if many else "").upper()


def _without_value(option: TyperOption | None) -> TyperOption | None:
    if option is not None:
        option.metavar = FLAG
    return option


def _value(names: list[str]) -> str | None:
    known = [VALUES[name] for name in names if name in VALUES]
    return known[0] if known else NUMBER if NUMBERS.intersection(names) else None
