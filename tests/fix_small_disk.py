"""A broker of Terraform whose home is a small file system of its own, which tests fill to the last byte.

Owns `SmallDisk`. Fixture: `small_disk_site`, one for each file; skips tests that are not root's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from fix_days import free_site
from fix_mounts import small_file_system
from fix_site import ended_with_tests
from fix_terraform import ROOT, Workspace
from headrace.agent.local import ensure_agent
from headrace.agent.supervisor import Supervisor
from headrace.fleet import operate
from headrace.process.disk import space_of
from headrace.site.site import Site

SIZE_BYTES: Final = 96 << 20
RESERVE_BYTES: Final = 8 << 20
BROKER: Final = "east-broker-1"
COMMAND_MAX_S: Final = 120.0
_BLOCK_BYTES: Final = 4096


class SmallDisk:
    """The site's home on the small disk, and its HCL beside it."""

    def __init__(self, disk: Path, site: Site, workspace: Workspace) -> None:
        self.disk = disk
        self.site = site
        self.workspace = workspace
        self.bootstrap = str(site.datacenter("east").brokers[1])

    def apply(self) -> None:
        """Starts an agent, unless one runs, and makes what the HCL says."""
        with ensure_agent(self.site.home, self.site.agent_address):
            self.workspace.apply()

    @property
    def free_bytes(self) -> int:
        return space_of(self.disk).free_bytes

    def fill(self, *, leave_bytes: int) -> None:
        """Takes or gives back room by a file that belongs to nobody, until so much is left."""
        with (self.disk / "ballast").open("ab", buffering=0) as file:
            size_bytes = max(0, file.tell() + self.free_bytes - leave_bytes)
            file.truncate(min(size_bytes, file.tell()))
            try:
                while leave_bytes < self.free_bytes:
                    file.write(bytes(max(1, min(_BLOCK_BYTES * 64, self.free_bytes - leave_bytes))))
            except OSError:
                assert self.free_bytes == 0

    def make_room(self) -> None:
        (self.disk / "ballast").unlink(missing_ok=True)

    def headrace(self, *words: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        return subprocess.run(
            [sys.executable, "-m", "headrace.cli", *map(str, words)],
            env={**kept, "HEADRACE_HOME": str(self.site.home), "NO_COLOR": "1", "COLUMNS": "200"},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_MAX_S,
            check=False,
        )

    def make_down(self) -> subprocess.CompletedProcess[str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "MAKE"))
        }
        return subprocess.run(
            ["make", "--no-print-directory", "down", f"HEADRACE_HOME={self.site.home}"],
            cwd=ROOT,
            env=kept,
            capture_output=True,
            text=True,
            timeout=COMMAND_MAX_S,
            check=False,
        )

    def pids(self) -> dict[str, int]:
        return {name: state.pid for name, state in Supervisor(self.site.home).states().items()}


def _hcl(site: Site) -> str:
    east = site.datacenter("east")
    return f"""
provider "headrace" {{
  home = "{site.home}"
}}

resource "headrace_zookeeper" "this" {{
  host       = "local"
  name       = "east-zookeeper"
  datacenter = "east"
  listen     = "{east.zookeeper}"
}}

resource "headrace_broker" "this" {{
  host       = "local"
  name       = "{BROKER}"
  datacenter = "east"
  broker_id  = 1
  zookeeper  = headrace_zookeeper.this.listen
  listen     = "{east.brokers[1]}"
  settings   = {{ "headrace.disk.free.min.bytes" = "{RESERVE_BYTES}" }}
}}

output "datacenters" {{
  value = {{
    east = {{
      bootstrap_servers = [headrace_broker.this.listen]
      zookeeper         = headrace_zookeeper.this.listen
    }}
  }}
}}
"""


@pytest.fixture(scope="module")
def small_disk_site(terraform: None) -> Iterator[SmallDisk]:
    folder = Path(tempfile.mkdtemp(prefix="headrace-disk-"))
    disk, hcl = folder / "disk", folder / "hcl"
    hcl.mkdir()
    site = free_site(disk / "home")
    try:
        with small_file_system(disk, SIZE_BYTES), ended_with_tests(site):
            site.home.mkdir()
            workspace = Workspace(hcl)
            workspace.write(_hcl(site))
            workspace.run("init")
            try:
                yield SmallDisk(disk, site, workspace)
            finally:
                (disk / "ballast").unlink(missing_ok=True)
                operate.down(site)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
