"""Man pages of all commands: one for `headrace`, one for each command, such as headrace-topics-create(1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from reference.commands import Command, Entry

SECTION: Final = "1"


def man_pages(root: Command, exit_codes: Mapping[str, str]) -> dict[str, str]:
    """Returns the pages by their files' names. `exit_codes`: meanings by number."""
    return {
        f"{file_stem(command)}.{SECTION}": "\n".join(_lines(command, root, exit_codes)) + "\n"
        for command in root.every()
    }


def file_stem(command: Command) -> str:
    return "-".join(command.words)


def roff(text: str) -> str:
    """Text that troff prints as it is: backslashes, hyphens, and a leading dot or apostrophe are escaped."""
    lines = text.replace("\\", r"\e").replace("-", r"\-").replace("`", "").splitlines()
    return "\n".join(rf"\&{line}" if line.startswith((".", "'")) else line for line in lines)


def _lines(command: Command, root: Command, exit_codes: Mapping[str, str]) -> Iterator[str]:
    yield f'.TH "{roff(file_stem(command).upper())}" "{SECTION}" "" "headrace" "headrace"'
    yield ".SH NAME"
    yield f"{roff(file_stem(command))} \\- {roff(command.summary.removesuffix('.'))}"
    yield ".SH SYNOPSIS"
    yield f".B {roff(command.usage)}"
    yield ".SH DESCRIPTION"
    yield "\n.PP\n".join(roff(part) for part in command.help.split("\n\n"))
    yield from _entries("ARGUMENTS", command.arguments)
    yield from _entries("OPTIONS", command.options)
    yield from _entries("COMMANDS", tuple(Entry(each.name, each.summary) for each in command.commands))
    yield from _entries("EXIT STATUS", tuple(Entry(*each) for each in exit_codes.items()))
    others = [each for each in root.every() if each.words[:-1] == command.words[:-1] and each is not command]
    above = [each for each in root.every() if each.words == command.words[:-1]]
    seen = [file_stem(each) for each in (*above, *command.commands, *others)]
    if seen:
        yield ".SH SEE ALSO"
        yield ",\n".join(f".BR {roff(name)} ({SECTION})" for name in seen).replace("),\n", ") ,\n")


def _entries(title: str, entries: tuple[Entry, ...]) -> Iterator[str]:
    if entries:
        yield f".SH {title}"
    for entry in entries:
        yield ".TP"
        yield f".B {roff(entry.name)}"
        yield roff(entry.help)
