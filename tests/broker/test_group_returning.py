"""Whether a generation still suits a static member that has come back: values only."""

from __future__ import annotations

import struct

import pytest

from headrace.broker.groups.member import Member
from headrace.broker.groups.replies import Generation
from headrace.broker.groups.returning import is_suited
from headrace.broker.groups.types import MemberProtocol

Protocols = tuple[MemberProtocol, ...]


def subscription(*topics: str, owned: bytes = b"") -> bytes:
    packed = b"".join(struct.pack(">h", len(each)) + each.encode() for each in topics)
    return struct.pack(">hi", 3, len(topics)) + packed + owned


def protocols(*known: tuple[str, bytes]) -> Protocols:
    return tuple(MemberProtocol(*each) for each in known)


def member(name: str, known: Protocols) -> Member:
    return Member(
        member_id=name,
        group_instance_id=name,
        client_id="c",
        client_host="",
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
        protocols=known,
        session_deadline_ms=1,
    )


OWNED = subscription("a", "b", owned=b"which it owns")
BEFORE = protocols(("range", OWNED), ("sticky", OWNED))


@pytest.mark.parametrize(
    ("now", "kind", "expected"),
    [
        (protocols(("range", subscription("b", "a")), ("sticky", OWNED)), "consumer", True),
        (protocols(("range", subscription("a"))), "consumer", False),
        (protocols(("range", b"")), "consumer", False),
        (protocols(("sticky", OWNED)), "consumer", False),
        (protocols(("range", subscription("b", "a"))), "other", False),
        (BEFORE, "other", True),
    ],
)
def test_topics_and_the_chosen_protocol_decide(now: Protocols, kind: str, expected: bool) -> None:
    back, other = member("back", now), member("other", BEFORE)
    assert is_suited(back, BEFORE, [other, back], Generation(1, kind, "range", "other")) is expected
