"""No byte of a stranger is a command to the terminal: all that commands print is escaped in one place."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace.cli
from headrace.cli import main as cli
from headrace.cli import output
from headrace.cli.errors import CommandError, exit_with, print_error
from headrace.process.text import escaped, escaped_json, escaped_lines, has_control

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\x00\x7f\u2066"
FOLDER = Path(headrace.cli.__path__[0])
# Where a file may write by itself, and what: the version.
ALLOWED = {"main.py": {"print"}}
WRITERS = {"print", "Console", "sys.stdout", "sys.stderr", "typer.echo", "typer.secho", "typer.confirm"}


def is_harmless(text: str) -> bool:
    return not any(has_control(char) for char in text if char not in "\t\n")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_commands_print_through_the_one_module_that_escapes(path: Path) -> None:
    if path.name == "output.py":
        return
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("sys", "typer")
        ):
            found.add(f"{node.value.id}.{node.attr}")
    assert found & WRITERS <= ALLOWED.get(path.name, set())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text() | st.just(HOSTILE))
def test_whatever_is_printed_is_escaped(capsys: pytest.CaptureFixture[str], text: str) -> None:
    output.out.print(text, markup=False)
    output.out.print(f"[bold]{output.plain(text)}[/]")
    output.print_table(["name", ">count"], [(output.plain(text), 1)], empty=text)
    output.print_table(["name"], [], empty=output.plain(text))
    output.print_json({text: [text]})
    output.write(text)
    output.note(text)
    print_error(text)
    captured = capsys.readouterr()
    assert is_harmless(captured.out), ascii(captured.out)
    assert is_harmless(captured.err), ascii(captured.err)


@pytest.mark.parametrize("width", [30, 80])
def test_a_narrow_table_has_every_letter_and_a_pipe_has_a_line_for_each_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    """Half a name may be another's name."""
    name, problem = "com." + "x" * 245, "broker 3 does not answer: " + "y" * 300
    row = (name, 12, problem)
    output.print_table(["topic", ">partitions", "problem"], [row], empty="")
    *_, last = filter(None, map(str.strip, capsys.readouterr().out.splitlines()))
    assert last.split(maxsplit=2) == [name, "12", problem]
    monkeypatch.setattr(output, "out", output.SafeConsole(width=width))
    output.print_table(["topic", ">partitions", "problem"], [row], empty="")
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= width
    assert (printed.count("x"), printed.count("y"), printed.count("12")) == (245, 300, 1)


@given(st.dictionaries(st.text(), st.text() | st.lists(st.text())))
def test_json_keeps_its_values(data: dict[str, object]) -> None:
    document = output.json_text(data)
    assert json.loads(document) == data
    assert is_harmless(document) and "\n" not in document
    assert escaped_json(document) == document


@given(st.text())
def test_escaping_twice_changes_nothing_more(text: str) -> None:
    assert escaped_lines(escaped_lines(text)) == escaped_lines(text)


def test_text_that_is_no_control_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    output.write("a\tb\nc ü 界 🚀 :smile: [red]\n")
    assert capsys.readouterr().out == "a\tb\nc ü 界 🚀 :smile: [red]\n"
    output.out.print("ü 界 🚀 :smile: [red]", markup=False)
    assert capsys.readouterr().out == "ü 界 🚀 :smile: [red]\n"


def test_questions_are_escaped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    output.confirm(f"delete {HOSTILE}?")
    captured = capsys.readouterr()
    assert "\\x1b]0;owned\\x07" in captured.out + captured.err
    assert is_harmless(captured.out + captured.err)


@pytest.mark.parametrize("error", [CommandError(HOSTILE), ValueError(HOSTILE), OSError(5, HOSTILE, HOSTILE)])
def test_messages_of_errors_are_escaped(capsys: pytest.CaptureFixture[str], error: Exception) -> None:
    with pytest.raises(SystemExit):
        exit_with(error)
    captured = capsys.readouterr()
    assert "\\x1b[2J" in captured.err and is_harmless(captured.err)


@pytest.mark.parametrize(
    "words",
    [
        [HOSTILE],
        ["topics", HOSTILE],
        ["topics", "list", HOSTILE],
        ["topics", "list", f"--{HOSTILE}"],
        ["topics", "create", "t", "-p", HOSTILE],
        ["topics", "create", "t", "-c", HOSTILE],
        ["topics", "list", "-d", HOSTILE],
        ["topics", "list", "-b", HOSTILE],
        ["consume", "t", "--from", HOSTILE],
        ["consume", "t", "--grep", f"({HOSTILE}"],
        ["consume", "t", "-o", HOSTILE],
        ["produce", "t", HOSTILE.replace("\0", "")],
        ["dump-log", HOSTILE.replace("\0", "")],
        ["log", "check", HOSTILE.replace("\0", "")],
        ["logs", HOSTILE.replace("\0", "")],
        ["schemas", "register", "s", HOSTILE.replace("\0", "")],
        ["groups", "reset", "g", "--to", HOSTILE],
        ["groups", "reset", "g", "--shift-by", HOSTILE],
        ["audit", "report", "--from", HOSTILE],
        ["audit", "report", "--store", f"sqlite:///{HOSTILE}"],
        ["warehouse", "retain", "t", "--keep-hours", HOSTILE],
        ["restart", "--wait", HOSTILE],
    ],
    ids=lambda words: " ".join(words[:-1]) or "headrace",
)
def test_the_words_of_a_command_line_are_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["headrace", *words])
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    captured = capsys.readouterr()
    assert ended.value.code not in (0, None)
    assert is_harmless(captured.out + captured.err), ascii(captured.err)
    assert captured.err.startswith("error: ") and len(captured.err.splitlines()) == 1, captured.err


@pytest.fixture
def noisy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`headrace --version` that logs on its way, as libraries do."""

    def log(wanted: bool) -> None:
        logging.getLogger("headrace.client").warning("topic %s", HOSTILE)
        logging.getLogger("kazoo.client").error("Connection dropped: socket connection error")
        raise CommandError("the end")

    monkeypatch.setattr(cli, "app", lambda **_: log(True))
    yield


@pytest.mark.usefixtures("noisy")
def test_lines_of_libraries_are_escaped_and_kazoos_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"topic {escaped(HOSTILE)}", "error: the end"]


def test_no_color_leaves_colours_out_on_a_terminal() -> None:
    """In a process of its own, on a terminal."""
    script = "from headrace.cli.output import out; out.print('[red]text[/]')"
    for environment, expected in (({}, True), ({"NO_COLOR": "1"}, False)):
        ours, theirs = pty.openpty()
        variables = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        subprocess.run(
            [sys.executable, "-c", script],
            stdout=theirs,
            check=True,
            env={**variables, "TERM": "xterm", **environment},
        )
        os.close(theirs)
        shown = os.read(ours, 10_000).decode()
        os.close(ours)
        assert "text" in shown and ("\x1b[31m" in shown) is expected
