"""Runs `terraform init` and `terraform apply` to their end.

Owns how they are started, followed and interrupted, and their failure. `progress` reads their output.
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
from headrace.fleet.terraform.folder import make_folder, process_environment
from headrace.fleet.terraform.progress import TerraformProgress
from headrace.site.errors import SiteError
from headrace.site.site import Site

POLL_INTERVAL_S: Final = 0.1
# The number of concurrent changes: enough that all units without requirements start at the same time.
PARALLELISM: Final = 10
# After SIGINT, Terraform finishes the changes it has begun. The provider notices within a second; the rest is
# for a slow machine.
INTERRUPT_WAIT_MAX_S: Final = 120.0
LOG_NAME: Final = "apply.jsonl"
ERRORS_NAME: Final = "apply.stderr"

Observer = Callable[[TerraformProgress], None]
"""Called with the progress every `POLL_INTERVAL_S`."""


def apply(
    site: Site, units: Sequence[Unit], observe: Observer, warn: Callable[[str], None]
) -> TerraformProgress:
    """Provisions the site's units by `terraform apply`, and returns when all of them are ready.

    Calls `warn` with a message if it is interrupted, because an orderly end takes a while. Raises
    `AddressTakenError` before it starts anything, and `SiteError` with Terraform's own errors; units that run
    then keep running.
    """
    with operate.prepared(site, units):
        folder = make_folder(site)
        # The lock file pins the provider's checksum, and the checkout's provider may have changed since.
        (folder / ".terraform.lock.hcl").unlink(missing_ok=True)
        _run(folder, ["init", "-json", "-input=false"], lambda progress: None, warn)
        return _run(
            folder,
            ["apply", "-json", "-auto-approve", "-input=false", f"-parallelism={PARALLELISM}"],
            observe,
            warn,
        )


def _run(
    folder: Path, arguments: Sequence[str], observe: Observer, warn: Callable[[str], None]
) -> TerraformProgress:
    progress = TerraformProgress()
    # Output goes to a file, not a pipe: if we are killed, Terraform can still finish and write its state.
    with (
        (folder / LOG_NAME).open("w") as output,
        (folder / ERRORS_NAME).open("w") as errors,
        (folder / LOG_NAME).open() as lines,
        subprocess.Popen(
            ["terraform", *arguments],
            cwd=folder,
            env=process_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            # Otherwise a terminal's Ctrl-C would reach Terraform twice, and the second one makes it abort.
            start_new_session=True,
        ) as process,
    ):
        try:
            _follow(process, lines, progress, observe)
        except BaseException:
            warn("interrupted: Terraform finishes the changes it has begun; the next run does the others")
            _interrupt(process)
            raise
    if process.returncode:
        problems = progress.error_text() or log_tail(folder / ERRORS_NAME) or "it printed no error"
        raise SiteError(f"terraform {arguments[0]} failed in {folder}:\n{problems}")
    return progress


def _follow(
    process: subprocess.Popen[bytes], lines: IO[str], progress: TerraformProgress, observe: Observer
) -> None:
    unfinished = ""
    has_ended = False
    while not has_ended:
        # Polled before the output is read, so that the last lines are not missed.
        has_ended = process.poll() is not None
        for line in lines:
            unfinished += line
            if unfinished.endswith("\n"):
                progress.read_line(unfinished)
                unfinished = ""
        observe(progress)
        if not has_ended:
            time.sleep(POLL_INTERVAL_S)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Ends Terraform by SIGINT, so that its state is complete; a second Ctrl-C makes it abort."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(INTERRUPT_WAIT_MAX_S)
    except BaseException as error:
        process.kill() if isinstance(error, subprocess.TimeoutExpired) else process.send_signal(signal.SIGINT)
        process.wait()
