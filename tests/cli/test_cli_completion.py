"""Shells complete commands and options, from the parser itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.completion import VARIABLE, Shell
from headrace.cli.main import app

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


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    """A real bash: it defines the function, and calls it as it would for the Tab key."""
    program = tmp_path / "headrace"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headrace.cli "$@"\n')
    program.chmod(0o755)
    script = (
        "source <(headrace completion bash); COMP_WORDS=(headrace gro); COMP_CWORD=1; "
        'function=$(complete -p headrace | sed "s/.*-F \\([^ ]*\\).*/\\1/"); '
        '"$function" headrace gro headrace; echo "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["groups"]
