"""Finds the commands that a Markdown page shows: in code blocks, in inline code, and in tables of commands.

Knows shells and Markdown as far as our own pages use them; knows nothing of what the commands mean.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

CONTROL: Final = frozenset({"|", "||", "&&", "&", ";", ">", ">>", "<"})
ELLIPSIS: Final = "…"
ASSIGNMENT: Final = re.compile(r"[A-Z_]+=\S*")
SHELL_BLOCKS: Final = frozenset({"", "sh", "bash", "console"})
PROMPT: Final = "$ "


@dataclass(frozen=True)
class Shown:
    """One command as a page shows it: its words, without prompt, variables, comment and redirection."""

    page: str
    line: int
    words: tuple[str, ...]
    is_whole: bool
    """Whether it can be run as it stands: no placeholder, no words left out."""

    @property
    def program(self) -> str:
        return self.words[0].rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {' '.join(self.words)}"


@dataclass(frozen=True)
class Block:
    """A code block: its language, and its lines with the number of the first one."""

    language: str
    first: int
    lines: tuple[str, ...]
    raw: tuple[str, ...] = ()
    """The lines with their indentation, those of a fence as they stand."""


def blocks(text: str) -> Iterator[Block]:
    """All fenced blocks, and the blocks that are indented by four spaces after an empty line."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        fence = re.match(r"\s*```(\w*)", lines[number])
        if fence:
            body = list(takewhile(lambda line: not line.strip().startswith("```"), lines[number + 1 :]))
            yield Block(fence[1], number + 2, tuple(line.strip() for line in body), tuple(body))
            number += len(body) + 2
        elif lines[number].startswith("    ") and number and not lines[number - 1].strip():
            body = list(takewhile(lambda line: line.startswith("    "), lines[number:]))
            yield Block("", number + 1, tuple(line.strip() for line in body))
            number += len(body)
        else:
            number += 1


def block_commands(page: str, text: str) -> Iterator[Shown]:
    """The commands of all blocks in a shell's language. With prompts in a block, only lines that have one."""
    for block in blocks(text):
        if block.language not in SHELL_BLOCKS:
            continue
        has_prompts = any(line.startswith(PROMPT) for line in block.lines)
        for number, line in _joined(block):
            if not has_prompts or line.startswith(PROMPT):
                yield from _of_line(page, number, line.removeprefix(PROMPT))


def _joined(block: Block) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; those that end with a backslash together with the next."""
    begun, begun_at = "", 0
    for number, line in enumerate(block.lines, block.first):
        begun_at = begun_at if begun else number
        if line.endswith("\\"):
            begun += line[:-1] + " "
            continue
        yield begun_at, begun + line
        begun = ""
    if begun:
        yield begun_at, begun


def _of_line(page: str, number: int, line: str) -> Iterator[Shown]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        tokens = list(lexer)
    except ValueError:
        return  # an apostrophe of some output: not a line of a shell
    words: list[str] = []
    for token in [*tokens, ";"]:
        if token not in CONTROL:
            words.append(token)
            continue
        while words and ASSIGNMENT.fullmatch(words[0]):
            del words[0]
        if words:
            yield _shown(page, number, words)
        words = []


def _shown(page: str, number: int, words: list[str]) -> Shown:
    kept = tuple(word for word in words if ELLIPSIS not in word)
    return Shown(page, number, kept or (ELLIPSIS,), is_whole=len(kept) == len(words))


def without_blocks(text: str) -> str:
    """The text with its blocks' lines emptied, so that lines keep their numbers."""
    lines = text.splitlines()
    for block in blocks(text):
        for number in range(block.first - 1, block.first - 1 + len(block.lines)):
            lines[number] = ""
    return "\n".join("" if line.strip().startswith("```") else line for line in lines)


def inline_commands(page: str, text: str, programs: tuple[str, ...]) -> Iterator[Shown]:
    """The commands in inline code that begin with the name of a program. They may hold placeholders."""
    prose = without_blocks(text)
    for found in re.finditer(r"`([^`]+)`", prose):
        words = found[1].split()
        if words and words[0].rpartition("/")[2] in programs:
            yield Shown(page, prose.count("\n", 0, found.start()) + 1, tuple(words), is_whole=False)


def table_options(page: str, text: str, program: str) -> Iterator[tuple[Shown, str]]:
    """Options that the other cells of a table's row name, with the command of the first cell."""
    for number, line in enumerate(without_blocks(text).splitlines(), 1):
        first, _, others = line.removeprefix("| ").partition(" | ")
        words = first.strip("`").split()
        if not line.startswith(f"| `{program} "):
            continue
        for option in re.findall(r"`(-{1,2}[A-Za-z][\w-]*)", others):
            yield Shown(page, number, tuple(words), is_whole=False), option
