"""`terraform init` and `terraform apply` as processes of ours, followed to their end.

Owns how they are started, followed, interrupted, and how they fail. What they say is `said`'s.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final

from headrace.agent.logs import log_tail
from headrace.agent.unit import Unit
from headrace.fleet import operate
from headrace.fleet.terraform.folder import make_folder, variables_for_terraform
from headrace.fleet.terraform.said import Said
from headrace.site.errors import SiteError
from headrace.site.site import Site

POLL_INTERVAL_S: Final = 0.1
# Terraform changes so many things at once: enough to have every first unit under way.
PARALLELISM: Final = 10
# It finishes what it has begun; units are waited for in slices of a second, so this is for a slow machine.
INTERRUPT_WAIT_S: Final = 120.0
LOG_NAME: Final = "apply.jsonl"
ERRORS_NAME: Final = "apply.stderr"

Observer = Callable[[Said], None]
"""Told what Terraform has said so far, whenever it is looked at."""


def apply(site: Site, units: Sequence[Unit], observe: Observer, warn: Callable[[str], None]) -> Said:
    """Makes the site's units by `terraform apply`, and returns when every one is ready.

    `warn` is told why Ctrl-C takes a while.

    Raises `AddressTakenError` before anything is started, and `SiteError` with Terraform's own errors; what
    runs then keeps running.
    """
    with operate.prepared(site, units):
        folder = make_folder(site)
        # The provider is the checkout's; who has another than last time is not to be stopped by that.
        (folder / ".terraform.lock.hcl").unlink(missing_ok=True)
        _run(folder, ["init", "-json", "-input=false"], lambda said: None, warn)
        return _run(
            folder,
            ["apply", "-json", "-auto-approve", "-input=false", f"-parallelism={PARALLELISM}"],
            observe,
            warn,
        )


def _run(folder: Path, words: Sequence[str], observe: Observer, warn: Callable[[str], None]) -> Said:
    said = Said()
    # Into a file, not a pipe: if we are killed, it can still finish and write its state.
    with (
        (folder / LOG_NAME).open("w") as output,
        (folder / ERRORS_NAME).open("w") as errors,
        (folder / LOG_NAME).open() as lines,
        subprocess.Popen(
            ["terraform", *words],
            cwd=folder,
            env=variables_for_terraform(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            # A terminal's Ctrl-C would come to it twice, and the second makes it drop everything.
            start_new_session=True,
        ) as process,
    ):
        try:
            _follow(process, lines, said, observe)
        except BaseException:
            warn("interrupted: Terraform finishes what it has begun, and the next run goes on from there")
            _interrupt(process)
            raise
    if process.returncode:
        raise SiteError(_failure(folder, words[0], said))
    return said


def _follow(process: subprocess.Popen[bytes], lines: IO[str], said: Said, observe: Observer) -> None:
    unfinished = ""
    is_over = False
    while not is_over:
        # Asked before the last look, so that nothing is missed.
        is_over = process.poll() is not None
        for line in lines:
            unfinished += line
            if unfinished.endswith("\n"):
                said.hear(unfinished)
                unfinished = ""
        observe(said)
        if not is_over:
            time.sleep(POLL_INTERVAL_S)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Has Terraform end in order: what is begun is noted in its state. A second Ctrl-C ends it at once."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(INTERRUPT_WAIT_S)
    except BaseException as error:
        process.kill() if isinstance(error, subprocess.TimeoutExpired) else process.send_signal(signal.SIGINT)
        process.wait()


def _failure(folder: Path, what: str, said: Said) -> str:
    troubles = said.troubles() or log_tail(folder / ERRORS_NAME) or "it does not say why"
    return f"terraform {what} failed in {folder}:\n{troubles}"
