"""A group's generation as a document: what is stored is read again, and hostile bytes are refused."""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.groups.generations import (
    DOCUMENT_MAX_BYTES,
    GENERATION_MAX,
    TEXT_MAX_BYTES,
    StoredGeneration,
    StoredMember,
    decode,
    encode,
)
from headrace.broker.groups.types import MemberProtocol
from headrace.coordination.errors import CorruptNodeError

NUMBERS = st.integers(0, 2**31 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@st.composite
def generations(draw: st.DrawFn) -> StoredGeneration:
    chosen = draw(NAMES)
    ids = draw(st.lists(NAMES, unique=True, max_size=5))
    members = tuple(
        StoredMember(
            member_id=member_id,
            group_instance_id=draw(st.one_of(st.none(), st.just(f"instance of {member_id}"))),
            client_id=draw(NAMES),
            client_host=draw(NAMES),
            session_timeout_ms=draw(NUMBERS),
            rebalance_timeout_ms=draw(NUMBERS),
            protocols=(
                MemberProtocol(draw(NAMES), draw(st.binary(max_size=30))),
                MemberProtocol(chosen, draw(st.binary(max_size=30))),
            ),
            assignment=draw(st.binary(max_size=30)),
        )
        for member_id in ids
    )
    return StoredGeneration(
        generation_id=draw(st.integers(0, GENERATION_MAX)),
        protocol_type=draw(NAMES),
        protocol_name=chosen,
        leader_id=draw(NAMES),
        members=members,
    )


@given(generations())
def test_what_is_stored_is_read_again(generation: StoredGeneration) -> None:
    data = encode(generation)
    assert data is not None
    assert decode("/path", data) == generation


ONE = StoredGeneration(
    generation_id=3,
    protocol_type="consumer",
    protocol_name="range",
    leader_id="m",
    members=(
        StoredMember("m", "i", "c", "/127.0.0.1", 10, 20, (MemberProtocol("range", b"\x00"),), b"\x01"),
    ),
)


def test_the_document_is_one_that_people_can_read() -> None:
    """Golden bytes: coordinators of other versions read it."""
    assert encode(ONE) == (
        b'{"generation_id":3,"leader_id":"m","members":[{"assignment":"AQ==","client_host":"/127.0.0.1",'
        b'"client_id":"c","group_instance_id":"i","member_id":"m","protocols":[["range","AA=="]],'
        b'"rebalance_timeout_ms":20,"session_timeout_ms":10}],"protocol_name":"range",'
        b'"protocol_type":"consumer","version":1}'
    )


@given(st.data())
def test_whatever_stands_there_is_a_generation_or_corrupt(data: st.DataObject) -> None:
    document = encode(ONE)
    assert document is not None
    changed = bytearray(document)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    try:
        found = decode("/path", bytes(changed))
    except CorruptNodeError as error:
        assert str(error).startswith("/path: ")
    else:
        assert all(any(p.name == found.protocol_name for p in m.protocols) for m in found.members)


MEMBER = json.loads(encode(ONE) or b"")["members"][0]


@pytest.mark.parametrize(
    "changes",
    [
        {"members": [MEMBER, MEMBER]},
        {"members": [MEMBER, {**MEMBER, "member_id": "other"}]},
        {"members": [{**MEMBER, "protocols": []}]},
        {"members": [{**MEMBER, "protocols": [["range", "no base64!"]]}]},
        {"members": [{**MEMBER, "protocols": [["range"]]}]},
        {"members": [{**MEMBER, "assignment": 5}]},
        {"members": [{**MEMBER, "session_timeout_ms": -1}]},
        {"members": [{**MEMBER, "session_timeout_ms": True}]},
        {"members": [{**MEMBER, "session_timeout_ms": 2**31}]},
        {"members": [{**MEMBER, "client_id": "\ud800"}]},
        {"members": [7]},
        {"members": {}},
        {"generation_id": "3"},
        {"generation_id": 2**31 - 1},
        {"leader_id": None},
        {"version": 2},
    ],
    ids=str,
)
def test_what_no_coordinator_stores_is_corrupt(changes: dict[str, object]) -> None:
    fields = {**json.loads(encode(ONE) or b""), **changes}
    with pytest.raises(CorruptNodeError, match="/path: "):
        decode("/path", json.dumps(fields).encode())


def assigned(*parts: bytes) -> StoredGeneration:
    """Returns a generation with a member for each of these parts."""
    (member,) = ONE.members
    members = [
        member._replace(member_id=f"m-{number}", group_instance_id=None, assignment=part)
        for number, part in enumerate(parts)
    ]
    return replace(ONE, members=tuple(members))


@pytest.mark.parametrize(
    "parts",
    [
        [b"x" * TEXT_MAX_BYTES * 2],
        [b"x" * (TEXT_MAX_BYTES * 3 // 4)],
        [bytes(random.Random(7).randbytes(DOCUMENT_MAX_BYTES))],
    ],
    ids=["at sight", "as text", "compressed"],
)
def test_a_generation_that_is_too_large_has_no_document(parts: list[bytes]) -> None:
    assert encode(assigned(*parts)) is None


def test_a_thousand_members_have_room() -> None:
    generation = assigned(*[b"the name of a topic and its partitions, three times".ljust(300)] * 1_000)
    data = encode(generation)
    assert data is not None and len(data) < DOCUMENT_MAX_BYTES // 4
    assert decode("/path", data) == generation
    for spoilt in (
        data[:-1],
        data[:100],
        data + b"x",
        b"y" + data[1:],
        zlib.compress(b" " * TEXT_MAX_BYTES * 2),
    ):
        with pytest.raises(CorruptNodeError, match="/path: "):
            decode("/path", spoilt)
