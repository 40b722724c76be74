"""Which commands of a page are run, where, and whether what they print has the shape that the page shows.

Owns the markers in pages, HTML comments that a reader does not see:

    <!-- shown: run on demo -->         they run on the demo's site; `hcl`: the tour's two datacenters;
                                        `agent`: a host where nothing runs yet
    <!-- shown: not run: REASON -->     they do not
    <!-- shown: exits 1 -->             a command of the next block may end with this code
    <!-- shown: file main.tf -->        the next block is this file, in the folder of the commands around it
    <!-- shown: needs go -->            without this program, or its packages, the test ends here
    <!-- shown: before: COMMAND -->     what a reader does before the next block, such as an edit

The first two hold until the next of them, so one at a page's top is enough. Clauses are joined by ` | `.
Runs nothing itself: `shown_shell` does.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from shown_commands import PROMPT, SHELL_BLOCKS, Block, block_commands, blocks

PROGRAMS: Final = frozenset(
    {"headrace", "make", "terraform", "airflow", "curl", "docker", "python", "mvn", "go", "cp"}
)
SITES: Final = ("demo", "hcl", "agent")
NOT_RUN: Final = ""
GAP: Final = "…"
UNITS: Final = ("B", "kB", "KiB", "MB", "MiB", "GB", "GiB", "ms", "s", "min", "h", "d")
_MARKER: Final = re.compile(r"<!-- shown: (.*?) -->", re.DOTALL)
_RULE: Final = re.compile(r"\s*─[─\s]*")
_JSON_VALUE: Final = re.compile(r'("\w+":) ("[^"]*"|[^\s{\["]+?)([,}\]]*)(?=\s|$)')
_VALUE: Final = "\0"


class MarkerError(Exception):
    """A page's marker is wrong, or missing; the text names page and line."""


class Step(NamedTuple):
    """A command with the output that the page shows below it; or a file, if `file` is not empty.

    `needs`: a program without which, or without whose packages, neither this step nor those below it can run.
    """

    page: str
    line: int
    command: str
    output: tuple[str, ...]
    exit_codes: frozenset[int]
    file: str = ""
    needs: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {self.file or self.command}"


@dataclass
class _Mode:
    """What the markers above a block say. `site` is None before the first one, NOT_RUN where none runs."""

    site: str | None = None
    exit_codes: frozenset[int] = frozenset({0})
    file: str = ""
    before: str = ""
    needs: str = ""

    def take(self, clauses: str, where: str) -> None:
        for clause in (each.strip() for each in clauses.split(" | ")):
            verb, _, rest = clause.partition(" ")
            if clause.startswith("not run:") and clause != "not run:":
                self.site = NOT_RUN
            elif clause.startswith("run on ") and clause.removeprefix("run on ") in SITES:
                self.site = clause.removeprefix("run on ")
            elif verb == "exits" and rest.isdecimal():
                self.exit_codes |= {int(rest)}
            elif verb == "file" and rest:
                self.file = rest
            elif verb == "before:" and rest:
                self.before = rest
            elif verb == "needs" and rest:
                self.needs = rest
            else:
                raise MarkerError(f"{where}: {clause!r} is no marker; tests/shown_runs.py describes them")


def steps(page: str, text: str, site: str) -> Iterator[Step]:
    """The commands of a page that run on this site, in order. Raises `MarkerError`."""
    for block, mode in marked_blocks(page, text):
        if mode.site != site:
            continue
        if mode.before:
            yield Step(page, block.first, mode.before, (), frozenset({0}))
        if mode.file:
            yield Step(page, block.first, "", block.raw, mode.exit_codes, mode.file)
        elif has_commands(page, block):
            for step in _steps_of(page, block, mode.exit_codes):
                yield step._replace(needs=mode.needs)


def marked_blocks(page: str, text: str) -> Iterator[tuple[Block, _Mode]]:
    """All blocks with what their markers say. Raises `MarkerError` for commands without a marker."""
    markers = [(text.count("\n", 0, found.end()) + 1, found[1]) for found in _MARKER.finditer(text)]
    mode = _Mode()
    for block in blocks(text):
        while markers and markers[0][0] < block.first:
            line, clauses = markers.pop(0)
            mode.take(clauses, f"{page}:{line}")
        if mode.site is None and has_commands(page, block):
            raise MarkerError(
                f"{page}:{block.first}: the page shows commands and does not say where a test runs them. "
                "Write, above the block or at the top of the page, `<!-- shown: run on demo -->` or "
                "`<!-- shown: not run: REASON -->`"
            )
        yield block, mode
        mode = _Mode(mode.site)


def has_commands(page: str, block: Block) -> bool:
    if block.language not in SHELL_BLOCKS:
        return False
    if any(line.startswith(PROMPT) for line in block.lines):
        return True
    commands = [step.command for step in _steps_of(page, block, frozenset())]
    fence = "```\n" + "\n".join(commands) + "\n```\n"
    return any(shown.program in PROGRAMS for shown in block_commands(page, fence))


def _steps_of(page: str, block: Block, exit_codes: frozenset[int]) -> Iterator[Step]:
    has_prompts = any(line.startswith(PROMPT) for line in block.lines)
    number = 0
    while number < len(block.lines):
        first, line = number, block.lines[number]
        number += 1
        if has_prompts != line.startswith(PROMPT) or not line or line.startswith("#"):
            continue
        command = line.removeprefix(PROMPT)
        while number < len(block.lines) and (command.endswith("\\") or _is_in_quotes(command)):
            command = command.removesuffix("\\") + " " * _is_in_quotes(command) + block.lines[number]
            number += 1
        output = []
        while has_prompts and number < len(block.lines) and not block.lines[number].startswith(PROMPT):
            output.append(block.lines[number])
            number += 1
        yield Step(page, block.first + first, command, tuple(output), exit_codes)


def _is_in_quotes(command: str) -> bool:
    """Whether a quotation goes on in the next line."""
    try:
        shlex.split(command.removesuffix("\\"), comments=True)
    except ValueError:
        return True
    return False


# --- shapes ---


class _Table(NamedTuple):
    header: list[str]
    rows: list[list[str]]


def difference(shown: Sequence[str], real: str) -> str:
    """Returns how the shape of the real output differs from the shown one; empty if it does not.

    The words must be equal; what contains a digit (of `name=1` the value), and a value in JSON, may be
    anything. `…` stands for any text. A table must have the same columns, and for each shown row one with
    cells of the same kinds. If all of the output is a JSON document, see `_value_difference`.
    """
    if (document := _document("\n".join(shown))) is not None:
        found = _document(real)
        return "it is no JSON document" if found is None else _value_difference(document, found, "it")
    texts, tables = _segments(shown)
    _, real_tables = _segments(real.splitlines())
    for table in tables:
        found = [each for each in real_tables if each.header == table.header]
        if not found:
            return f"there is no table with the columns {table.header}"
        kinds = {_kinds(row) for each in found for row in each.rows}
        for row in table.rows:
            if _kinds(row) not in kinds:
                return f"no row of the table {table.header} looks like {row}"
    collapsed = " ".join(real.split())
    if not tables and len(texts) == 1 and GAP not in texts[0]:
        if re.fullmatch(_pattern(texts[0]), collapsed) is None:
            return f"not all of the output looks like {texts[0]!r}"
        return ""
    position = 0
    for text in texts:
        match = re.compile(_pattern(text)).search(collapsed, position)
        if match is None:
            return f"nothing (behind what was found before it) looks like {text!r}"
        position = match.end()
    return ""


def _document(text: str) -> dict[str, Any] | list[Any] | None:
    """The object or list that is all of the text; None if there is none."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        found: dict[str, Any] | list[Any] = json.loads(text)
    except ValueError:
        return None
    return found


def _value_difference(shown: Any, real: Any, where: str) -> str:
    """How a value differs from what the page shows at that place; empty if it does not.

    An object has the shown keys, and others only if the page shows a key `…`. A list has an element for each
    shown one. Numbers, and texts with a digit, may be any of their kind; other values are equal.
    """
    if isinstance(shown, dict) and isinstance(real, dict):
        keys = shown.keys() - {GAP}
        if missing := keys - real.keys():
            return f"{where} has no {', '.join(sorted(missing))}"
        if GAP not in shown and (more := real.keys() - keys):
            return f"{where} has {', '.join(sorted(more))}, which the page does not show"
        found = (_value_difference(shown[key], real[key], f"{where}.{key}") for key in sorted(keys))
        return next(filter(None, found), "")
    if isinstance(shown, list) and isinstance(real, list):
        if len(shown) > len(real):
            return f"{where} has {len(real)} elements, not {len(shown)}"
        found = (
            _value_difference(*pair, f"{where}[{at}]")
            for at, pair in enumerate(zip(shown, real, strict=False))
        )
        return next(filter(None, found), "")
    if _is_number(shown) and _is_number(real):
        return ""
    if isinstance(shown, str) and isinstance(real, str) and re.search(r"\d", shown):
        return ""
    return "" if shown == real else f"{where} is {real!r}, not {shown!r}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _segments(lines: Sequence[str]) -> tuple[list[str], list[_Table]]:
    """Splits output into texts, whose lines are joined, and tables."""
    texts: list[str] = []
    tables: list[_Table] = []
    begun: list[str] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        if number + 1 < len(lines) and line.strip() and _RULE.fullmatch(lines[number + 1]):
            texts, begun = [*texts, " ".join(begun)], []
            table = _Table(_cells(line), [])
            number += 2
            while number < len(lines) and lines[number].strip():
                if lines[number].strip() != GAP:
                    table.rows.append(_cells(lines[number]))
                number += 1
            tables.append(table)
            continue
        begun.append(line)
        number += 1
    texts.append(" ".join(begun))
    return [joined for text in texts if (joined := " ".join(text.split()))], tables


def _cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def _kinds(row: list[str]) -> tuple[str, ...]:
    """Numbers and times, or nothing known (`-`), against words."""
    return tuple("#" if cell == "-" or re.search(r"\d", cell) else "word" for cell in row)


def _pattern(text: str) -> str:
    marked = _JSON_VALUE.sub(rf"\1 {_VALUE}\3", text)
    pattern, before = "", ""
    for token in marked.split():
        if token == GAP:
            pattern += r"\s*.*?"
        else:
            pattern += (r"\s*" if before in ("", GAP) else r"\s+") + _token(token, before)
        before = token
    return pattern


def _token(token: str, before: str = "") -> str:
    if _VALUE in token:
        return r'(?:"[^"]*"|[^\s"]+?)' + re.escape(token.replace(_VALUE, ""))
    if GAP in token:
        return ".*?".join(_token(part) if part else "" for part in token.split(GAP))
    if named := re.fullmatch(r"([A-Za-z_.]+=)\S*\d\S*", token):
        return re.escape(named[1]) + r"\S+"
    if re.search(r"\d", token):
        return r"\S+"
    if token in UNITS:
        return f"(?:{'|'.join(UNITS)})"
    # 1 load, 2 loads
    if re.search(r"\d", before) and (noun := re.fullmatch(r"([a-z]+?)s?(\W*)", token)):
        return f"{noun[1]}s?{re.escape(noun[2])}"
    return re.escape(token)
