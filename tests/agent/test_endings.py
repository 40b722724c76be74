"""A broker is killed, and the agent ends its session with ZooKeeper: its partitions move at once."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from fix_broker import BrokerCluster, StartCluster
from fix_zookeeper import ZooKeeperRoom
from headrace.agent.endings import Endings
from headrace.coordination import znodes
from headrace.coordination.session_files import SESSION_FILE, LeftSession, read_session
from headrace.coordination.topics import TopicRegistry

WAIT_MAX_S = 60.0
SESSION_MS = 60_000  # so that nothing here happens by a timeout


def wait_for(condition: Callable[[], bool], timeout_s: float = WAIT_MAX_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


@pytest.fixture
def watching() -> Iterator[Callable[[list[Path]], Endings]]:
    ending = threading.Event()
    started: list[Endings] = []

    def start(folders: list[Path]) -> Endings:
        endings = Endings(lambda: folders, ending)
        endings.start()
        started.append(endings)
        return endings

    yield start
    ending.set()
    for endings in started:
        endings.join()


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


@pytest.fixture
def cluster(broker_cluster: StartCluster) -> BrokerCluster:
    return broker_cluster(count=2, config={"zookeeper.session.timeout.ms": str(SESSION_MS)})


def test_a_killed_brokers_partitions_move_long_before_its_session_times_out(
    cluster: BrokerCluster, watching: Callable[[list[Path]], Endings]
) -> None:
    file = cluster[1].data_dir / SESSION_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    watching([broker.data_dir for broker in cluster.brokers])
    with cluster.zookeeper.session() as session:
        registry = TopicRegistry(session)
        registry.create("t", uuid4(), {0: (1, 2)})
        wait_for(lambda: "t-0: open" in cluster[1].output())
        cluster[1].kill()
        killed_s = time.monotonic()
        wait_for(lambda: registry.get("t").partitions[0].leader == 2)
        print(f"a new leader {time.monotonic() - killed_s:.2f} s after SIGKILL")
        assert time.monotonic() - killed_s < SESSION_MS / 1000 / 4
        assert session.exists(znodes.broker(1)) is None
        wait_for(lambda: not file.exists())
        cluster[1].start()
        wait_for(file.exists)
        assert cluster[1].stop() == 0
        assert not file.exists(), "an orderly end leaves no session"


def test_a_broker_that_hangs_keeps_its_session(
    cluster: BrokerCluster, watching: Callable[[list[Path]], Endings]
) -> None:
    watching([cluster[1].data_dir])
    with cluster.zookeeper.session() as session:
        cluster[1].send_signal(signal.SIGSTOP)
        cluster[2].kill()  # not watched
        time.sleep(1.5)  # no condition to wait for: nothing must happen
        assert session.exists(znodes.broker(1)) is not None
        assert session.exists(znodes.broker(2)) is not None
        cluster[1].send_signal(signal.SIGCONT)


def test_a_successor_keeps_its_own_session(
    zookeeper: ZooKeeperRoom, tmp_path: Path, watching: Callable[[list[Path]], Endings]
) -> None:
    """The dead process's successor has written its own file before anybody looks."""
    dead = sleeper()
    with zookeeper.session() as session:
        session.create("/here", ephemeral=True)
        left = session.left_session()
        assert left is not None
        LeftSession(dead.pid, left.hosts, left.session_id + 1, left.password).write(tmp_path)
        watching([tmp_path])
        left.write(tmp_path)
        dead.kill()
        dead.wait()
        wait_for(lambda: read_session(tmp_path) == left)
        time.sleep(1.0)  # as above
        assert session.exists("/here") is not None and session.left_session() == left


def test_a_session_whose_process_is_dead_at_first_sight_is_ended(
    zookeeper: ZooKeeperRoom, tmp_path: Path, watching: Callable[[list[Path]], Endings]
) -> None:
    dead = sleeper()
    dead.kill()
    dead.wait()
    with zookeeper.session() as session, zookeeper.session() as other:
        session.create("/here", ephemeral=True)
        left = session.left_session()
        assert left is not None and left.pid == os.getpid()
        LeftSession(dead.pid, left.hosts, left.session_id, left.password).write(tmp_path)
        watching([tmp_path])
        wait_for(lambda: other.exists("/here") is None)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", json.dumps({"pid": 1, "hosts": "h", "session_id": 1, "password": "zz"})]
)
def test_a_file_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / SESSION_FILE).write_text(text)
    assert read_session(tmp_path) is None
    assert read_session(tmp_path / "nowhere") is None


def test_a_process_id_that_a_thread_has_by_now_is_of_a_process_that_has_ended(
    tmp_path: Path, watching: Callable[[list[Path]], Endings], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(LeftSession, "end", lambda self: ended.append(self.session_id))
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        LeftSession(thread.native_id, "127.0.0.1:1", 7, "00").write(tmp_path)
        watching([tmp_path])
        wait_for(lambda: ended == [7] and not (tmp_path / SESSION_FILE).exists(), 5.0)
    finally:
        is_over.set()
        thread.join()


def test_a_zookeeper_that_hangs_keeps_no_other_ones_session(
    tmp_path: Path, watching: Callable[[list[Path]], Endings], monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = sleeper()
    dead.kill()
    dead.wait()
    hangs, is_over = threading.Event(), threading.Event()
    asked: list[str] = []

    def end(left: LeftSession) -> None:
        asked.append(left.hosts)
        if left.hosts == "hangs:1":
            hangs.set()
            is_over.wait()

    monkeypatch.setattr(LeftSession, "end", end)
    folders = [tmp_path / hosts for hosts in ("hangs:1", "answers:1")]
    for folder in folders:
        folder.mkdir()
        LeftSession(dead.pid, folder.name, 7, "00").write(folder)
    watching(folders)
    try:
        wait_for(lambda: hangs.is_set() and read_session(folders[1]) is None, 5.0)
        assert sorted(asked) == ["answers:1", "hangs:1"], "each is asked once at a time"
        assert read_session(folders[0]) is not None
    finally:
        is_over.set()
    wait_for(lambda: read_session(folders[0]) is None)
