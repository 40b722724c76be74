"""The end of sites that tests have made: nothing of them outlives it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fix_site import kill_site
from headrace.agent.processes import is_alive
from headrace.agent.supervisor import Supervisor
from headrace.site.site import Site


@pytest.mark.parametrize("lost", ["pid file", "home"])
def test_a_supervisord_that_nothing_on_disk_names_ends_with_its_site(tmp_path: Path, lost: str) -> None:
    """It may just be starting when its agent is killed, and write its pid file after that was looked for."""
    home = tmp_path / "home"
    supervisor = Supervisor(home)
    supervisor.ensure_daemon(())
    pid = int(supervisor.pid_path.read_text())
    if lost == "home":
        shutil.rmtree(home)
    else:
        supervisor.pid_path.unlink()
    assert is_alive(pid)
    kill_site(Site.one_machine(home))
    assert not is_alive(pid)
