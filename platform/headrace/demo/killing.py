"""The broker that a run kills for good: which one, who takes over its partitions, and how soon.

Owns the choice, the kill and what is measured, in a thread of its own: the flow goes on meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from headrace.client import Admin
from headrace.client.cluster import TopicInfo
from headrace.client.errors import ClientError
from headrace.demo.plan import TOPIC, DemoPlan
from headrace.demo.screen import Screen
from headrace.fleet.killing import kill_for_good
from headrace.site.errors import SiteError

POLL_INTERVAL_S: Final = 0.02
CALL_TIMEOUT_MS: Final = 2_000.0
TAKEOVER_MAX_S: Final = 60.0
SHOWN_MAX: Final = 6
JOIN_MAX_S: Final = TAKEOVER_MAX_S + 30.0


class Led(NamedTuple):
    """A partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass
class Takeover:
    """Who leads a partition after the kill. Times in seconds since then; None: not seen.

    `written_s`: when a write that the new leader took was acknowledged by all its in-sync replicas.
    """

    leader: int
    led_s: float
    visible_address: int | None = None
    written_s: float | None = None


@dataclass
class Kill:
    """One kill. `takeovers`: of the partitions that the broker led."""

    broker: int
    pid: int
    takeovers: dict[Led, Takeover] = field(default_factory=dict)


def victim_of(topics: Mapping[str, TopicInfo]) -> tuple[int, list[Led]]:
    """Returns the broker that leads the first partition of the demo's topic, and all that it leads.

    Raises `SiteError` if one of those has no other in-sync replica.
    """
    broker = topics[TOPIC].partitions[0].leader
    led = [
        Led(name, partition)
        for name, topic in sorted(topics.items())
        for partition, info in sorted(topic.partitions.items())
        if info.leader == broker
    ]
    for each in led:
        info = topics[each.topic].partitions[each.partition]
        if len(info.isr) < 2:
            raise SiteError(
                f"nobody could take over {each} from broker {broker}: its replicas are "
                f"{list(info.replicas)}, and in sync are {list(info.isr)}. `headrace topics describe "
                f"{each.topic} -d DATACENTER` shows when that has changed; `make clean` removes old topics"
            )
    return broker, led


class Killing:
    """Kills a broker of the real-time datacenter once `at` events are `published`, inside a `with` block: its
    thread looks by itself, since the flow waits for Airflow at times, and events must come after the kill.
    """

    def __init__(self, plan: DemoPlan, at: int, published: Callable[[], int]) -> None:
        self._plan = plan
        self._datacenter = plan.real_time
        self._at = at
        self._published = published
        self._thread = threading.Thread(target=self._run, name="killing", daemon=True)
        self._is_flow_over = threading.Event()
        self._outcome: Kill | Exception | None = None
        self._is_printed = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Kills nothing from now on."""
        self._is_flow_over.set()

    def poll(self, screen: Screen) -> None:
        """Prints what became of the kill, once that is known. Raises `SiteError`."""
        if not self._thread.is_alive():
            self._tell(screen)

    def end(self, screen: Screen) -> None:
        """Waits for the end of what was begun, but not for a write: no more events come. Raises `SiteError`,
        also if nothing was killed.
        """
        self._is_flow_over.set()
        self._thread.join(JOIN_MAX_S)
        self._tell(screen)

    def _tell(self, screen: Screen) -> None:
        outcome = self._outcome
        if outcome is None:
            raise SiteError(f"no broker of {self._datacenter.name} was killed: the flow ended before")
        if isinstance(outcome, SiteError):
            raise outcome
        if isinstance(outcome, Exception):
            raise SiteError(f"killing a broker of {self._datacenter.name} failed: {outcome}") from outcome
        if not self._is_printed:
            self._is_printed = True
            for line in lines_of(outcome, self._datacenter.name):
                screen.print(line)

    # --- in the thread ---

    def _run(self) -> None:
        try:
            while self._published() < self._at:
                if self._is_flow_over.wait(POLL_INTERVAL_S):
                    return
            with Admin(self._datacenter.bootstrap, timeout_ms=CALL_TIMEOUT_MS) as admin:
                self._outcome = self._kill(admin)
        except Exception as error:
            self._outcome = error

    def _kill(self, admin: Admin) -> Kill:
        broker, led = victim_of(admin.topics())
        pid = kill_for_good(self._plan.site.home, f"{self._datacenter.name}-broker-{broker}")
        killed_s = time.monotonic()
        kill = Kill(broker, pid)
        written = [each for each in led if each.topic == TOPIC]
        while time.monotonic() - killed_s < TAKEOVER_MAX_S:
            _see_leaders(admin, kill, led, killed_s)
            for each in written:
                _see_write(admin, kill.takeovers.get(each), each, killed_s)
            if len(kill.takeovers) == len(led) and (
                self._is_flow_over.is_set() or all(kill.takeovers[each].written_s for each in written)
            ):
                return kill
            time.sleep(POLL_INTERVAL_S)
        if missing := [str(each) for each in led if each not in kill.takeovers]:
            raise SiteError(
                f"broker {broker} was killed, and nobody leads {', '.join(missing)} after "
                f"{TAKEOVER_MAX_S:.0f} s; see the log of the datacenter's controller"
            )
        return kill


def _see_leaders(admin: Admin, kill: Kill, led: Sequence[Led], killed_s: float) -> None:
    if len(kill.takeovers) == len(led):
        return
    try:
        topics = admin.topics()
    except ClientError:
        return  # asked of the dead broker
    for each in led:
        leader = topics[each.topic].partitions[each.partition].leader
        if each not in kill.takeovers and leader not in (-1, kill.broker):
            kill.takeovers[each] = Takeover(leader, time.monotonic() - killed_s)


def _see_write(admin: Admin, takeover: Takeover | None, led: Led, killed_s: float) -> None:
    """Looks at the end of what consumers see. A new leader tells it once it has reached all that its
    predecessor acknowledged; what is behind its first answer was acknowledged since.
    """
    if takeover is None or takeover.written_s is not None:
        return
    try:
        (end,) = admin.list_offsets(led.topic, partitions=[led.partition]).values()
    except ClientError:
        return
    if takeover.visible_address is None:
        takeover.visible_address = end.offset
    elif end.offset > takeover.visible_address:
        takeover.written_s = time.monotonic() - killed_s


def lines_of(kill: Kill, datacenter: str) -> list[str]:
    """Returns what the screen says of a kill."""
    # Those that were written to come first.
    takeovers = sorted(kill.takeovers.items(), key=lambda each: (each[1].written_s is None, each[0]))
    shown, left = takeovers[:SHOWN_MAX], takeovers[SHOWN_MAX:]
    led = ", ".join(str(partition) for partition, _ in shown) + (f" and {len(left)} more" if left else "")
    lines = [f"killed for good: broker {kill.broker} of {datacenter} (SIGKILL, process {kill.pid}) led {led}"]
    for partition, found in shown:
        line = f"{partition}: broker {found.leader} took over after {found.led_s:.1f} s"
        if found.written_s is not None:
            line += f", and acknowledged the first write after {found.written_s:.1f} s"
        lines.append(line)
    if left:
        lines.append(f"the others have new leaders after {max(found.led_s for _, found in left):.1f} s")
    return lines
