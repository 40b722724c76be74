"""The same raw request to two brokers: what each answers, as plain values that can be compared.

Owns `Asker`, a client that builds any control request from a dict, and what a case needs beforehand: topics,
and a coordinator that has loaded. A case is a function of an `Asker`; it returns codes and a few values,
never ids, times or messages, which differ anyway.
"""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

from kio.index import load_request_schema

from fix_broker import RawClient
from headrace.broker.bodies import _maker
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, encode_batch

WAIT_MAX_S: Final = 60.0
CLOSED: Final = "the connection is closed"
NOT_YET: Final = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
}

Case = Callable[["Asker"], Any]


def name_of(code: Any) -> str:
    """An error code by its name; kio's codes and numbers alike."""
    number = int(getattr(code, "value", code))
    try:
        return ErrorCode(number).name
    except ValueError:
        return str(number)


class Asker:
    """One connection to one broker."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.client = RawClient(bootstrap)

    def close(self) -> None:
        self.client.close()

    def ask(self, key: ApiKey, version: int, /, **tree: Any) -> Any:
        """The response's body. Times in the tree are in ms; missing arrays are empty."""
        return self.client.call(_maker(load_request_schema(int(key), version))(tree))

    def until_settled(self, ask: Callable[[], str]) -> str:
        """Repeats a question while the answer is one of a broker that is not ready for it."""
        deadline = time.monotonic() + WAIT_MAX_S
        while (answer := ask()) in {code.name for code in NOT_YET} and time.monotonic() < deadline:
            time.sleep(0.05)
        return answer

    # --- what a case begins with ---

    def topic(self, partitions: int = 1, prefix: str = "t") -> str:
        """A new topic whose partitions are served."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        assert self.create(name, num_partitions=partitions) == ["NONE"]
        for partition in range(partitions):
            assert self.until_settled(lambda at=partition: self.offsets(name, (at, -1))[0][1]) == "NONE"  # type: ignore[misc]
        return name

    def group(self) -> str:
        """The id of a new group, whose coordinator is ready."""
        name = f"g-{uuid.uuid4().hex[:8]}"
        self.ask(ApiKey.FIND_COORDINATOR, 2, key=name, key_type=0)
        self.until_settled(
            lambda: name_of(
                self.ask(ApiKey.OFFSET_FETCH, 7, group_id=name, topics=None, require_stable=False).error_code
            )
        )
        return name

    # --- questions that many cases ask ---

    def create(self, *names: str, version: int = 7, validate_only: bool = False, **values: Any) -> list[str]:
        topic = {"num_partitions": 1, "replication_factor": 1, **values}
        response = self.ask(
            ApiKey.CREATE_TOPICS,
            version,
            topics=[{"name": name, **topic} for name in names],
            timeout=30_000,
            validate_only=validate_only,
        )
        return [name_of(each.error_code) for each in response.topics]

    def delete(self, *names: str) -> list[str]:
        response = self.ask(ApiKey.DELETE_TOPICS, 5, topic_names=names, timeout=30_000)
        return [name_of(each.error_code) for each in response.responses]

    def offsets(
        self, topic: str, *wanted: tuple[int, int], version: int = 7, epoch: int = -1
    ) -> list[tuple[int, str, int]]:
        """Partition, code and offset of each answer, in the partitions' order."""
        partitions = [
            {"partition_index": at, "timestamp": when, "current_leader_epoch": epoch} for at, when in wanted
        ]
        response = self.ask(
            ApiKey.LIST_OFFSETS,
            version,
            replica_id=-1,
            isolation_level=0,
            topics=[{"name": topic, "partitions": partitions}],
        )
        return sorted(
            (each.partition_index, name_of(each.error_code), each.offset)
            for found in response.topics
            for each in found.partitions
        )

    def commit(
        self,
        group: str,
        topic: str,
        partition: int = 0,
        *,
        offset: int = 5,
        metadata: str | None = "",
        member: str = "",
        generation: int = -1,
    ) -> list[str]:
        part = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": metadata,
        }
        response = self.ask(
            ApiKey.OFFSET_COMMIT,
            8,
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=None,
            topics=[{"name": topic, "partitions": [part]}],
        )
        return [name_of(part.error_code) for each in response.topics for part in each.partitions]

    def fetch(self, topics: list[dict[str, Any]], **values: Any) -> tuple[str, list[tuple[int, str, int]]]:
        """The request's own code, and each partition's code and high watermark."""
        values = {"session_id": 0, "session_epoch": -1, "max_bytes": 1 << 20, "isolation_level": 0} | values
        response = self.ask(
            ApiKey.FETCH,
            12,
            replica_id=-1,
            max_wait=0,
            min_bytes=0,
            topics=topics,
            forgotten_topics_data=(),
            rack_id="",
            **values,
        )
        return name_of(response.error_code), [
            (each.partition_index, name_of(each.error_code), each.high_watermark)
            for found in response.responses
            for each in found.partitions
        ]


def part_to_fetch(
    partition: int, offset: int = 0, *, max_bytes: int = 1 << 20, epoch: int = -1
) -> dict[str, Any]:
    return {
        "partition": partition,
        "fetch_offset": offset,
        "partition_max_bytes": max_bytes,
        "current_leader_epoch": epoch,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
    }


def one_record() -> bytes:
    return encode_batch([Record(0, int(time.time() * 1000), None, b"v")])


def raw(asker: Asker, key: int, version: int, body: bytes = b"") -> bytes:
    frame = struct.pack(">hhih", key, version, 7, -1) + body
    asker.client.send(struct.pack(">i", len(frame)) + frame)
    return bytes(asker.client.receive())


def heartbeat(asker: Asker, group: str, member: str, generation: int) -> str:
    response = asker.ask(
        ApiKey.HEARTBEAT,
        3,
        group_id=group,
        generation_id=generation,
        member_id=member,
        group_instance_id=None,
    )
    return name_of(response.error_code)


def join(
    asker: Asker,
    group: str,
    member: str = "",
    session_ms: int = 10_000,
    kind: str = "consumer",
    metadata: bytes = b"",
) -> Any:
    return asker.ask(
        ApiKey.JOIN_GROUP,
        5,
        group_id=group,
        session_timeout=session_ms,
        rebalance_timeout=session_ms,
        member_id=member,
        group_instance_id=None,
        protocol_type=kind,
        protocols=[{"name": "range", "metadata": metadata}],
    )
