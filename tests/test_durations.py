"""The lines at the end of a run that say where its time went, and which programs used the processors."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fix_durations import FILES_SHOWN_MAX, RUN_MIN_S, Run, Span
from processor_times import TICKS_PER_S, UNNAMED, Processors, Programs, program_of

TESTS = Path(__file__).parent
BEGUN_S = 1_000.0
BUSY_S = 0.3
BUSY = f"""
import subprocess, sys, time
SPIN = "import time\\nwhile time.process_time() < {BUSY_S}: pass"
def test_itself():
    exec(SPIN.replace("{BUSY_S}", str(time.process_time() + {BUSY_S})))
def test_what_it_starts():
    subprocess.run([sys.executable, "-c", SPIN], check=True)
"""
STAT = "cpu  100 20 30 600 200 5 5 40 7 7\ncpu0 100 20 30 600 200 5 5 40 7 7\n"


def run_of(*spans: tuple[str, str, float, float]) -> Run:
    """A run with these spans: process, test, begin and end in seconds since the run's begin."""
    made = Run(BEGUN_S)
    made.spans += [Span(process, test, BEGUN_S + a, BEGUN_S + b, 0.5) for process, test, a, b in spans]
    return made


def report(run: Run, seconds: float) -> list[str]:
    used = Processors(75 * TICKS_PER_S, 25 * TICKS_PER_S)
    return list(run.lines(BEGUN_S + seconds, used, [("headrace.broker", 40.0), ("mvn", 10.0)]))


def test_processes_groups_folders_and_files_have_their_seconds() -> None:
    run = run_of(
        ("gw0", "tests/days/test_operator.py::test_a", 20.0, 70.0),
        ("gw0", "tests/days/test_reader.py::test_b", 70.0, 75.0),
        ("gw1", "tests/log/test_log_flush.py::test_c[1]", 21.0, 22.5),
        ("gw1", "tests/log/test_log_flush.py::test_c[2]", 23.0, 25.0),
        ("gw1", "tests/log/test_log_scrub.py::test_d", 25.0, 26.0),
    )
    assert report(run, 80) == [
        "where the time went: 80 s, 20 s before the first test; processors busy for 75%",
        "  gw0: 55 s in tests, idle for 5 s in the end, after tests/days/test_reader.py",
        "  gw1: 4 s in tests, idle for 54 s in the end, after tests/log/test_log_scrub.py",
        "  groups: days 55 s",
        "  other files: tests/log 4 s",
        "  CPU: headrace.broker 40 s, mvn 10 s, too brief to be seen 25 s",
        "  slowest files:",
        "    50.0 s  tests/days/test_operator.py",
        "     5.0 s  tests/days/test_reader.py",
        "     3.5 s  tests/log/test_log_flush.py",
        "     1.0 s  tests/log/test_log_scrub.py",
    ]
    rows = (
        ("tests/days/test_operator.py", 50.0, 0.5, 20.0, "gw0"),
        ("tests/days/test_reader.py", 5.0, 0.5, 70.0, "gw0"),
        ("tests/log/test_log_flush.py", 3.5, 1.0, 21.0, "gw1"),
        ("tests/log/test_log_scrub.py", 1.0, 0.5, 25.0, "gw1"),
    )
    columns = ("file", "seconds", "cpu_s", "begun_s", "process")
    assert run.details() == {
        "files": [dict(zip(columns, row, strict=True)) for row in rows],
        "tests": {
            "tests/days/test_operator.py::test_a": 50.0,
            "tests/days/test_reader.py::test_b": 5.0,
            "tests/log/test_log_flush.py::test_c[2]": 2.0,
            "tests/log/test_log_flush.py::test_c[1]": 1.5,
            "tests/log/test_log_scrub.py::test_d": 1.0,
        },
    }


def test_a_short_run_and_one_in_one_process_show_nothing() -> None:
    both = [("gw0", "tests/a/test_a.py::test_a", 0.0, 1.0), ("gw1", "tests/a/test_b.py::test_b", 0.0, 1.0)]
    assert report(run_of(*both), RUN_MIN_S - 1) == []
    assert report(run_of(both[0]), RUN_MIN_S + 1) == []
    assert report(run_of(), RUN_MIN_S + 1) == []


def test_only_the_slowest_files_are_shown() -> None:
    spans = [(f"gw{n % 2}", f"tests/a/test_{n}.py::test_a", 0.0, 1.0 + n) for n in range(FILES_SHOWN_MAX + 3)]
    lines = report(run_of(*spans), 100)
    assert len(lines[lines.index("  slowest files:") + 1 :]) == FILES_SHOWN_MAX
    assert lines[-FILES_SHOWN_MAX].endswith(f" tests/a/test_{FILES_SHOWN_MAX + 2}.py")


def test_processors_are_busy_for_what_is_neither_idle_nor_a_guests(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text(STAT)
    assert Processors.read(stat) == Processors(200, 800)
    assert Processors.read(stat).busy_share == 0.2
    assert Processors.read(stat).since(Processors(100, 700)) == Processors(100, 100)
    assert Processors.read(tmp_path / "none").busy_share == 0


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("/usr/bin/python3.11 -m headrace.broker --broker-id 1", "headrace.broker"),
        (".venv/bin/python -I -m headrace.provider", "headrace.provider"),
        ("python .venv/bin/supervisord -c x.conf", "supervisord"),
        ("python -u -c import\\ sys;exec(eval(sys.stdin.readline()))", "test process"),
        ("python -c print(1)", "python -c"),
        ("python", "python"),
        ("java -Xmx1g -cp /a/jars/* org.apache.zookeeper.server.quorum.QuorumPeerMain zoo", "QuorumPeerMain"),
        ("java -version", "java"),
        ("/usr/sbin/haproxy -f x", "haproxy"),
        ("postgres:\\ walwriter", "postgres"),
        ("airflow\\ scheduler\\ --\\ Local", "airflow scheduler"),
    ],
)
def test_a_program_has_a_short_name(line: str, name: str) -> None:
    assert program_of(shlex.split(line)) == name


def test_only_what_begins_meanwhile_is_seen_and_named_by_what_it_becomes(tmp_path: Path) -> None:
    def process(pid: int, begin: int, ticks: int, command: bytes) -> None:
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        fields = ["S", *["0"] * 10, str(ticks), "0", *["0"] * 6, str(begin), "0"]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}")
        (tmp_path / str(pid) / "cmdline").write_bytes(command)

    (tmp_path / "self").mkdir()
    process(1, 10, 500, b"init\0")
    programs = Programs(tmp_path)
    process(1, 10, 900, b"init\0")
    process(2, 20, 100, b"python\0-c\0fork")
    process(3, 21, 50, b"")
    programs.look()
    process(2, 20, 300, b"java\0-jar\0x.jar\0")
    process(3, 22, 70, b"java\0-jar\0x.jar\0")  # another process with the same number
    programs.look()
    assert programs.seconds == [("x.jar", 370 / TICKS_PER_S), (UNNAMED, 50 / TICKS_PER_S)]
    assert programs.counts == {"x.jar": 2, UNNAMED: 1}


@pytest.mark.parametrize("options", [(), ("-p", "no:cacheprovider")], ids=["cache", "no cache"])
def test_a_run_of_two_processes_ends_with_them(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {TESTS}\n")
    (tmp_path / "conftest.py").write_text(
        "import fix_durations\nfix_durations.RUN_MIN_S = 0.0\npytest_plugins = ['fix_durations']\n"
    )
    (tmp_path / "test_first.py").write_text("def test_some(): ...\n\ndef test_other(): ...\n")
    (tmp_path / "test_second.py").write_text(BUSY)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadscope", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "where the time went: " in ran.stdout
    assert "  gw1: " in ran.stdout and "  groups: none\n" in ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("4 passed")
    kept = tmp_path / ".pytest_cache" / "d" / "durations" / "run.json"
    assert kept.exists() == (not options)
    if not options:
        details = json.loads(kept.read_text())
        cpu_s = {each["file"]: each["cpu_s"] for each in details["files"]}
        assert set(cpu_s) == {"test_first.py", "test_second.py"}
        assert all(each["processes"] > 0 for each in details["programs"].values())
        assert cpu_s["test_second.py"] >= 2 * BUSY_S > cpu_s["test_first.py"]
