"""The real `terraform` on folders of HCL, with the provider that `make terraform` installs.

Owns `Workspace`. Fixture: `workspace`, a factory of initialised folders; skips tests if terraform or the
provider is missing.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
VENV = ROOT / ".venv-terraform"
COMMAND_TIMEOUT_S = 240

BEGIN = """
terraform {
  required_providers {
    headrace = { source = "headrace.local/headrace/headrace" }
  }
}
"""


class Workspace:
    """One folder of HCL and its state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings = {"TF_CLI_CONFIG_FILE": str(VENV / "terraform.rc"), "CHECKPOINT_DISABLE": "1"}
        self.environment = {**os.environ, **settings, "TF_IN_AUTOMATION": "1"}

    def write(self, text: str) -> None:
        (self.folder / "main.tf").write_text(BEGIN + text)

    def run(self, *words: str, code: int | None = 0) -> str:
        """Returns the command's output; it must exit with `code` (None: with any)."""
        done = subprocess.run(
            self._command(*words),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert code is None or done.returncode == code, done.stdout
        return done.stdout

    def apply(self, *, code: int | None = 0) -> str:
        return self.run("apply", "-auto-approve", code=code)

    def plan(self, *words: str, code: int = 2) -> str:
        """Returns the plan; by default it must have changes."""
        return self.run("plan", "-detailed-exitcode", *words, code=code)

    def interrupt_apply(self, once: Callable[[], bool]) -> str:
        """Interrupts an apply by Ctrl-C, as a terminal does, as soon as `once()` is true."""
        process = subprocess.Popen(
            self._command("apply", "-auto-approve"),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            while process.poll() is None and not once():
                time.sleep(0.1)
            os.killpg(process.pid, signal.SIGINT)
            output, _ = process.communicate(timeout=COMMAND_TIMEOUT_S)
            return output
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    def attributes(self, address: str) -> dict[str, Any]:
        """Returns a resource's attributes in the state; also its `status` if it is tainted."""
        kind, _, name = address.partition(".")
        state = json.loads((self.folder / "terraform.tfstate").read_text())
        for resource in state["resources"]:
            if (resource["type"], resource["name"]) == (kind, name):
                (instance,) = resource["instances"]
                more = {"status": instance["status"]} if "status" in instance else {}
                return {**instance["attributes"], **more}
        raise AssertionError(f"{address} is not in the state")

    @staticmethod
    def _command(*words: str) -> list[str]:
        return ["terraform", words[0], "-no-color", *words[1:]]


@pytest.fixture(scope="session")
def terraform() -> None:
    """Skips the test if terraform or the provider is missing."""
    if shutil.which("terraform") is None:
        pytest.skip("there is no terraform on the PATH")
    if not (VENV / "terraform.rc").exists():
        pytest.skip(f"there is no {VENV}; run `make terraform`")


@pytest.fixture
def workspace(terraform: None, tmp_path: Path) -> Callable[[str], Workspace]:
    def make(text: str) -> Workspace:
        folder = tmp_path / "hcl"
        folder.mkdir()
        made = Workspace(folder)
        made.write(text)
        made.run("init")
        return made

    return make
