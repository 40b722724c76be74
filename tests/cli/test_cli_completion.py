"""Shells complete commands and options, from the parser itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fix_client import StartCluster
from headrace.cli.completion import VARIABLE, Shell
from headrace.cli.main import app
from headrace.site.context import parse_outputs
from headrace.site.context_store import ContextStore

RUN = [sys.executable, "-m", "headrace.cli"]


def answer(shell: Shell, **asked: str) -> str:
    environment = {**os.environ, VARIABLE: f"complete_{shell}", **asked}
    done = subprocess.run(RUN, env=environment, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", list(Shell))
def test_the_script_asks_headrace(shell: Shell) -> None:
    done = CliRunner().invoke(app, ["completion", shell.value])
    assert done.exit_code == 0 and f"{VARIABLE}=complete_{shell}" in done.output


def test_another_shell_is_wrong_usage() -> None:
    done = CliRunner().invoke(app, ["completion", "tcsh"])
    assert done.exit_code == 2


def test_bash_gets_commands_and_options() -> None:
    assert answer(Shell.BASH, COMP_WORDS="headrace topics cr", COMP_CWORD="2").split() == ["create"]
    options = answer(Shell.BASH, COMP_WORDS="headrace topics create --part", COMP_CWORD="3").split()
    assert options == ["--partitions"]


def test_zsh_and_fish_get_commands() -> None:
    assert "create" in answer(Shell.ZSH, _TYPER_COMPLETE_ARGS="headrace topics cr")
    fish = {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_ARGS": "headrace topics cr"}
    assert "create" in answer(Shell.FISH, **fish)


@pytest.fixture
def tab(tmp_path: Path) -> Callable[[str], list[str]]:
    """What a real bash offers for the Tab key: it calls the function that the script defines."""
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    program = tmp_path / "headrace"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headrace.cli "$@"\n')
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HEADRACE_HOME": str(tmp_path),
        "HEADRACE_CONTEXT": "",
    }

    def press(line: str) -> list[str]:
        words = line.split(" ")
        quoted = " ".join(word or "''" for word in words)
        script = (
            f"source <(headrace completion bash); COMP_WORDS=({quoted}); "
            f"COMP_CWORD={len(words) - 1}; "
            'function=$(complete -p headrace | sed "s/.*-F \\([^ ]*\\).*/\\1/"); '
            '"$function" headrace; echo "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stderr == "", "what a completion prints lands in the middle of the user's line"
        return done.stdout.split()

    return press


def test_bash_completes_commands(tab: Callable[[str], list[str]]) -> None:
    assert tab("headrace gro") == ["groups"]


def test_bash_completes_contexts_and_datacenters(tab: Callable[[str], list[str]], tmp_path: Path) -> None:
    brokers = {"value": {"bootstrap_servers": ["127.106.5.1:1"]}}
    context = parse_outputs(json.dumps({"tokyo": brokers, "osaka": brokers}), "prod")
    ContextStore(tmp_path).save(context)
    assert tab("headrace context use ") == ["prod", "site"]
    assert tab("headrace topics list --context pr") == ["prod"]
    assert tab("headrace topics list --context prod -d ") == ["osaka", "tokyo"]
    assert tab("headrace logs east-broker-") == ["east-broker-1", "east-broker-2", "east-broker-3"]


def test_bash_completes_topics(tab: Callable[[str], list[str]], fake_cluster: StartCluster) -> None:
    cluster = fake_cluster()
    with cluster.lock:
        for name in ("page-view", "page-load", "order", "$(touch owned)", "a`b`", 'pa"x'):
            cluster.create(name, 1)
    line = f"headrace topics describe -b {cluster.bootstrap} pa"
    assert tab(line) == ["page-load", "page-view"], "names that a shell would evaluate are left out"
    assert "order" in tab(f"headrace consume -b {cluster.bootstrap} ")
    cluster.brokers[0].stop()
    assert tab(line) == [], "nothing is said of brokers that do not answer"
