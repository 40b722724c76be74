"""Wrong words that need no site: refused in one line, which names the option and the nearest right word."""

from __future__ import annotations

from pathlib import Path

import pytest

from fix_cli import Headrace, command_runner
from headrace.backup.manifest import MANIFEST
from headrace.cli.errors import ExitCode
from headrace.cli.values import PARTITIONS_MAX
from headrace.coordination.topics import PARTITIONS_PER_CHANGE_MAX


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Headrace:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HEADRACE_CONTEXT", raising=False)
    return command_runner(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("words", "exit_code", "problem"),
    [
        (
            ("topics", "list", "-d", "wets"),
            ExitCode.NEGATIVE,
            "datacenter 'wets' is not part of this site; did you mean 'west'?; it has east, west, analysis",
        ),
        (
            ("topics", "create", "t", "-c", "retention.ms=week"),
            ExitCode.USAGE,
            "retention.ms: 'week' is not a duration",
        ),
        (("topics", "create", "t", "-c", "x"), ExitCode.USAGE, "--config 'x' is not NAME=VALUE"),
        (("produce", ".."), ExitCode.USAGE, "'..' is not a topic name: use "),
        (("produce", ""), ExitCode.USAGE, "'' is not a topic name: use "),
        (("produce", "t", "--timeout", "0"), ExitCode.USAGE, "--timeout '0' must be at least 2s"),
        (("produce", "t", "--timeout", "soon"), ExitCode.USAGE, "--timeout: 'soon' is not a duration"),
        (
            ("audit", "report", "--from", "-1h", "--to", "-2h"),
            ExitCode.USAGE,
            "--to -2h is not behind --from -1h",
        ),
        *(
            (words, ExitCode.USAGE, problem)
            for day in ("2015-05-17", "20150517")
            for words, problem in (
                (("audit", "repair", "t", "--hour", day), f"--hour {day}: give the hour itself, such as "),
                (("audit", "dedupe", "t", "--hour", day), f"--hour {day}: give the hour itself, such as "),
                (("warehouse", "compact", "t", "--hour", day), f"'{day}' is not the start of an hour"),
            )
        ),
        (("consume", "t", "--until", ""), ExitCode.USAGE, "'' is not a time; write "),
        (("audit", "report", "--from", ""), ExitCode.USAGE, "'' is not a time; write "),
        (("audit", "report", "--to", ""), ExitCode.USAGE, "'' is not a time; write "),
        (("warehouse", "ls", "t", "--to", ""), ExitCode.USAGE, "'' is not a time; write "),
        (("warehouse", "ls", "t", "--from", ""), ExitCode.USAGE, "'' is not a time; write "),
        (("warehouse", "plan", "t", "--until", ""), ExitCode.USAGE, "'' is not a time; write "),
        (("warehouse", "load", "t", "--until", ""), ExitCode.USAGE, "'' is not a time; write "),
        (
            ("consume", "t", "-o", "xml"),
            ExitCode.USAGE,
            "Invalid value for '--output' / '-o': 'xml' is not one of",
        ),
        (("logs", "supervisor"), ExitCode.USAGE, "did you mean 'supervisord'?; there are agent, "),
        (
            ("schemas", "list", "-r", "foo"),
            ExitCode.USAGE,
            "--registry: 'foo' is not a registry's URL, such as ",
        ),
        (("consume", "t", "-r", ","), ExitCode.USAGE, "--registry: ',' is no registry's URL"),
        (
            ("topics", "create", "t", "-p", "2001"),
            ExitCode.USAGE,
            "'--partitions' / '-p': Input should be less than or equal to 2000",
        ),
        (
            ("topics", "delete", "t", "--yes", "-b", ""),
            ExitCode.USAGE,
            "--bootstrap '' names nothing: give a",
        ),
        (("topics", "delete", "t", "--yes", "-d", ""), ExitCode.USAGE, "--datacenter '' names nothing: "),
        (("topics", "delete", "t", "--yes", "--context", " "), ExitCode.USAGE, "--context ' ' names nothing"),
        (("groups", "describe", ""), ExitCode.USAGE, "error: '' is not a group name: "),
        (
            ("topics", "list", "-b", "no-such-host.invalid:9092"),
            ExitCode.UNREACHABLE,
            "cannot connect to no-such-host.invalid:9092: ",
        ),
    ],
)
def test_what_is_wrong_is_named(
    run: Headrace, words: tuple[str, ...], exit_code: ExitCode, problem: str
) -> None:
    result = run(*words)
    assert (result.exit_code, len(result.err.splitlines())) == (exit_code, 1), result.err
    assert result.err.startswith("error: ") and problem in result.err
    assert "Unknown error" not in result.err


def test_a_folder_with_other_files_is_no_partition(run: Headrace, tmp_path: Path) -> None:
    (tmp_path / "env.log").write_text("a log of something else")
    result = run("dump-log", tmp_path)
    assert result.exit_code == ExitCode.USAGE
    assert result.err == f"error: {tmp_path} has no segment (*.log); is it a partition's directory?\n"


@pytest.mark.parametrize(
    "words",
    [
        ("backup", "create", ""),
        ("backup", "list", ""),
        ("backup", "verify", ""),
        ("restore", ""),
        ("restore", "a-backup", "--into", ""),
        ("agent", "--allow-path", ""),
    ],
)
def test_a_variable_that_is_not_set_is_not_the_present_folder(
    run: Headrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """`headrace backup create "$BACKUPS"` in a timer would fill whatever folder that runs in."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    code, _, error = run(*words)
    assert (code, "'' is no path: is a variable not set?" in error) == (ExitCode.USAGE, True)
    assert not list((tmp_path / "here").iterdir())


def test_the_bound_on_partitions_is_the_brokers() -> None:
    assert PARTITIONS_MAX == PARTITIONS_PER_CHANGE_MAX


def test_a_home_that_cannot_be_is_named(run: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", "/proc")
    result = run("up", "--without", "airflow")
    assert result.exit_code == ExitCode.NEGATIVE
    assert (
        result.err.strip().splitlines()[-1].startswith("error: /proc/fleet.lock: no such file or directory")
    )


def test_a_status_of_nothing_says_which_home_it_is_of(run: Headrace, tmp_path: Path) -> None:
    """Started in another folder than the site's, it would look as if a site that runs had ended."""
    for form in ((), ("--json",)):
        shown = run("status", *form)
        assert shown.exit_code == ExitCode.NEGATIVE
        assert f"nothing runs in {tmp_path / 'home'} (from $HEADRACE_HOME, " in " ".join(shown.err.split())


def test_a_folder_of_backups_that_is_not_there_is_not_empty(run: Headrace, tmp_path: Path) -> None:
    """A disk that is not mounted, or a mistyped folder, is no folder without backups."""
    wrong = run("backup", "list", str(tmp_path / "bakups"))
    assert wrong.exit_code == ExitCode.NEGATIVE and wrong.out == ""
    assert f"there is no folder {tmp_path / 'bakups'}; " in " ".join(wrong.err.split())
    assert run("backup", "list", str(tmp_path)).exit_code == ExitCode.DONE


def test_a_file_or_a_backup_is_no_folder_without_backups(run: Headrace, tmp_path: Path) -> None:
    """A file was to be made by `headrace backup create`, which refuses it; a backup "holds no backup"."""
    (tmp_path / "file").touch()
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / MANIFEST).touch()
    for name, problem in (("file", "is a file; give a folder"), ("backup", "is a backup itself; give the")):
        wrong = run("backup", "list", str(tmp_path / name))
        assert (wrong.exit_code, wrong.out) == (ExitCode.NEGATIVE, "")
        assert f"{tmp_path / name} {problem}" in " ".join(wrong.err.split())
