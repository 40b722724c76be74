"""Each exit code, by a real command in a process of its own; docs/cli.md lists the same codes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fix_client import FakeCluster, StartCluster
from headrace.cli.errors import EXIT_CODES, ExitCode
from headrace.demo import outcome
from headrace.wire.records import Record, encode_batch

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
HEADRACE = [sys.executable, "-m", "headrace.cli"]
NOBODY = "127.106.4.1:1"
END_MAX_S = 60.0
RECORDS = 2_000
"""Their values are more than a pipe holds."""


def with_ctrl_c() -> None:
    """In the child: a shell that runs the tests in the background lets them ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "HEADRACE_HOME": str(tmp_path), "HEADRACE_DEBUG": "", "HEADRACE_CONTEXT": ""}


@pytest.fixture
def cluster(fake_cluster: StartCluster) -> FakeCluster:
    made = fake_cluster(brokers=1, partitions=1)
    with made.lock:
        records = [Record(0, 1_431_856_800_000, None, b"x" * 100) for _ in range(RECORDS // 10)]
        for _ in range(10):
            made.log(0).append(encode_batch(records))
    return made


@pytest.mark.parametrize("closed", [">&-", "<&-", ">&- 2>&- <&-"])
def test_a_command_runs_without_streams(environment: dict[str, str], closed: str) -> None:
    """Started so by a service manager, it must neither fail nor take a file of its own for its stdout."""
    command = ["sh", "-c", f'"$0" -m headrace.cli context list --json {closed}', sys.executable]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=END_MAX_S)
    assert (ended.returncode, ended.stderr) == (ExitCode.DONE, "")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--version"], ExitCode.DONE),
        (["topics", "--help"], ExitCode.DONE),
        (["context", "list", "--json"], ExitCode.DONE),
        (["context", "use", "nowhere"], ExitCode.NEGATIVE),
        (["topics", "list", "--wrong"], ExitCode.USAGE),
        (["topics", "lits"], ExitCode.USAGE),
        (["consume", "t", "--from", "1700000000"], ExitCode.USAGE),
        (["topics", "list", "-b", NOBODY], ExitCode.UNREACHABLE),
        (["schemas", "list", "-r", f"http://{NOBODY}"], ExitCode.UNREACHABLE),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_command_ends_with_its_code(environment: dict[str, str], words: list[str], code: ExitCode) -> None:
    done = subprocess.run(
        [*HEADRACE, *words], env=environment, capture_output=True, text=True, timeout=END_MAX_S, check=False
    )
    assert done.returncode == code, done.stderr
    if code is not ExitCode.DONE:
        assert done.stdout == ""
        errors = [line for line in done.stderr.splitlines() if not line.startswith("no context, ")]
        assert len(errors) == 1 and errors[0].startswith("error: "), done.stderr


def test_a_wrong_command_is_answered_by_the_nearest(environment: dict[str, str]) -> None:
    line = [*HEADRACE, "topics", "descibe", "t"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert "No such command 'descibe'. Did you mean 'describe'? See `" in done.stderr


INTERRUPTED_IMPORT = """
import os, runpy, signal, sys

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "headrace.cli.main":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
runpy.run_module("headrace.cli", run_name="__main__")
"""


def test_ctrl_c_ends_a_command_that_has_not_begun(environment: dict[str, str]) -> None:
    """Its modules take a second to import, in which whoever typed the wrong line presses Ctrl-C."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT],
        env=environment,
        preexec_fn=with_ctrl_c,
        capture_output=True,
        text=True,
        timeout=END_MAX_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (ExitCode.INTERRUPTED, "")


def test_the_installed_command_is_the_tried_one() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["scripts"]["headrace"] == "headrace.cli.__main__:main"


@pytest.mark.parametrize("words", [["--help"], ["topics"], ["topics", "list", "--help"], ["--version"]])
def test_a_reader_that_goes_ends_a_page_of_help(environment: dict[str, str], words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*HEADRACE, *words],
            env=environment,
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=END_MAX_S,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (ExitCode.CLOSED, b"")


@pytest.mark.parametrize("words", [["context", "list"], ["context", "list", "--json"], ["--version"]])
def test_an_output_on_a_full_disk_is_not_taken_for_the_home(
    environment: dict[str, str], words: list[str]
) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*HEADRACE, *words],
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=END_MAX_S,
            check=False,
        )
    problem = "error: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (ExitCode.NEGATIVE, problem)


@pytest.mark.parametrize("words", [["groups", "describe"], ["topics", "describe"]])
def test_a_name_that_is_not_utf_8_is_wrong_usage(
    environment: dict[str, str], cluster: FakeCluster, words: list[str]
) -> None:
    done = subprocess.run(
        [*HEADRACE, *words, b"a\xffb", "-b", cluster.bootstrap],
        env=environment,
        capture_output=True,
        text=True,
        timeout=END_MAX_S,
        check=False,
    )
    assert done.returncode == ExitCode.USAGE, done.stderr
    error = done.stderr.splitlines()[-1]
    assert error.startswith("error: 'a\\udcffb' is not ") and "UTF-8" in error and "Error:" not in error


def test_ctrl_c_ends_a_command(environment: dict[str, str], cluster: FakeCluster) -> None:
    with subprocess.Popen(
        [*HEADRACE, "produce", "t", "-b", cluster.bootstrap],
        env=environment,
        preexec_fn=with_ctrl_c,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdin is not None and running.stderr is not None
        running.stderr.readline()  # the line that says on what it works: it has begun
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=END_MAX_S)
    # A shell calls both 130. `python -m` ends by the signal itself, whatever handled it, if the interrupt was
    # within an `exec`, such as that by which an imported module makes a named tuple.
    assert running.returncode in (ExitCode.INTERRUPTED, -signal.SIGINT)
    assert "Traceback" not in errors and "error" not in errors


def test_ctrl_c_is_how_consume_ends(environment: dict[str, str], cluster: FakeCluster) -> None:
    with subprocess.Popen(
        [*HEADRACE, "consume", "t", "-b", cluster.bootstrap, "--from", "beginning", "-o", "raw"],
        env=environment,
        preexec_fn=with_ctrl_c,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        for _ in range(RECORDS):
            assert running.stdout.readline()
        running.send_signal(signal.SIGINT)
        rest, errors = running.communicate(timeout=END_MAX_S)
    assert (running.returncode, rest) == (ExitCode.DONE, "")
    assert "Traceback" not in errors and "error" not in errors


@pytest.mark.parametrize("form", ["table", "json", "raw"])
def test_a_reader_that_goes_ends_a_command(
    environment: dict[str, str], cluster: FakeCluster, form: str
) -> None:
    with subprocess.Popen(
        [*HEADRACE, "consume", "t", "-b", cluster.bootstrap, "--from", "beginning", "-o", form],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        assert "x" in running.stdout.readline()
        running.stdout.close()
        errors = running.stderr.read()
        code = running.wait(END_MAX_S)
    assert code == ExitCode.CLOSED
    assert len(errors.splitlines()) == 1 and errors.startswith("no context, brokers "), errors


def test_unparsed_lines_have_a_code_of_their_own() -> None:
    assert int(ExitCode.UNPARSED) == outcome.MUCH_UNPARSABLE
    assert outcome.exit_code(is_complete=True, lines=100, unparsable=2) == ExitCode.UNPARSED


def test_the_page_lists_the_codes() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", PAGE.partition("**Exit codes.**")[2], re.MULTILINE))
    assert {int(code): meaning.replace("\\|", "|") for code, meaning in rows.items()} == {
        int(code): meaning for code, meaning in EXIT_CODES.items()
    }
