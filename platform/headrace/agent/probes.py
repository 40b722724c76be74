"""Readiness: is a unit truly ready, asked in its own protocol?

Owns one probe a kind of unit. A probe is a value with `problem()`, which answers None when the unit is ready
and otherwise says in a few words what is missing. Probes never raise, and each wait is bounded by
`PROBE_TIMEOUT_S`.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final, Protocol

import httpx

from headrace.site.addresses import Address

PROBE_TIMEOUT_S: Final = 3.0
ANSWER_MAX_BYTES: Final = 64 << 10


class Probe(Protocol):
    def problem(self) -> str | None: ...


@dataclass(frozen=True)
class ZooKeeperProbe:
    """Asks `srvr`, a four-letter word that a server answers once it serves."""

    address: Address

    def problem(self) -> str | None:
        try:
            with socket.create_connection(self.address, timeout=PROBE_TIMEOUT_S) as connection:
                connection.sendall(b"srvr")
                answer = b""
                while len(answer) < ANSWER_MAX_BYTES and (data := connection.recv(4096)):
                    answer += data
        except OSError as error:
            return f"{self.address} {_reason(error)}"
        if b"Mode:" in answer:
            return None
        return f"ZooKeeper at {self.address} says {answer[:80].decode(errors='replace').strip()!r}"


@dataclass(frozen=True)
class BrokerProbe:
    """Asks the broker itself for the cluster: it must answer, and see itself registered."""

    address: Address
    broker_id: int

    def problem(self) -> str | None:
        try:
            # A refused connection is the usual case while a broker starts; a client would try again.
            with socket.create_connection(self.address, timeout=PROBE_TIMEOUT_S):
                pass
        except OSError as error:
            return f"{self.address} {_reason(error)}"
        # Half a second of importing, which only those need who probe a broker.
        from headrace.client.admin import Admin
        from headrace.client.errors import ClientError
        from headrace.wire.errors import WireError

        try:
            with Admin(str(self.address), timeout_ms=PROBE_TIMEOUT_S * 1000) as admin:
                cluster = admin.describe_cluster()
        except OSError as error:
            return f"{self.address} {_reason(error)}"
        except (ClientError, WireError) as error:
            return f"broker {self.broker_id} at {self.address}: {error}"
        if self.broker_id in cluster.brokers:
            return None
        return f"broker {self.broker_id} answers at {self.address} but is not registered in ZooKeeper yet"


@dataclass(frozen=True)
class HttpProbe:
    """Asks for a page; 200 means ready."""

    url: str

    def problem(self) -> str | None:
        try:
            answer = get(self.url)
        except httpx.HTTPError as error:
            return f"{self.url}: {error}"
        return None if answer.status_code == 200 else f"{self.url} answers {answer.status_code}"


@dataclass(frozen=True)
class BalancerProbe:
    """Asks the balancer's status: some broker must take connections."""

    url: str

    def problem(self) -> str | None:
        problem, _ = self._ask()
        return problem

    def note(self) -> str:
        """What serves, when it is not HAProxy, and why; else an empty text."""
        _, note = self._ask()
        return note

    def _ask(self) -> tuple[str | None, str]:
        try:
            status = get(self.url).json()
            note = status["why"] if status["engine"] == "embedded" else ""
            return status["problem"], note
        except httpx.HTTPError as error:
            return f"{self.url}: {error}", ""
        except (ValueError, KeyError, TypeError):
            return f"{self.url} answers, but not as a balancer does", ""


@dataclass(frozen=True)
class HdfsProbe:
    """Asks the NameNode over its JMX page: a live DataNode, and out of safe mode."""

    webhdfs_url: str

    def problem(self) -> str | None:
        url = f"{self.webhdfs_url}/jmx"
        try:
            answer = get(f"{url}?qry=Hadoop:service=NameNode,name=FSNamesystemState")
            beans = answer.json()["beans"]
        except httpx.HTTPError as error:
            return f"{url}: {error}"
        except (ValueError, KeyError):
            return f"{url} answers {answer.status_code}, without the NameNode's state"
        if not beans:
            return f"the NameNode at {self.webhdfs_url} has no state yet"
        if not beans[0].get("NumLiveDataNodes"):
            return f"the NameNode at {self.webhdfs_url} has no live DataNode yet"
        if beans[0].get("FSState") != "Operational":
            return f"the NameNode at {self.webhdfs_url} is in state {beans[0].get('FSState')}"
        return None


def get(url: str) -> httpx.Response:
    """Asks for a page of a unit. Raises `httpx.HTTPError`."""
    # Reading the authorities that a plain page does not need costs as much as fifty such questions.
    return httpx.get(url, timeout=PROBE_TIMEOUT_S, trust_env=False, verify=not url.startswith("http:"))


def _reason(error: OSError) -> str:
    return "does not answer" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
