"""The kinds of faults. Each is a context: entering it injects the fault, leaving it heals.

A kind yields what it did, for the line that a person reads. What it hits comes from the fault's own numbers
and from who leads now, so a seed repeats the schedule; it cannot repeat the machine's timing.
"""

from __future__ import annotations

import errno
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final

from confluent_kafka import KafkaException
from faults.cluster import Broker, Cluster, FaultsError
from faults.place import CLIENTS, ZOOKEEPER, broker_host
from faults.schedule import Fault

CLOCK_JUMP_MAX_S: Final = 2 * 86_400
SLOW_FSYNC_US: Final = 400_000
PROBES: Final = 5
Kind = Callable[[Cluster, Fault], AbstractContextManager[str]]


def target(cluster: Cluster, fault: Fault) -> Broker:
    """Returns the leader of the fault's partition, or the broker of its number where there is none."""
    leader = cluster.leaders().get(fault.partition, -1)
    numbers = {broker.number: broker for broker in cluster.brokers}
    return numbers.get(leader, cluster.brokers[fault.partition % len(cluster.brokers)])


def _start(cluster: Cluster, *brokers: Broker) -> None:
    for broker in brokers:
        cluster.start_broker(broker)
    for broker in brokers:
        broker.wait_until_ready()


def _power_cut(fault: Fault, *brokers: Broker) -> int:
    """Kills the brokers with their hosts' agents, and takes from their disks what no fsync has covered;
    returns how many bytes.
    """
    for broker in brokers:
        broker.end_agent()
    for broker in brokers:
        broker.send_signal(signal.SIGKILL)
    for broker in brokers:
        broker.kill()
    choose = random.Random(fault.seed)
    return sum(broker.disk.cut_unsynced(choose) for broker in brokers)


# --- processes ---


@contextmanager
def kill(cluster: Cluster, fault: Fault) -> Iterator[str]:
    broker = target(cluster, fault)
    broker.kill()
    yield f"SIGKILL to broker {broker.number}"
    _start(cluster, broker)


@contextmanager
def power_cut(cluster: Cluster, fault: Fault) -> Iterator[str]:
    broker = target(cluster, fault)
    lost_bytes = _power_cut(fault, broker)
    yield f"SIGKILL to broker {broker.number}, {lost_bytes} bytes without fsync cut off"
    _start(cluster, broker)


@contextmanager
def power_cut_two(cluster: Cluster, fault: Fault) -> Iterator[str]:
    first = target(cluster, fault)
    others = [broker for broker in cluster.brokers if broker is not first]
    hit = [first, *random.Random(fault.seed).sample(others, min(1, len(others)))]
    lost_bytes = _power_cut(fault, *hit)
    names = " and ".join(str(broker.number) for broker in hit)
    yield f"SIGKILL to brokers {names}, {lost_bytes} bytes without fsync cut off"
    _start(cluster, *hit)


@contextmanager
def power_cut_all(cluster: Cluster, fault: Fault) -> Iterator[str]:
    lost_bytes = _power_cut(fault, *cluster.brokers)
    yield f"SIGKILL to all brokers, {lost_bytes} bytes without fsync cut off"
    _start(cluster, *cluster.brokers)


@contextmanager
def restart(cluster: Cluster, fault: Fault) -> Iterator[str]:
    broker = target(cluster, fault)
    broker.stop()
    yield f"SIGTERM to broker {broker.number}"
    _start(cluster, broker)


@contextmanager
def pause(cluster: Cluster, fault: Fault) -> Iterator[str]:
    broker = target(cluster, fault)
    broker.send_signal(signal.SIGSTOP)
    yield f"SIGSTOP to broker {broker.number} for {fault.duration_s:.1f} s"
    broker.send_signal(signal.SIGCONT)


# --- coordination ---


@contextmanager
def zookeeper_kill(cluster: Cluster, fault: Fault) -> Iterator[str]:
    cluster.zookeeper.kill()
    yield f"SIGKILL to ZooKeeper for {fault.duration_s:.1f} s"
    cluster.zookeeper.start()


@contextmanager
def zookeeper_pause(cluster: Cluster, fault: Fault) -> Iterator[str]:
    cluster.zookeeper.pause()
    yield f"SIGSTOP to ZooKeeper for {fault.duration_s:.1f} s"
    cluster.zookeeper.resume()


# --- disk, clock, descriptors ---


@contextmanager
def _ordered(broker: Broker, what: str, **changes: int) -> Iterator[str]:
    broker.disk.order(**changes)
    try:
        yield what
    finally:
        broker.disk.order()


@contextmanager
def fsync_fails(cluster: Cluster, fault: Fault) -> Iterator[str]:
    broker = target(cluster, fault)
    with _ordered(broker, f"each fsync of broker {broker.number} fails", fsync_errno=errno.EIO) as what:
        yield what


@contextmanager
def fsync_slow(cluster: Cluster, fault: Fault) -> Iterator[str]:
    broker = target(cluster, fault)
    what = f"each fsync of broker {broker.number} takes {SLOW_FSYNC_US / 1000:.0f} ms"
    with _ordered(broker, what, fsync_delay_us=SLOW_FSYNC_US) as what:
        yield what


@contextmanager
def disk_full(cluster: Cluster, fault: Fault) -> Iterator[str]:
    broker = target(cluster, fault)
    if broker.small_disk is None:
        what = f"each write of broker {broker.number} says that its disk is full"
        with _ordered(broker, what, write_errno=errno.ENOSPC) as what:
            yield what
        return
    broker.small_disk.fill()
    try:
        yield f"the disk of broker {broker.number} is full"
    finally:
        broker.small_disk.heal()


@contextmanager
def clock(cluster: Cluster, fault: Fault) -> Iterator[str]:
    broker = target(cluster, fault)
    jump_s = random.Random(fault.seed).randint(-CLOCK_JUMP_MAX_S, CLOCK_JUMP_MAX_S)
    what = f"the clock of broker {broker.number} jumps by {jump_s / 3600:+.1f} h, and back"
    with _ordered(broker, what, ahead_ns=jump_s * 1_000_000_000) as what:
        yield what


@contextmanager
def descriptors(cluster: Cluster, fault: Fault) -> Iterator[str]:
    broker = target(cluster, fault)
    limits = broker.exhaust_descriptors()
    try:
        for _ in range(PROBES):
            # Each is a connection that the broker cannot take.
            with suppress(KafkaException):
                cluster.probe(broker)
        yield f"broker {broker.number} has no file descriptor left"
    finally:
        broker.restore_descriptors(limits)


# --- the network ---


@contextmanager
def _cut(cluster: Cluster, links: list[tuple[str, str]], what: str) -> Iterator[str]:
    for source, goal in links:
        cluster.place.cut(source, goal)
    try:
        yield what
    finally:
        cluster.place.heal()


@contextmanager
def isolated(cluster: Cluster, fault: Fault) -> Iterator[str]:
    """Nothing reaches the broker, and nothing comes from it."""
    broker = target(cluster, fault)
    here = broker_host(broker.number)
    others = [broker_host(other.number) for other in cluster.brokers if other is not broker]
    links = [(here, other) for other in (*others, ZOOKEEPER, CLIENTS)]
    links += [(other, here) for other in (*others, CLIENTS)]
    with _cut(cluster, links, f"broker {broker.number} is cut off from all others") as what:
        yield what


@contextmanager
def without_zookeeper(cluster: Cluster, fault: Fault) -> Iterator[str]:
    """The leader that does not hear that it is none any more, and that its clients still reach."""
    broker = target(cluster, fault)
    links = [(broker_host(broker.number), ZOOKEEPER)]
    with _cut(cluster, links, f"broker {broker.number} is cut off from ZooKeeper alone") as what:
        yield what


@contextmanager
def between_brokers(cluster: Cluster, fault: Fault) -> Iterator[str]:
    """Followers cannot fetch, and ZooKeeper takes everybody for alive."""
    broker = target(cluster, fault)
    here = broker_host(broker.number)
    others = [broker_host(other.number) for other in cluster.brokers if other is not broker]
    links = [link for other in others for link in ((here, other), (other, here))]
    with _cut(cluster, links, f"broker {broker.number} is cut off from the other brokers") as what:
        yield what


@contextmanager
def one_way(cluster: Cluster, fault: Fault) -> Iterator[str]:
    broker = target(cluster, fault)
    here = broker_host(broker.number)
    others = [broker_host(other.number) for other in cluster.brokers if other is not broker]
    if random.Random(fault.seed).random() < 0.5:
        links = [(here, other) for other in others]
        text = f"nothing from broker {broker.number} reaches the other brokers"
    else:
        links = [(other, here) for other in others]
        text = f"nothing from the other brokers reaches broker {broker.number}"
    with _cut(cluster, links, text) as what:
        yield what


PROCESS_KINDS: Final[dict[str, Kind]] = {
    "kill": kill,
    "power-cut": power_cut,
    "power-cut-two": power_cut_two,
    "power-cut-all": power_cut_all,
    "restart": restart,
    "pause": pause,
    "zookeeper-kill": zookeeper_kill,
    "zookeeper-pause": zookeeper_pause,
    "fsync-fails": fsync_fails,
    "fsync-slow": fsync_slow,
    "disk-full": disk_full,
    "clock": clock,
    "descriptors": descriptors,
}
NETWORK_KINDS: Final[dict[str, Kind]] = {
    "isolated": isolated,
    "without-zookeeper": without_zookeeper,
    "between-brokers": between_brokers,
    "one-way": one_way,
}
KINDS: Final = {**PROCESS_KINDS, **NETWORK_KINDS}


def inject(cluster: Cluster, fault: Fault) -> AbstractContextManager[str]:
    """Returns the fault's context. Raises `FaultsError` for a kind that nobody knows."""
    if fault.kind not in KINDS:
        raise FaultsError(f"there is no fault {fault.kind!r}; there are {', '.join(KINDS)}")
    return KINDS[fault.kind](cluster, fault)
