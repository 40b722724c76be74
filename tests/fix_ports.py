"""Ports for servers that tests start: from a range that this test process alone uses, below the kernel's
range for connections, so that no connection or other test process takes a port before its server does.
"""

import itertools
import os
import random
import socket
from collections.abc import Iterator

FIRST = 10_000
WORKERS_MAX = 6
PORTS_A_WORKER = 3_500


def _candidates() -> Iterator[int]:
    """The ports of this process's range again and again, starting at a random one."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = FIRST + worker % WORKERS_MAX * PORTS_A_WORKER
    start = random.SystemRandom().randrange(PORTS_A_WORKER)
    return (first + (start + step) % PORTS_A_WORKER for step in itertools.count())


_ports = _candidates()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that no process listens on now, and that is not returned again soon."""
    for port in itertools.islice(_ports, PORTS_A_WORKER):
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"all {PORTS_A_WORKER} ports for tests are taken on {host}")


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Several such ports, all different."""
    return [free_port(host) for _ in range(count)]
