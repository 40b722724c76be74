"""A home that was copied, with what its processes left in it, does not touch the processes of the first one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace.agent.supervisor import Supervisor


def test_the_supervisord_of_a_path_that_ends_alike_lives_on(tmp_path: Path) -> None:
    """`cp -a /mnt/srv/site /srv/site`: the first start of the copy killed the supervisord of the original."""
    home = tmp_path / "site"
    home.mkdir()
    command = [sys.executable, "-c", "import time; time.sleep(600)", "-c", f"/mnt{home}/supervisord.conf"]
    other = subprocess.Popen(command)
    (home / "supervisord.pid").write_text(str(other.pid))
    supervisor = Supervisor(home)
    try:
        assert supervisor.ensure_daemon(())
        assert other.poll() is None
    finally:
        supervisor.shut_down()
        other.kill()
        other.wait()
