"""Readiness: whether a unit serves, checked over its own protocol.

Owns the probes of all kinds but Airflow. `Probe.check()` sends a request; it returns None if the unit is
ready, else the problem in a few words. Probes never raise, and `PROBE_TIMEOUT_S` bounds each wait; Airflow's
have a bound of their own.
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import httpx

from headrace.postgresql.place import DATABASE, ROLE
from headrace.site.addresses import Address

PROBE_TIMEOUT_S: Final = 3.0
BROKER_ANSWER_MIN_S: Final = 1.0
"""What a broker has for its answer if connecting to it, or starting its client, has taken longer."""
RESPONSE_MAX_BYTES: Final = 64 << 10


class Probe(Protocol):
    def check(self) -> str | None: ...


@dataclass(frozen=True)
class ZooKeeperProbe:
    """Sends `srvr`, a four-letter command to which a server responds once it serves."""

    address: Address

    def check(self) -> str | None:
        try:
            with socket.create_connection(self.address, timeout=PROBE_TIMEOUT_S) as connection:
                connection.sendall(b"srvr")
                response = b""
                while len(response) < RESPONSE_MAX_BYTES and (data := connection.recv(4096)):
                    response += data
        except (OSError, UnicodeError) as error:
            return f"{self.address} {_problem_of(error)}"
        if b"Mode:" in response:
            return None
        return f"ZooKeeper at {self.address} answered {response[:80].decode(errors='replace').strip()!r}"


@dataclass(frozen=True)
class BrokerProbe:
    """Sends DescribeCluster; the broker must respond and list itself."""

    address: Address
    broker_id: int

    def check(self) -> str | None:
        until_s = time.monotonic() + PROBE_TIMEOUT_S
        try:
            # While a broker starts, connections are refused; a client would retry.
            with socket.create_connection(self.address, timeout=PROBE_TIMEOUT_S):
                pass
        except (OSError, UnicodeError) as error:
            return f"{self.address} {_problem_of(error)}"
        # Imported here because it takes half a second, and only probes of brokers need it.
        from headrace.client.admin import Admin
        from headrace.client.errors import ClientError
        from headrace.wire.errors import WireError

        left_ms = 1000 * max(BROKER_ANSWER_MIN_S, until_s - time.monotonic())
        try:
            with Admin(str(self.address), timeout_ms=left_ms) as admin:
                cluster = admin.describe_cluster()
        except OSError as error:
            return f"{self.address} {_problem_of(error)}"
        except (ClientError, WireError) as error:
            return f"broker {self.broker_id} at {self.address}: {error}"
        if self.broker_id in cluster.brokers:
            return None
        return f"broker {self.broker_id} responds at {self.address} but is not registered in ZooKeeper yet"


@dataclass(frozen=True)
class PostgresqlProbe:
    """Begins a session as Airflow does, over the Unix socket; the server must be ready for queries."""

    path: Path

    def check(self) -> str | None:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(PROBE_TIMEOUT_S)
                connection.connect(str(self.path))
                connection.sendall(_postgresql_startup())
                with connection.makefile("rb") as answers:
                    problem = _postgresql_problem(answers)
                connection.sendall(_POSTGRESQL_GOODBYE)
        except OSError as error:
            return f"PostgreSQL at {self.path} {_problem_of(error)}"
        return None if problem is None else f"PostgreSQL at {self.path}: {problem}"


# See "Message Formats" on postgresql.org: version 3.0, then pairs of a name and a value, each ended by 0.
_POSTGRESQL_VERSION: Final = 3 << 16
_POSTGRESQL_GOODBYE: Final = b"X" + struct.pack("!i", 4)


def _postgresql_startup() -> bytes:
    pairs = "".join(f"{text}\0" for text in ("user", ROLE, "database", DATABASE)).encode() + b"\0"
    return struct.pack("!ii", 8 + len(pairs), _POSTGRESQL_VERSION) + pairs


def _postgresql_problem(answers: BinaryIO) -> str | None:
    """Reads what the server answers until it is ready for queries, or says why not."""
    total_bytes = 0
    while len(head := answers.read(5)) == 5:
        kind, (length,) = head[:1], struct.unpack("!i", head[1:])
        total_bytes += length
        if length < 4 or total_bytes > RESPONSE_MAX_BYTES:
            return "its answer is not PostgreSQL's"
        body = answers.read(length - 4)
        if kind == b"Z":
            return None
        if kind == b"R" and body[:4] != bytes(4):
            return "it asks for a password; its pg_hba.conf was changed"
        if kind == b"E":
            # Fields: a letter, the text, 0. M is the message for people.
            fields = {field[:1]: field[1:].decode(errors="replace") for field in body.split(b"\0") if field}
            return fields.get(b"M", "it refuses the session")
    return "it closed the connection"


@dataclass(frozen=True)
class HttpProbe:
    """Requests a page; status 200 within `timeout_s` means ready."""

    url: str
    timeout_s: float = PROBE_TIMEOUT_S

    def check(self) -> str | None:
        try:
            response = get(self.url, timeout_s=self.timeout_s)
        except httpx.HTTPError as error:
            return f"{self.url}: {error}"
        return None if response.status_code == 200 else f"{self.url} answered {response.status_code}"


@dataclass(frozen=True)
class BalancerProbe:
    """Requests the balancer's status; at least one broker must be ready."""

    url: str

    def check(self) -> str | None:
        return self.look()[0]

    def note(self) -> str:
        """Why the embedded balancer is used; empty if HAProxy is."""
        return self.look()[1]

    def look(self) -> tuple[str | None, str]:
        """Returns what `check` and `note` do, by one request."""
        try:
            status = get(self.url).json()
            note = status["why"] if status["engine"] == "embedded" else ""
            return status["problem"], note
        except httpx.HTTPError as error:
            return f"{self.url}: {error}", ""
        except (ValueError, KeyError, TypeError):
            return f"{self.url} is not a balancer's status", ""


@dataclass(frozen=True)
class HdfsProbe:
    """Requests the NameNode's JMX page: it must have a live DataNode and be out of safe mode."""

    webhdfs_url: str

    def check(self) -> str | None:
        url = f"{self.webhdfs_url}/jmx"
        try:
            response = get(f"{url}?qry=Hadoop:service=NameNode,name=FSNamesystemState")
            beans = response.json()["beans"]
            state = beans[0] if beans else {}
            live_count, fs_state = state.get("NumLiveDataNodes"), state.get("FSState")
        except httpx.HTTPError as error:
            return f"{url}: {error}"
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"{url} answered {response.status_code}, without the NameNode's state"
        if not beans:
            return f"the NameNode at {self.webhdfs_url} has not reported its state yet"
        if not live_count:
            return f"the NameNode at {self.webhdfs_url} has no live DataNode yet"
        return (
            None
            if fs_state == "Operational"
            else f"the NameNode at {self.webhdfs_url} is in state {fs_state}"
        )


def get(url: str, *, timeout_s: float = PROBE_TIMEOUT_S) -> httpx.Response:
    """Requests a page of a unit. Raises `httpx.HTTPError`, also for a host that can have no address."""
    try:
        # Loading certificate authorities, which plain HTTP does not need, takes as long as fifty requests.
        return httpx.get(url, timeout=timeout_s, trust_env=False, verify=not url.startswith("http:"))
    except (UnicodeError, httpx.InvalidURL) as error:
        raise httpx.ConnectError(_problem_of(error)) from None


def _problem_of(error: OSError | UnicodeError | httpx.InvalidURL) -> str:
    if not isinstance(error, OSError):
        return f"can't be the name of a host: {error}"
    return "does not respond" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
