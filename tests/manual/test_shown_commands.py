"""Every command that README and docs/ show exists, with its options: their own parsers read them.

Nothing is run. `headrace …`, `make …`, `python -m headrace.…`, and units of the container image are read.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from headrace.agent import foreground
from headrace.agent.kinds import KINDS
from headrace.cli.main import app
from shown_commands import (
    Shown,
    block_commands,
    blocks,
    inline_commands,
    table_options,
    without_blocks,
)

ROOT = Path(__file__).parents[2]
COMMANDS_MIN = 40
"""Fewer than these in all pages together would mean that this test finds them no longer."""
ENDING_VARIABLES = frozenset({"PYTHON", "HEADRACE_HOME"})
MAKE_TAKES_A_VALUE = frozenset({"-C", "-f", "-j"})
MAKEFILE = (ROOT / "Makefile").read_text()


def pages() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in sorted(set(listed.splitlines())) if (ROOT / line).is_file()]


PAGES = pages()


def in_blocks() -> Iterator[Shown]:
    for page in PAGES:
        yield from block_commands(str(page.relative_to(ROOT)), page.read_text())


# --- headrace ---


@functools.cache
def parser() -> Any:
    """The parser of all commands. Making it takes longer than parsing hundreds of command lines."""
    return typer.main.get_command(app)


def parse_whole(arguments: list[str]) -> None:
    """Parses a command line with the real parser, down to the command. Raises what the parser raises."""
    command: Any = parser()
    context: Any = None
    name = "headrace"
    while True:
        context = command.make_context(name, list(arguments), parent=context)
        if not hasattr(command, "commands"):
            return
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        name, command, arguments = command.resolve_command(context, rest)


def options_of(command: Any) -> set[str]:
    named = {text for param in command.params for text in (*param.opts, *param.secondary_opts)}
    return {text for text in named if text.startswith("-")} | {"-h", "--help"}


def check_named(words: list[str]) -> str:
    """Returns what is wrong with a command that may hold placeholders: its names and options exist."""
    command: Any = parser()
    known = options_of(command)
    for word in words:
        if word.startswith("-") and word != "-":
            if word.partition("=")[0] not in known:
                return f"{command.name} has no option {word}"
        elif hasattr(command, "commands") and re.fullmatch(r"[a-z-]+", word):
            if word not in command.commands:
                return f"{command.name} has no command {word}"
            command = command.commands[word]
            known |= options_of(command)
    return ""


def container_arguments(words: tuple[str, ...]) -> list[str] | None:
    """The arguments that `docker run … headrace …` gives to the image's program."""
    if words[:2] != ("docker", "run") or "headrace" not in words:
        return None
    return list(words[words.index("headrace") + 1 :])


def unit_problem(arguments: list[str]) -> str:
    try:
        foreground.parse(arguments)
    except SystemExit:
        return "not a command line of this unit"
    return ""


def problem_of(arguments: list[str], *, is_whole: bool) -> str:
    if not is_whole:
        return check_named(arguments)
    try:
        parse_whole(arguments)
    except typer.Exit:
        return ""  # --help, --version
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_commands_in_blocks_are_parsed() -> None:
    wrong, count = [], 0
    for shown in in_blocks():
        in_container = container_arguments(shown.words)
        if shown.program != "headrace" and in_container is None:
            continue
        count += 1
        if in_container and in_container[0] in KINDS:
            problem = unit_problem(in_container)
        else:
            problem = problem_of(in_container or list(shown.words[1:]), is_whole=shown.is_whole)
        wrong += [f"{shown}: {problem}"] if problem else []
    assert not wrong
    assert count >= 15, "this test finds the pages' commands no longer"


def test_commands_in_the_text_exist() -> None:
    shown = [
        shown
        for page in PAGES
        for shown in inline_commands(str(page.relative_to(ROOT)), page.read_text(), ("headrace",))
    ]
    wrong = [
        f"{command}: {problem}" for command in shown if (problem := check_named(list(command.words[1:])))
    ]
    assert not wrong
    assert len(shown) >= COMMANDS_MIN


def test_options_in_tables_of_commands_exist() -> None:
    found = [
        (row, option)
        for page in PAGES
        for row, option in table_options(str(page.relative_to(ROOT)), page.read_text(), "headrace")
    ]
    wrong = [
        f"{row}: {problem}" for row, option in found if (problem := check_named([*row.words[1:], option]))
    ]
    assert not wrong
    assert len(found) >= COMMANDS_MIN


# --- make ---


def make_targets() -> set[str]:
    """The targets of the Makefile that a user names."""
    phony = MAKEFILE.replace("\\\n", " ").partition(".PHONY:")[2].partition("\n")[0]
    rules = re.findall(r"^([a-z][a-z -]*):(?!=)", MAKEFILE, re.MULTILINE)
    return set(phony.split()) & {name for rule in rules for name in rule.split()}


def make_variables() -> set[str]:
    used = re.findall(r"\$[({]([A-Z_]+)[)}]", MAKEFILE)
    return {*used, *re.findall(r"^([A-Z_]+) *[?:]=", MAKEFILE, re.MULTILINE), *ENDING_VARIABLES}


def make_problem(words: list[str]) -> str:
    targets, variables = make_targets(), make_variables()
    takes_a_value = False
    for word in words:
        if takes_a_value or word == "…":
            takes_a_value = False
        elif word.startswith("-"):
            takes_a_value = word in MAKE_TAKES_A_VALUE
        elif "=" in word:
            name = word.partition("=")[0]
            if name not in variables:
                return f"the Makefile has no variable {name}"
        elif word not in targets:
            return f"the Makefile has no target {word}"
    return "" if words else "without a target make prints its help, and installs nothing"


def test_make_targets_exist() -> None:
    shown = [shown for shown in in_blocks() if shown.program == "make"]
    for page in PAGES:
        shown += inline_commands(str(page.relative_to(ROOT)), page.read_text(), ("make",))
    wrong = [
        f"{command}: {problem}" for command in shown if (problem := make_problem(list(command.words[1:])))
    ]
    assert not wrong
    assert len(shown) >= COMMANDS_MIN


def test_the_makefile_explains_its_targets() -> None:
    """`make help` prints the Makefile's head."""
    head = MAKEFILE.partition("\nSHELL")[0]
    explained = set(re.findall(r"[a-z][a-z-]+", head))
    parts = {"help", "setup", "airflow", "java", "jars", "debian", "haproxy", "postgresql"}
    parts |= {"bench-smoke", "bench-page", "rewritten"}
    assert not make_targets() - explained - parts


# --- modules ---


def test_modules_that_pages_run_exist() -> None:
    named = {
        (str(page.relative_to(ROOT)), module)
        for page in PAGES
        for module in re.findall(r"python3? -m (headrace[\w.]*\w)", page.read_text())
    }
    wrong = [
        f"{page}: {module}" for page, module in sorted(named) if importlib.util.find_spec(module) is None
    ]
    assert not wrong
    assert len(named) >= 5


# --- that this test sees what it should ---

PAGE = """
Text with `headrace status` and `make
nothing`, not `other`.

| command | does |
|---|---|
| `headrace topics list` | `--all` and `--wrong` |

```
$ A=b .venv/bin/headrace up && make down   # a comment
output of headrace up
$ make demo \\
    DROP=7 …
```

    headrace logs east-broker-1 | cat

```python
make = 1
```
"""


def test_commands_of_a_page_are_found() -> None:
    found = [(shown.line, shown.words, shown.is_whole) for shown in block_commands("page", PAGE)]
    assert found == [
        (10, (".venv/bin/headrace", "up"), True),
        (10, ("make", "down"), True),
        (12, ("make", "demo", "DROP=7"), False),
        (16, ("headrace", "logs", "east-broker-1"), True),
        (16, ("cat",), True),
    ]
    assert [shown.words for shown in inline_commands("page", PAGE, ("headrace", "make"))] == [
        ("headrace", "status"),
        ("make", "nothing"),
        ("headrace", "topics", "list"),
    ]
    assert [option for _, option in table_options("page", PAGE, "headrace")] == ["--all", "--wrong"]
    assert [block.language for block in blocks(PAGE)] == ["", "", "python"]
    assert "output of" not in without_blocks(PAGE)


@pytest.mark.parametrize(
    "words",
    [
        "topics",
        "topics list --wrong",
        "topics wrong",
        "topics create",
        "consume t --limit x",
        "wrong",
        "consume",
    ],
)
def test_wrong_commands_are_found(words: str) -> None:
    assert problem_of(words.split(), is_whole=True)


def test_wrong_units_are_found() -> None:
    assert unit_problem(["broker", "--wrong", "1"])


@pytest.mark.parametrize("words", ["topics lists", "topics list --wrong", "wrong"])
def test_wrong_names_are_found(words: str) -> None:
    assert check_named(words.split())


@pytest.mark.parametrize("words", ["wrong", "test WRONG=1"])
def test_wrong_targets_are_found(words: str) -> None:
    assert make_problem(words.split())
