"""A home that was copied, with what its processes left in it, leaves the processes of the first one alone."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from fix_zookeeper import ZooKeeperRoom
from headrace.agent.endings import Endings
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


def test_the_session_of_a_broker_of_another_host_goes_on(zookeeper: ZooKeeperRoom, tmp_path: Path) -> None:
    """A data directory that was copied while its broker ran: no process here has the broker's number, so it
    was taken for dead, and the agent of the copy ended the session of a broker that served."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with zookeeper.session() as session:
        session.create("/here", ephemeral=True)
        left = session.left_session()
        assert left is not None
        replace(left, pid=ended.pid, boot="another host's").write(tmp_path)
        ending = threading.Event()
        endings = Endings(lambda: [tmp_path], ending)
        endings.start()
        time.sleep(1.5)  # no condition to wait for: nothing must happen
        ending.set()
        endings.join()
        assert session.exists("/here") is not None
        assert session.left_session() == left
