"""The sockets of one broker of `fix_client`, on a thread of its own, and what may happen to a request."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.wire import messages
from headrace.wire.errors import ErrorCode, UnsupportedVersionError
from headrace.wire.frames import FrameReader

if TYPE_CHECKING:
    from fix_client import FakeCluster


@dataclass(frozen=True)
class Fault:
    """What happens to one request. By default it is served."""

    code: ErrorCode | None = None
    """The error code of every partition in the response."""
    appends: bool = True
    """Whether a Produce appends, even if its response is an error or lost."""
    answers: bool = True
    """False: the connection is closed instead of a response."""
    delay_s: float = 0.0
    raw: bytes | None = None
    """Sent instead of the response."""


LOSE_REQUEST = Fault(appends=False, answers=False)
LOSE_ANSWER = Fault(appends=True, answers=False)


def refuse(code: ErrorCode) -> Fault:
    return Fault(code=code, appends=False)


class FakeBroker:
    """One listening address; `stop` closes it and its connections, `start` opens the same port again."""

    def __init__(self, cluster: FakeCluster, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.host = "127.0.0.1"
        self.port = 0
        self._selector = selectors.DefaultSelector()
        self._commands, self._wake = socket.socketpair()
        self._selector.register(self._commands, selectors.EVENT_READ, None)
        self._listener: socket.socket | None = None
        self._connections: dict[socket.socket, FrameReader] = {}
        self._later: list[tuple[float, socket.socket, bytes]] = []
        self._wanted = "stop"
        self._settled = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"fake-broker-{broker_id}", daemon=True)
        self._thread.start()
        self.start()

    def start(self) -> None:
        self._command("start")

    def stop(self) -> None:
        self._command("stop")

    def end(self) -> None:
        self._command("end")
        self._thread.join(5)
        self._commands.close()
        self._wake.close()

    def _command(self, what: str) -> None:
        with self._settled:
            self._wanted = what
            self._wake.send(b"x")
            assert self._settled.wait_for(lambda: self._wanted == "", 5)

    def _run(self) -> None:
        while True:
            timeout = max(0.0, min((at for at, _, _ in self._later), default=1e9) - time.monotonic())
            for key, _ in self._selector.select(min(timeout, 60)):
                if key.fileobj is self._commands:
                    if self._obey():
                        return
                elif key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._connections:
                    self._receive(key.fileobj)
            now = time.monotonic()
            due = [entry for entry in self._later if entry[0] <= now]
            self._later = [entry for entry in self._later if entry[0] > now]
            for _, connection, data in due:
                self._send(connection, data)

    def _obey(self) -> bool:
        self._commands.recv(1)
        with self._settled:
            wanted, self._wanted = self._wanted, ""
            if wanted == "start" and self._listener is None:
                self._listener = socket.create_server((self.host, self.port))
                self.port = self._listener.getsockname()[1]
                self._selector.register(self._listener, selectors.EVENT_READ)
            if wanted in ("stop", "end"):
                for connection in list(self._connections):
                    self._close(connection)
            if wanted in ("stop", "end") and self._listener is not None:
                self._selector.unregister(self._listener)
                self._listener.close()
                self._listener = None
            if wanted == "end":
                self._selector.close()
            self._settled.notify_all()
            return wanted == "end"

    def _accept(self) -> None:
        assert self._listener is not None
        connection, _ = self._listener.accept()
        self._connections[connection] = FrameReader()
        self._selector.register(connection, selectors.EVENT_READ)

    def _close(self, connection: socket.socket) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._selector.unregister(connection)
            self._later = [entry for entry in self._later if entry[1] is not connection]
            connection.close()

    def _receive(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        reader = self._connections[connection]
        reader.feed(data)
        for frame in reader:
            if connection not in self._connections:
                return
            self._answer(connection, frame)

    def _answer(self, connection: socket.socket, frame: memoryview) -> None:
        try:
            request = messages.decode_request(frame)
        except UnsupportedVersionError as error:
            ranges = [(key, low, high) for key, (low, high) in self.cluster.versions.items()]
            self._send(connection, messages.unsupported_api_versions_response(error.correlation_id, ranges))
            return
        with self.cluster.lock:
            self.cluster.requests.append((self.broker_id, request))
            script = self.cluster.script[request.api_key]
            fault = script.popleft() if script else Fault()
            answer = self.cluster.handle(self, request, fault)
        if not fault.answers:
            self._close(connection)
        elif fault.raw is not None:
            self._send(connection, fault.raw)
        elif answer is not None:
            held = any(entry[1] is connection for entry in self._later)
            delay_s = fault.delay_s + self.cluster.delays_s.pop(id(request), 0.0)
            if delay_s or held:
                last_s = max((at for at, c, _ in self._later if c is connection), default=0.0)
                self._later.append((max(last_s, time.monotonic() + delay_s), connection, answer))
            else:
                self._send(connection, answer)

    def _send(self, connection: socket.socket, data: bytes) -> None:
        if connection in self._connections:
            try:
                connection.sendall(data)
            except OSError:
                self._close(connection)
