"""The front listener, where producers see two brokers as one: all kinds of requests, and batches that lie.

They are for partitions of both brokers. An honest producer writes through the same front to the other broker.
"""

from __future__ import annotations

import random
import socket
from typing import Final

from fix_broker import RawClient
from fuzzing import fronts
from fuzzing.batches import records
from fuzzing.honest import LATENCY_MAX_MS
from fuzzing.target_frames import LOG_KEEPS, SEND_WAIT_MAX_S, read_answers, send
from fuzzing.world import World

CONNECTIONS: Final = 4
ROUNDS: Final = 40
HONEST_EXCHANGES_MIN: Final = 3


def run(world: World, rng: random.Random) -> list[str]:
    """Returns the last frames in hex."""
    pair = world.fronts()
    honest = pair.honest()
    host, _, port = pair.front.rpartition(":")
    sent: list[bytes] = []

    def connect() -> socket.socket:
        return socket.create_connection((host, int(port)), timeout=SEND_WAIT_MAX_S)

    connections = [connect() for _ in range(CONNECTIONS)]
    with RawClient(pair.front) as framer:  # it numbers requests; nothing is sent on it
        for _ in range(ROUNDS):
            for place, connection in enumerate(connections):
                frame = pair.maker.frame(rng) if rng.random() < 0.4 else _produce(framer, rng)
                sent = [*sent[1 - LOG_KEEPS :], frame]
                if not send(connection, frame):
                    connection.close()
                    connections[place] = connect()
    read_answers(connections)
    for connection in connections:
        connection.close()
    seen = honest.finish()
    assert seen.fault is None, f"the honest producer at the front: {seen.fault}"
    assert len(seen.latencies_s) >= HONEST_EXCHANGES_MIN, f"it made {len(seen.latencies_s)} exchanges"
    longest_ms = seen.percentile_ms(1)
    assert longest_ms <= LATENCY_MAX_MS, f"the honest producer at the front waited {longest_ms:.0f} ms"
    return [frame[:4096].hex() for frame in sent]


def _produce(framer: RawClient, rng: random.Random) -> bytes:
    partition = rng.choice((*range(fronts.PARTITIONS), 77, -1))
    version = rng.choice((3, 7, 9, 11))
    return framer.produce_frame(
        fronts.FUZZED, partition, records(rng), acks=rng.choice((0, 1, -1)), version=version
    )
