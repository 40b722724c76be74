"""A group's generation as ZooKeeper keeps it: its members, and which part of the assignment each one has.

The coordinator stores it before any member gets its part. So the broker that coordinates the group next knows
the members, and they go on without a rebalance. Owns the document; `generation_nodes` owns its node.

Apache Kafka keeps the same in the topic `__consumer_offsets` (its GroupMetadataValue).
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headrace.broker.groups.types import MemberProtocol
from headrace.coordination import documents
from headrace.coordination.errors import CorruptNodeError

PLAIN_MAX_BYTES: Final = 16 << 10
"""Longer documents are stored compressed: members of one group say much the same."""
TEXT_MAX_BYTES: Final = 2 << 20
"""Of one group's JSON, which is written while others wait. A thousand members of a few topics have 900 kB."""
DOCUMENT_MAX_BYTES: Final = 512 << 10
"""Of one group, as it is stored; ZooKeeper takes 1 MiB in one request."""
GENERATION_MAX: Final = 1 << 30
"""A group goes on counting from there, in 32 bits with a sign."""
ALL_DOCUMENTS_MAX_BYTES: Final = 32 << 20
"""Of all groups of one broker: ZooKeeper keeps all nodes in memory."""


class StoredMember(NamedTuple):
    """A member, without what it waits for."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGeneration:
    """A generation whose members have their parts."""

    generation_id: int
    protocol_type: str
    protocol_name: str
    leader_id: str
    members: tuple[StoredMember, ...]


def encode(generation: StoredGeneration) -> bytes | None:
    """Returns the document; None if it is too large to be stored."""
    if sum(_least_bytes(member) for member in generation.members) > TEXT_MAX_BYTES:
        return None  # nobody waits for the encoding of as many MB as a group may have
    data = _encode(generation)
    if len(data) > TEXT_MAX_BYTES:
        return None
    if len(data) > PLAIN_MAX_BYTES:
        data = zlib.compress(data, level=1)
    return data if len(data) <= DOCUMENT_MAX_BYTES else None


def _least_bytes(member: StoredMember) -> int:
    return len(member.assignment) + sum(len(metadata) for _, metadata in member.protocols)


def _encode(generation: StoredGeneration) -> bytes:
    return documents.encode(
        {
            "generation_id": generation.generation_id,
            "protocol_type": generation.protocol_type,
            "protocol_name": generation.protocol_name,
            "leader_id": generation.leader_id,
            "members": [
                {
                    **member._asdict(),
                    "protocols": [[name, _text(metadata)] for name, metadata in member.protocols],
                    "assignment": _text(member.assignment),
                }
                for member in generation.members
            ],
        }
    )


def decode(path: str, data: bytes) -> StoredGeneration:
    """Returns the generation of a document. Raises `CorruptNodeError`: anybody with access to ZooKeeper can
    write any bytes.
    """
    fields = documents.decode(path, _text_of(path, data))
    try:
        generation = StoredGeneration(
            generation_id=_number(fields, "generation_id"),
            protocol_type=_string(fields, "protocol_type"),
            protocol_name=_string(fields, "protocol_name"),
            leader_id=_string(fields, "leader_id"),
            members=tuple(_member(each) for each in _list(fields, "members")),
        )
        _check(generation)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise CorruptNodeError(f"{path}: not a group's generation ({error!r}): {data[:80]!r}") from None
    return generation


def _text_of(path: str, data: bytes) -> bytes:
    if data.startswith(b"{"):
        return data
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(data, TEXT_MAX_BYTES)
    except zlib.error as error:
        raise CorruptNodeError(f"{path}: not a group's generation ({error}): {data[:80]!r}") from None
    if not unpacking.eof or unpacking.unused_data:
        raise CorruptNodeError(
            f"{path}: a group's generation that does not end where it should: {data[:80]!r}"
        )
    return text


def _check(generation: StoredGeneration) -> None:
    """Raises `ValueError` for what no coordinator stores."""
    members = generation.members
    if generation.generation_id > GENERATION_MAX:
        raise ValueError(f"its generation {generation.generation_id} leaves too few numbers for later ones")
    if len({member.member_id for member in members}) != len(members):
        raise ValueError("two members have one id")
    instances = [each.group_instance_id for each in members if each.group_instance_id is not None]
    if len(set(instances)) != len(instances):
        raise ValueError("two members have one group.instance.id")
    if not all(any(p.name == generation.protocol_name for p in m.protocols) for m in members):
        raise ValueError(f"a member does not know the protocol {generation.protocol_name!r}")


def _member(fields: Any) -> StoredMember:
    instance_id = fields["group_instance_id"]
    return StoredMember(
        member_id=_string(fields, "member_id"),
        group_instance_id=None if instance_id is None else _string(fields, "group_instance_id"),
        client_id=_string(fields, "client_id"),
        client_host=_string(fields, "client_host"),
        session_timeout_ms=_number(fields, "session_timeout_ms"),
        rebalance_timeout_ms=_number(fields, "rebalance_timeout_ms"),
        protocols=tuple(MemberProtocol(_as_string(name), _bytes(text)) for name, text in fields["protocols"]),
        assignment=_bytes(fields["assignment"]),
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: Any) -> bytes:
    return base64.b64decode(_as_string(text), validate=True)


def _as_string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:40]!r} is no text")
    value.encode()  # clients get it: half a surrogate pair has no UTF-8
    return value


def _string(fields: Mapping[str, Any], name: str) -> str:
    return _as_string(fields[name])


def _number(fields: Mapping[str, Any], name: str) -> int:
    value = fields[name]
    if type(value) is not int or not 0 <= value <= documents.INT32_MAX:  # a bool is an int, too
        raise ValueError(f"{name} is {str(value)[:40]!r}")
    return value


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields[name]
    if not isinstance(value, list):
        raise TypeError(f"{name} is no list")
    return value
