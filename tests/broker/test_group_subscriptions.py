"""Which topics a group's members read, by what consumers send, or somebody else makes up."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.groups.subscriptions import TOPICS_MAX, subscribed_topics

# Version 0 for two topics, with one byte of user data, as the protocol says.
GOLDEN = bytes.fromhex("0000 00000002 0001 61 0002 6262 00000001 ff")
TOPICS = st.lists(st.text(max_size=20), max_size=5)


def subscription(topics: list[str], version: int = 3, rest: bytes = b"") -> bytes:
    packed = b"".join(struct.pack(">h", len(each.encode())) + each.encode() for each in topics)
    return struct.pack(">hi", version, len(topics)) + packed + rest


@given(st.lists(st.tuples(TOPICS, st.integers(0, 32_767), st.binary(max_size=9)), max_size=4))
def test_all_members_topics_are_known_in_each_version(members: list[tuple[list[str], int, bytes]]) -> None:
    expected = {topic for topics, _, _ in members for topic in topics}
    assert subscribed_topics(subscription(*each) for each in members) == expected


def test_the_bytes_of_a_consumer() -> None:
    assert subscribed_topics([GOLDEN]) == {"a", "bb"}


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_not_known(metadata: bytes) -> None:
    found = subscribed_topics([GOLDEN, metadata])
    assert found is None or {"a", "bb"} <= found


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        GOLDEN[:-6],
        subscription(["t"], version=-1),
        struct.pack(">hi", 0, -1),
        struct.pack(">hih", 0, 1, -1),
        struct.pack(">hih", 0, 1, 2) + b"\xff\xff",
        subscription([""] * (TOPICS_MAX - 1)),
    ],
)
def test_what_no_consumer_sends_is_not_known(metadata: bytes) -> None:
    assert subscribed_topics([GOLDEN, metadata]) is None
