"""What the processes report at `GET /status`: the fields come from the code, their meanings stand here.

A field without a meaning, and a meaning without a field, is an error: `pages` and a test find it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from headrace.audit.counting.auditor import Auditor
from headrace.audit.counting.partition_counter import partitions_status
from headrace.audit.fold_loop import FoldLoop
from headrace.balancer.backends import BackendFigures
from headrace.balancer.control import Control
from headrace.balancer.withdrawn import WithdrawnBrokers
from headrace.broker.broker import Broker
from headrace.broker.cluster import ClusterView
from headrace.broker.disk_guard import DiskGuard
from headrace.broker.expiry_clock import ExpiryClock
from headrace.broker.network.server import Server
from headrace.broker.pulse import Pulse
from headrace.mirror.copying import PartitionCopy
from headrace.mirror.service import MirrorService
from reference.markdown import GENERATED, code, table

INTRODUCTION: Final = (
    "`GET /status` at a process's status address returns these fields as JSON, `GET /` shows them as [a "
    "page](../pages.md), and `GET /metrics` tells them to [Prometheus](../metrics.md). [The site "
    "file](../cli.md#the-site-file) says which address that is."
)


class Figures(NamedTuple):
    """The fields of one dict of a status. `fields`: their names, as the code has them."""

    title: str
    fields: frozenset[str]
    meanings: Mapping[str, str]


def _fields(function: Callable[..., Any]) -> frozenset[str]:
    """The keys of all dicts that a function writes out."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return frozenset(
        str(key.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    )


FIGURES: Final = (
    Figures(
        "Broker, with --status",
        _fields(Broker.status) | _fields(ClusterView.lacking),
        {
            "broker": "its id",
            "datacenter": "its datacenter",
            "partitions": "how many partitions it leads",
            "followed": "how many partitions it follows: other brokers lead them",
            "offline": "partitions whose log is offline: `count`, and the first ones with `problem`",
            "under_replicated": "how many that it leads lack a replica in sync: a problem if it lasts",
            "leaderless": "how many partitions of its cluster have no leader: a problem if it lasts",
            "connections": "the fields of the next table",
            "disk": "the disk of the data directory, with the fields of the table after it",
            "clock": "the clock of its host beside ZooKeeper's, with the fields of a table below",
            "loop": "whether it turns, with the fields of the last table",
        },
    ),
    Figures(
        "Broker: connections",
        _fields(Server.status),
        {
            "open": "open now",
            "max": "`max.connections`, less the descriptors that logs need",
            "accepted": "accepted since the start",
            "refused": "refused since the start, by the setting that was reached",
            "accept_failures": "how often the kernel gave no connection, such as without a free descriptor",
            "creation_rate_pauses": "how often `max.connection.creation.rate` made new ones wait",
            "closed_by_broker": "closed by the broker, by cause: slow, unread, idle, invalid, error",
            "receiving_bytes": "memory of requests that are being received or passed on",
            "passed_on_bytes": "of it, of requests that are passed on to other brokers",
            "receiving_max_bytes": "`queued.max.request.bytes`, its bound",
            "partial_requests": "requests that are not complete yet",
            "waiting_for_room": "of them, those that wait for memory",
            "unsent_bytes": "memory of responses that clients do not take",
            "unsent_max_bytes": "`headrace.response.unsent.max.bytes`, its bound",
        },
    ),
    Figures(
        "Broker: the disk",
        _fields(DiskGuard.status),
        {
            "directory": "the data directory",
            "free_bytes": "its disk's free space; null if it is not known",
            "size_bytes": "its disk's size; null if it is not known",
            "reserve_bytes": "`headrace.disk.free.min.bytes`: with less free it refuses appends; 0: never",
            "refuses_appends": "whether it refuses appends now",
        },
    ),
    Figures(
        "Broker: the clock",
        _fields(ExpiryClock.status),
        {
            "ahead_ms": "how far it is ahead of ZooKeeper's; negative: behind; null until that is known",
            "is_apart": "whether that is a problem: more than a minute",
        },
    ),
    Figures(
        "Broker: the loop that serves clients",
        _fields(Pulse.status),
        {
            "late_ms": "for how long it has not turned, beyond its second; null before it begins",
            "is_stuck": "whether that is a problem: more than ten seconds",
        },
    ),
    Figures(
        "Balancer",
        _fields(Control.status) | _fields(WithdrawnBrokers.rows) | frozenset(BackendFigures._fields),
        {
            "engine": "haproxy or embedded",
            "why": "why this engine serves",
            "listen": "where producers connect",
            "problem": "what is wrong, as one line; null if nothing",
            "backends": "one row for each broker, with the fields below",
            "withdrawn": "one row for each broker whose front is withdrawn: it stops, has ended or hangs",
            "withdrawn_ms": "when that was, in Unix milliseconds",
            "condition": "not checked yet, does not answer (it hangs), not running, or answers",
            "broker_id": "the broker's id",
            "address": "where its front listens",
            "phase": "ready or draining",
            "is_up": "whether the last health check succeeded",
            "connections": "open now",
            "connections_total": "since the engine's start",
            "connect_errors": "attempts that failed",
            "bytes_in": "bytes from clients",
            "bytes_out": "bytes to clients",
            "check": "the result of the last health check",
        },
    ),
    Figures(
        "Mirror",
        _fields(MirrorService.status),
        {
            "source": "the datacenter that it copies from",
            "target": "the datacenter that it copies into",
            "trouble": "what is wrong with finding topics; empty if nothing",
            "topic_troubles": "the same, by topic",
            "lag_bytes": "bytes that are not copied yet, of all partitions",
            "partitions": "one row for each partition, with the fields of the next table",
        },
    ),
    Figures(
        "Mirror: a partition",
        _fields(PartitionCopy.status),
        {
            "topic": "the topic",
            "partition": "its number in the source",
            "target_partition": "its number in the target",
            "source_topic_id": "the id of the topic in the source of which the copy holds what it has",
            "target_topic_id": "the id of the topic in the target of which this row tells",
            "address": "how far it is copied",
            "source_end": "where the source ends",
            "lag_bytes": "the difference",
            "bytes_copied": "copied since the mirror's start",
            "state": "locating, copying, caught_up or halted",
            "reason": "why it is halted or retries; empty if it is not",
            "gap": "the gap over which it is halted: `from` and `to`; null if there is none",
            "skipped": "accepted gaps that it has passed",
            "skipped_bytes": "their bytes",
        },
    ),
    Figures(
        "Auditor",
        _fields(Auditor.status) | _fields(partitions_status),
        {
            "datacenter": "its own datacenter; in a row, the one where the partition's events come from",
            "trouble": "what is wrong, as one line; empty if nothing",
            "unsaid": "reports that are not published yet",
            "corrupt": "damaged batches that it met",
            "set_aside": "records of the audit topics that are no audit records, by partition",
            "partitions": "one row for each partition, with the fields below",
            "topic": "the topic",
            "partition": "its number",
            "counted_to": "the address up to which it is counted",
            "reason": "why it does not go on; empty if it does",
        },
    ),
    Figures(
        "Auditor: the store (`store`, where it folds reports)",
        _fields(FoldLoop.status),
        {
            "store": "its URL",
            "set_aside_store": "where the file of an unusable store was set aside last; empty if none was",
            "folded": "records that are in the store, since the start",
            "refused": "records that cannot be true",
            "unreadable": "records that cannot be decoded",
            "set_aside": "both, by partition, with the first and last offset and the last problem",
            "detection": "how long findings of the last day took to be named: one row for each hop",
            "drill": "how many planted failures the audit found, of the last day's drills; null without any "
            "in a week",
            "looked_ms": "when it last made these two, every few seconds; null before the first time",
            "trouble": "what is wrong, as one line; empty if nothing",
        },
    ),
)


def unexplained() -> list[str]:
    """Returns fields without a meaning, and meanings without a field."""
    return [
        f"{figures.title}: {name}"
        for figures in FIGURES
        for name in sorted(figures.fields ^ figures.meanings.keys())
    ]


def figures_page() -> str:
    """Returns the page. Raises `ValueError` if it would not be complete."""
    if wrong := unexplained():
        raise ValueError(f"manual/reference/figures.py and the code differ: {', '.join(wrong)}")
    parts = ["# Figures of running processes", GENERATED, INTRODUCTION]
    for figures in FIGURES:
        rows = [(code(name), meaning) for name, meaning in figures.meanings.items()]
        parts += [f"## {figures.title}", table(["field", "meaning"], rows)]
    return "\n\n".join(parts) + "\n"
