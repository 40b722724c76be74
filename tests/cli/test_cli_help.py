"""What holds for all commands, without a site: help, quick start, parsing and formatting."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from fix_cli import command_runner
from headrace.cli.errors import CommandError, ExitCode, exit_code_of, exit_with
from headrace.cli.main import app
from headrace.cli.output import in_bytes, in_duration, in_time
from headrace.cli.values import parse_pairs, parse_time_ms


def commands(command: object, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield words, command
        return
    for name, child in children.items():
        yield from commands(child, (*words, name))


EVERY = list(commands(typer.main.get_command(app)))


@pytest.mark.parametrize(("words", "command"), EVERY, ids=[" ".join(words) for words, _ in EVERY])
def test_every_command_and_option_is_explained(words: tuple[str, ...], command: object) -> None:
    assert command.help.strip()  # type: ignore[attr-defined]
    unexplained = [param.name for param in command.params if not getattr(param, "help", "")]  # type: ignore[attr-defined]
    assert not unexplained


@pytest.mark.parametrize(("words", "command"), EVERY, ids=[" ".join(words) for words, _ in EVERY])
def test_an_option_names_what_it_takes(words: tuple[str, ...], command: object) -> None:
    """`TIME` or `N`, not Python's `<str>`; the words of a choice are shown as they are."""
    taking = [param for param in command.params if param.param_type_name == "option" and not param.is_flag]  # type: ignore[attr-defined]
    unnamed = [param.opts for param in taking if not (param.metavar or "--output" in param.opts)]
    choices = {"--dialect", "--producers"}
    assert not [opts for opts in unnamed if not choices & set(opts)]


@pytest.mark.parametrize(("words", "command"), EVERY, ids=[" ".join(words) for words, _ in EVERY])
def test_arguments_are_shown_as_in_the_page_of_commands(
    words: tuple[str, ...],
    command: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`TOPIC` or `[FILE]`, not `{topic}` and Python's `<str>`, `<FileBinaryRead>`, `<int range>`."""
    monkeypatch.setenv("COLUMNS", "200")
    shown = command_runner(monkeypatch, capsys)(*words, "--help").out
    usage = next(line.split("[OPTIONS]")[1] for line in shown.splitlines() if "Usage:" in line)
    assert usage == usage.upper() and "{" not in usage
    python = re.findall(r"<(?:str|path|Path|int|list|File)\b[^>]*>", shown)
    assert not python


@pytest.mark.parametrize("words", [(), ("topics",), ("topics", "list")])
def test_a_flag_takes_nothing(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    help_ = command_runner(monkeypatch, capsys)(*words, "--help").out
    assert "--help" in help_ and "bool" not in help_


@pytest.mark.parametrize(("words", "command"), EVERY, ids=[" ".join(words) for words, _ in EVERY])
def test_the_terminal_breaks_the_lines_of_help(words: tuple[str, ...], command: object) -> None:
    """A docstring's own line breaks, shown in a narrower terminal, would leave ragged lines."""
    assert all("\n" not in paragraph for paragraph in command.help.split("\n\n"))  # type: ignore[attr-defined]


def test_help_is_quick_because_it_loads_little() -> None:
    script = "import sys, headrace.cli.main; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    slow = {"sqlalchemy", "kazoo", "pyspark", "kio", "pyarrow", "fastavro", "httpx"}
    loaded_slow = slow & set(done.stdout.split())
    assert not loaded_slow


@pytest.mark.parametrize(
    ("text", "moment_ms"),
    [
        ("2015-05-17T10", 1431856800000),
        ("2015-05-17T10:00:00Z", 1431856800000),
        ("2015-05-17T12:00:00+02:00", 1431856800000),
        ("2015-05-17", 1431820800000),
        ("1431856800000", 1431856800000),
    ],
)
def test_times_are_read_as_utc(text: str, moment_ms: int) -> None:
    assert parse_time_ms(text) == moment_ms


@pytest.mark.parametrize("text", ["", "yesterday", "2015-13-01", "17/May/2015"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(CommandError, match="is not a time"):
        parse_time_ms(text)


def test_pairs_are_split_at_the_first_equals_sign() -> None:
    assert parse_pairs(["a=b=c", "d="], "--header") == [("a", "b=c"), ("d", "")]


def test_the_exit_code_of_an_error() -> None:
    assert exit_code_of(CommandError("x", ExitCode.USAGE)) == ExitCode.USAGE
    assert exit_code_of(ConnectionRefusedError()) == ExitCode.UNREACHABLE
    assert exit_code_of(ValueError()) == ExitCode.NEGATIVE


def test_numbers_for_people() -> None:
    assert [in_bytes(count) for count in (0, 1023, 1536, 5 << 20)] == ["0 B", "1023 B", "1.5 KiB", "5.0 MiB"]
    assert in_time(1431857103007) == "2015-05-17 10:05:03.007"
    assert in_time(-1) == "-"
    assert [in_duration(s) for s in (5, 65, 3700, 90000)] == ["5s", "1m 5s", "1h 1m", "1d 1h"]


def test_the_error_of_a_full_disk_names_path_and_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    monkeypatch.delenv("HEADRACE_DEBUG", raising=False)
    for error, where in (
        (OSError(errno.ENOSPC, "No space left on device"), tmp_path),
        (OSError(errno.EDQUOT, "Disk quota exceeded", str(tmp_path / "x")), tmp_path / "x"),
    ):
        with pytest.raises(SystemExit):
            exit_with(error)
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {where}: {error.strerror}: ")
        assert "bytes are free on the disk of" in line
