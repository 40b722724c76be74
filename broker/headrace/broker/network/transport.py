"""One client's socket: moves its bytes to the sans-IO core, and the core's responses back.

Owns reading, sending and closing of one connection. Knows nothing of requests. `connections` has what all
connections share.
"""

from __future__ import annotations

import fcntl
import logging
import select
import socket
import struct
import termios
from typing import Final

from headrace.broker.core import SLOW_REQUESTS_PER_TURN_MAX, ClientConnection, Service
from headrace.broker.loop import READABLE, WRITABLE
from headrace.broker.network.connections import RECEIVED_PER_WAKEUP_MAX_BYTES, Connections
from headrace.broker.network.receiving import Progress
from headrace.broker.network.sending import memory_bytes, send_some
from headrace.broker.network.socket_errors import problem_of
from headrace.wire.errors import WireError

READ_BYTES_PER_WAKEUP: Final = 4 * 1024 * 1024  # of one connection, so that others are served too
SEND_BYTES_PER_WAKEUP: Final = 8 * 1024 * 1024
ROOM_FROM_BYTES: Final = 8 * 1024  # frames that take less have no room that others wait for
ENDING_MAX_S: Final = 5.0  # for the last responses of a client that sends nothing more

FAILED: Final = select.EPOLLERR | select.EPOLLHUP
NOTHING_FOLLOWS: Final = select.EPOLLRDHUP

_INT: Final = struct.Struct("i")


class Transport:
    """One client's socket around its sans-IO core."""

    __slots__ = (
        "_connections",
        "_events",
        "_fd",
        "_input_ended",
        "_is_deferred",
        "_nothing_follows",
        "_output_ends",
        "_progress",
        "_reserved_bytes",
        "_rest_bytes",
        "_sent_s",
        "_socket",
        "_unsent_bytes",
        "active_s",
        "core",
        "ip",
    )

    def __init__(
        self, connections: Connections, client: socket.socket, ip: str, peer: str, service: Service
    ) -> None:
        client.setblocking(False)
        self._connections = connections
        self._socket = client
        self._fd = client.fileno()
        self.ip = ip
        self._events = READABLE
        self._reserved_bytes = 0
        self._rest_bytes = 0  # received, but not served yet
        self._progress = Progress()
        self._unsent_bytes = -1  # memory of responses that the socket does not accept; -1: there are none
        self._sent_s = 0.0  # when it last accepted some of them
        self._nothing_follows = False  # the client sends no further bytes than those the kernel has
        self._input_ended = False  # all that it sent is served: closed after the last response
        self._output_ends = False  # this broker sends nothing after the responses known now
        self._is_deferred = False  # not read until its next turn
        self.active_s = connections.clock_s()
        self.core = ClientConnection(
            service,
            peer=peer,
            frame_limit_bytes=connections.limits.frame_limit_bytes,
            on_output=self._on_output,
            on_abort=self.close,
            buffers=connections.buffers,
        )
        connections.loop.register(self._fd, self)
        connections.by_fd[self._fd] = self

    def __str__(self) -> str:
        return self.core.peer

    @property
    def is_busy(self) -> bool:
        return bool(self.core.slots)

    @property
    def is_open(self) -> bool:
        return not self.core.closed

    @property
    def taken_bytes(self) -> int:
        return self._reserved_bytes

    def _on_output(self, _: ClientConnection) -> None:
        self._connections.with_output[self] = None

    # --- receiving ---

    def on_ready(self, events: int) -> None:
        if events & WRITABLE:
            self._connections.with_output[self] = None
        if events & READABLE:
            if not self._connections.serves:
                self._discard()
            elif self._connections.received_bytes >= RECEIVED_PER_WAKEUP_MAX_BYTES:
                self._defer()
            elif not self._is_deferred:
                self._read()
        elif events & FAILED:
            self.close("")
        elif events & NOTHING_FOLLOWS:
            self._see_end()

    def on_failure(self) -> None:
        self.close("internal error", "error")

    def _discard(self) -> None:
        """Reads and drops requests, since the broker stops: clients send them to another broker."""
        self.active_s = self._connections.clock_s()
        budget = READ_BYTES_PER_WAKEUP
        try:
            while budget > 0:
                count = self._socket.recv_into(self._connections.scratch)
                if not count:
                    self.close("")
                    return
                budget -= count
        except BlockingIOError:
            return
        except OSError as error:
            self.close(problem_of(error))

    def _defer(self) -> None:
        self._is_deferred = True
        self._connections.defer(self)

    def take_turn(self) -> None:
        """Serves what waits since the last turn, and what has arrived since."""
        self._is_deferred = False
        if self._nothing_follows:
            self.send()  # it fails if the client is gone: then the rest is served for nobody
        if self._connections.serves and not (self.core.closed or self._input_ended):
            self._read()

    def _read(self) -> None:
        core = self.core
        self.active_s = self._connections.clock_s()
        try:
            if self._receive(core):
                return
        except BlockingIOError:
            return
        except WireError as error:
            self.close(f"{type(error).__name__}: {error}", "invalid")
            return
        except OSError as error:
            self.close(problem_of(error))
            return
        self.update_interest()

    def _receive(self, core: ClientConnection) -> bool:
        """Receives and serves for one turn; True if the socket has nothing more. Raises `WireError`,
        `OSError`.
        """
        connections = self._connections
        bound = connections.bound
        budget = READ_BYTES_PER_WAKEUP
        if core.must_pause:
            return False
        core.turn_left = 1 if self._nothing_follows else SLOW_REQUESTS_PER_TURN_MAX
        if core.rest is not None:
            core.resume()
            self._account()
            if core.rest is not None or core.must_pause:
                return False
        # What was received is served in the next turn if this one is over: then nothing may be received.
        while budget > 0 and core.turn_left > 0 and not core.closed:
            target = core.wanted()
            if target is None:
                is_full = bound.reserved_bytes >= bound.max_bytes
                buffer = connections.scratch_small if is_full else connections.scratch
            elif not core.grows:
                buffer = target
            else:
                filled = core.partial_filled_bytes
                buffer = target[: bound.allowance(self, filled + len(target), filled)]
                if not buffer:
                    return False
            count = self._socket.recv_into(buffer)
            if not count:
                self._end_input()
                return True
            budget -= count
            connections.received_bytes += count
            if target is None:
                core.receive(buffer[:count])
            else:
                core.filled(count)
            self._account()
            if count < len(buffer) and core.turn_left > 0 and core.rest is None:
                return True
            if core.must_pause:
                return False
        return False

    def feed(self) -> None:
        """Reads again, after others' frames left room."""
        now_s = self._connections.clock_s()
        self.restart_clocks(now_s)
        self.update_interest()

    def _account(self) -> None:
        """Counts what was received, and is not served, against the bound that all connections share."""
        rest_bytes = self.core.rest_bytes
        if rest_bytes != self._rest_bytes:
            self._connections.bound.keep(rest_bytes - self._rest_bytes)
            self._rest_bytes = rest_bytes
        now_bytes = self.core.partial_bytes
        before_bytes = self._reserved_bytes
        if now_bytes == before_bytes:
            return
        self._reserved_bytes = now_bytes
        if not before_bytes:
            self._progress.begin(self.active_s, 0)
            self._connections.watch_deadlines()
        self._connections.bound.account(self, before_bytes, now_bytes)

    def _see_end(self) -> None:
        """The client sends nothing more, while its socket is not read. What it has sent is still served, if
        it is complete.
        """
        self._nothing_follows = True
        wanted = self.core.wanted()
        if wanted is not None and self._waiting_in_kernel() < len(wanted):
            self._end_input()
            return
        self.core.end_waiting()
        self.update_interest()

    def _waiting_in_kernel(self) -> int:
        found = fcntl.ioctl(self._fd, termios.FIONREAD, _INT.pack(0))
        size_bytes: int = _INT.unpack(found)[0]
        return size_bytes

    def _end_input(self) -> None:
        """Closes the connection, after the responses that are pending: the client may only have shut down its
        side. Requests that wait respond at once.
        """
        core = self.core
        core.drop_input()
        self._account()
        if not core.slots and not core.outgoing:
            self.close("")
            return
        self._input_ended = True
        self._connections.input_ended[self] = None
        self._sent_s = self._connections.clock_s()
        self._connections.watch_deadlines()
        core.end_waiting()
        self._connections.with_output[self] = None
        self.update_interest()

    # --- sending ---

    def send(self) -> int:
        """Sends as much as the socket accepts, then waits until it accepts more; returns how much it was."""
        core = self.core
        if core.closed:
            return 0
        core.release_responses()
        if core.queued_bytes or self._rest_bytes:
            self._account()  # some of it may be served by now
        budget = SEND_BYTES_PER_WAKEUP
        try:
            while core.outgoing and budget > 0:
                sent = send_some(self._socket, core.outgoing)
                core.outgoing_bytes -= sent
                budget -= sent
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(problem_of(error))
            return 0
        self.active_s = self._connections.clock_s()
        sent_bytes = SEND_BYTES_PER_WAKEUP - budget
        if core.outgoing or self._unsent_bytes >= 0:
            self._account_unsent(sent_bytes)
        self.update_interest()
        if (self._input_ended or self._output_ends) and not (core.outgoing or core.closed):
            if self._output_ends:
                self._shut_down()
            elif not core.slots:
                self.close("")
        return sent_bytes

    def _account_unsent(self, sent_bytes: int) -> None:
        before_bytes = self._unsent_bytes
        self._unsent_bytes = memory_bytes(self.core.outgoing) if self.core.outgoing else -1
        if sent_bytes or before_bytes < 0:
            self._sent_s = self.active_s
        self._connections.account_unsent(self, before_bytes, self._unsent_bytes)

    def end(self) -> None:
        """Shuts the connection down once the responses known now are sent."""
        self._output_ends = True
        self.send()

    def _shut_down(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            self.close(problem_of(error))

    def update_interest(self) -> None:
        """Watches for reading unless the connection must pause, for writing if responses wait."""
        core = self.core
        if core.closed:
            return
        connections = self._connections
        events = READABLE
        if self._input_ended:
            events = 0
        elif connections.serves:
            starved = connections.bound.starved
            if core.must_pause or (starved and self in starved):
                events = 0 if self._nothing_follows else NOTHING_FOLLOWS
            elif core.turn_left <= 0 or core.rest is not None:
                self._defer()
        if core.outgoing:
            events |= WRITABLE
        if events != self._events:
            self._events = events
            connections.loop.modify(self._fd, events)

    # --- deadlines ---

    def restart_clocks(self, now_s: float) -> None:
        self._sent_s = now_s
        self._progress.begin(now_s, self.core.partial_filled_bytes)

    def check_receiving(self, now_s: float, *, others_wait: bool) -> None:
        """Closes the connection if its frame arrives too slowly. `others_wait`: for its room."""
        is_read = bool(self._events & READABLE) and not self._is_deferred
        problem = self._progress.problem(
            now_s,
            self.core.partial_filled_bytes,
            self._connections.limits,
            is_read=is_read,
            others_wait=others_wait and self._reserved_bytes > ROOM_FROM_BYTES,
        )
        if problem:
            taken_bytes = self._reserved_bytes
            self.close(f"{problem} (it takes {taken_bytes} bytes of queued.max.request.bytes)", "slow")

    def check_sending(self, now_s: float) -> None:
        """Closes the connection if its client does not take its responses."""
        if self._input_ended:
            if now_s - self._sent_s >= ENDING_MAX_S:
                self.close("")
            return
        stalled_s = now_s - self._sent_s
        if self._unsent_bytes >= 0 and stalled_s >= self._connections.limits.send_stall_max_s:
            self.close(
                f"its client reads no responses since {stalled_s:.0f} s "
                f"(headrace.response.send.stall.ms), {self.core.outgoing_bytes} bytes wait",
                "unread",
            )

    # --- the end ---

    def close(self, problem: str, cause: str = "") -> None:
        """Ends the connection; a problem is logged, and counted by its cause."""
        core = self.core
        if core.closed:
            return
        connections = self._connections
        if problem:
            connections.closed[cause or "failed"] += 1
            connections.lines.log("closed", logging.INFO, "%s: connection closed: %s", core.peer, problem)
        core.close()
        connections.loop.unregister(self._fd)
        connections.forget(self, self._fd)
        connections.account_unsent(self, self._unsent_bytes, -1)
        self._unsent_bytes = -1
        connections.admission.leave(self.ip)
        self._socket.close()
        self._account()
