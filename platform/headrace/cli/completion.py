"""`headrace completion bash | zsh | fish`: a script by which a shell completes commands and options.

The script runs `headrace` with a variable that asks for completions; typer answers from the commands.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated, Final

import typer

from headrace.cli.output import write

PROGRAM: Final = "headrace"
VARIABLE: Final = "_HEADRACE_COMPLETE"


class Shell(StrEnum):
    """The shells that typer has scripts for, and that we try."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell.", show_choices=True)]) -> None:
    """Print a script that completes commands and options: `source <(headrace completion bash)`.

    For zsh write it to a file `_headrace` in a folder of `$fpath`; for fish to
    `~/.config/fish/completions/headrace.fish`.
    """
    # typer has no public name for it but an option of its own, which would be one of every command.
    from typer._completion_shared import get_completion_script

    script = get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell.value)
    write(script + "\n")


def is_asked_for() -> bool:
    """Whether a shell runs this process for completions."""
    return VARIABLE in os.environ


def prepare() -> None:
    """Makes typer answer in the form that the printed scripts expect."""
    from typer._completion_classes import completion_init

    completion_init()
