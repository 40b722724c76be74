"""Documents in ZooKeeper that somebody wrote wrongly: brokers live with them until they are right again."""

from __future__ import annotations

import random
import time
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError

from fuzzing import audited, honest, sessions
from fuzzing.values import integer, mutate
from fuzzing.world import RECORDS_TOPIC, World

CHANGES: Final = 12
READ_PAUSE_S: Final = 0.2
"""Watches fire within it."""
NODES_MAX: Final = 5_000
HONEST_TOPICS: Final = (honest.TOPIC, sessions.TOPIC, audited.TOPIC, RECORDS_TOPIC)


def run(world: World, rng: random.Random) -> list[str]:
    """Returns the last changes."""
    client = KazooClient(world.zookeeper_hosts)
    client.start(timeout=20)
    log: list[str] = []
    try:
        nodes = [path for path in _nodes(client, "") if _is_free(client, path)]
        for _ in range(CHANGES):
            path = rng.choice(nodes)
            try:
                old, _ = client.get(path)
                new = _damage(rng, old)
                client.set(path, new)
                log.append(f"{path}: {old[:300]!r} -> {new[:300]!r}")
                time.sleep(READ_PAUSE_S)
                client.set(path, old)
            except (NoNodeError, KazooException):
                continue
            strange = f"{path}/{rng.choice(('x', '-1', '99999999999', 'a b', '%00'))}"
            if rng.random() < 0.3 and not client.exists(strange):
                client.create(strange, rng.randbytes(5))
                log.append(f"created {strange}")
                time.sleep(READ_PAUSE_S)
                client.delete(strange, recursive=True)
    except KazooException as error:
        log.append(repr(error))
    finally:
        client.stop()
        client.close()
    return log[-10:]


def _nodes(client: KazooClient, path: str) -> list[str]:
    found = [path] if path else []
    for name in client.get_children(path or "/"):
        if len(found) < NODES_MAX:
            found += _nodes(client, f"{path}/{name}")
    return found


def _is_free(client: KazooClient, path: str) -> bool:
    """Whether it is neither an honest topic's nor a broker's registration: nobody is served without."""
    stat = client.exists(path)
    return stat is not None and stat.ephemeralOwner == 0 and not any(topic in path for topic in HONEST_TOPICS)


def _damage(rng: random.Random, data: bytes) -> bytes:
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice((b"", b"{}", b"[]", b"null", b"\xff\xfe", b"{" * 2_000, b'{"version": 99}'))
    if kind == 1:
        return b"x" * 500_000
    if kind == 2:
        digits = [at for at, byte in enumerate(data) if 48 <= byte <= 57]
        if digits:
            at = rng.choice(digits)
            return data[:at] + str(integer(rng, 64)).encode() + data[at + 1 :]
    return mutate(rng, data, (b'"', b"null", b"-1", b"\n"))
