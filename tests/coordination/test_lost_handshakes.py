"""A ZooKeeper that accepts a connection and never answers, as one that starts may: sessions outlive it."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from typing import Any, Self

import pytest

from fix_agent import eventually
from fix_zookeeper import ZooKeeperRoom
from headrace.coordination.attempts import SAID_AGAIN_AFTER_S, TEXTS_MAX, SaidOnce, make_client
from headrace.coordination.session import SessionState, ZooKeeperSession


class Relay:
    """Passes connections on to a server. `silent`: how many of the next ones it accepts and leaves alone."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.silent = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._open.append(near)
                if self.silent:
                    self.silent -= 1
                    continue
                far = socket.create_connection(("127.0.0.1", self._port))
                self._open.append(far)
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def drop(self) -> None:
        """Ends all connections."""
        connections, self._open = self._open, []
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._listener.close()
        self.drop()


@pytest.mark.parametrize(("hosts", "count"), [("a:1/chroot", 1), ("a:1,b:2", 2), ("a:1,b:2,c:3,d:4", 4)])
def test_few_servers_have_the_shares_of_three(hosts: str, count: int) -> None:
    servers = make_client(hosts).hosts
    assert len(list(iter(servers))) == count
    assert len(servers) == max(3, count)


def test_the_library_says_the_same_once_in_a_while() -> None:
    now_s = 0.0
    passes = SaidOnce(lambda: now_s).filter

    def says(text: str) -> bool:
        return bool(passes(logging.makeLogRecord({"msg": "Connection dropped: %s", "args": (text,)})))

    assert says("refused") and not says("refused")
    assert says("time-out"), "another text"
    now_s = SAID_AGAIN_AFTER_S - 0.1
    assert not says("refused")
    now_s = SAID_AGAIN_AFTER_S
    assert says("refused") and not says("refused")
    for number in range(3 * TEXTS_MAX):
        assert says(str(number)), "no text is kept for ever"


@pytest.mark.zookeeper
def test_a_connection_that_is_never_answered_does_not_cost_the_session(zookeeper: ZooKeeperRoom) -> None:
    server, _, chroot = zookeeper.hosts.partition("/")
    with (
        Relay(int(server.rpartition(":")[2])) as relay,
        ZooKeeperSession(f"{relay.address}/{chroot}", timeout_s=6.0) as session,
    ):
        session.create("/mine", ephemeral=True)
        before = session.session_id
        states: list[SessionState] = []
        session.on_state(states.append)
        relay.silent = 1
        relay.drop()
        eventually(lambda: SessionState.CONNECTED in states)
        assert relay.silent == 0
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
        assert session.session_id == before
        assert session.exists("/mine") is not None
