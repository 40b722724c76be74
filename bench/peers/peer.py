"""What the bench asks of each broker that it measures."""

from __future__ import annotations

from typing import Protocol


class PeerMissingError(Exception):
    """A broker is not installed and cannot be, so its rows are left out. The message says what to install."""


class Peer(Protocol):
    """A broker, or a cluster of them, that the bench starts, loads, measures and removes.

    `name` is shown in tables and is its key in the JSON, such as "Apache Kafka 4.4.0, fsync". It listens on
    loopback addresses of its own; all of its files lie below the folder that its constructor was given.
    """

    @property
    def name(self) -> str: ...

    def start(self) -> None:
        """Starts it on the broker's cores; returns once it serves. Raises `ProcessFailedError`."""

    def stop(self) -> None:
        """Ends its processes and deletes its data. May be called at any time, and twice."""

    def pids(self) -> list[int]:
        """Returns the processes whose CPU time and memory are the broker's (with all below them)."""

    def memory_bytes(self) -> int:
        """Returns the anonymous resident memory of those processes."""


class KafkaPeer(Peer, Protocol):
    """A broker that speaks Kafka's protocol."""

    @property
    def bootstrap(self) -> str: ...

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Creates a topic with as many replicas as the peer was made for; returns once a client sees all
        its leaders.
        """

    def delete_topic(self, topic: str) -> None:
        """Deletes a topic, so that its bytes do not fill the disk; returns once it is gone."""

    def restart_after_kill(self) -> float:
        """Ends the broker by SIGKILL, starts it again; returns the seconds from its start until it serves a
        topic's log end again."""
