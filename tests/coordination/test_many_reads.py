"""MultiRead: its bytes, what an odd answer does, and a real ZooKeeper's answers."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo import exceptions as kz

from fix_zookeeper import ZooKeeperRoom
from headrace.coordination.errors import CoordinationError
from headrace.coordination.many_reads import REQUEST_MAX_BYTES, MultiRead, in_requests
from headrace.coordination.nodes import Node, NodeStat, translate
from headrace.coordination.session import ZooKeeperSession

STAT = struct.pack("!qqqqiiiqiiq", 17, 21, 4, 5, 3, 0, 0, 99, 2, 0, 17)
HEAD = bytes.fromhex("0000000400ffffffff")
END = bytes.fromhex("ffffffff01ffffffff")


def test_a_request_has_these_bytes() -> None:
    """Of each node a header (getData, not the end, -1), the path, no watch; then the header of the end."""
    expected = HEAD + b"\0\0\0\2/a\0" + HEAD + "\0\0\0\3/ü\0".encode() + END
    assert MultiRead(("/a", "/ü")).serialize() == expected


def answered(*parts: bytes) -> list[Node | None]:
    request = MultiRead(tuple(f"/{at}" for at in range(len(parts))))
    return request.deserialize(b"reply head" + b"".join(parts) + END, len(b"reply head"))


def found(data: bytes) -> bytes:
    return HEAD + struct.pack("!i", len(data)) + data + STAT


def failed(number: int) -> bytes:
    return struct.pack("!i?ii", -1, False, number, number)


def test_an_answer_is_read() -> None:
    stat = NodeStat(
        version=3,
        created_zxid=17,
        modified_zxid=21,
        owner_session=99,
        modified_ms=5,
        data_bytes=2,
        created_ms=4,
    )
    null = HEAD + b"\xff\xff\xff\xff" + STAT
    nodes = answered(found(b"abc"), failed(-101), null, found(b""))
    assert nodes == [Node(b"abc", stat), None, Node(b"", stat), Node(b"", stat)]


def test_a_node_that_may_not_be_read_is_an_error() -> None:
    with pytest.raises(kz.NoAuthError):
        answered(found(b"abc"), failed(-102))


def test_an_answer_with_too_few_nodes_is_an_error() -> None:
    with pytest.raises(kz.MarshallingError, match="2 nodes asked for, 1 answered"):
        MultiRead(("/a", "/b")).deserialize(found(b"abc") + END, 0)


@given(st.integers(0, 200), st.integers(-(2**31), 2**31 - 1))
def test_an_answer_of_any_bytes_is_nodes_or_an_error_of_the_library(cut: int, number: int) -> None:
    """Cut anywhere, or with any number in the place of a length or an error."""
    whole = found(b"abc") + failed(-101) + END
    changed = [whole[:cut], HEAD + struct.pack("!i", number) + b"abc" + STAT + END, failed(number) + END]
    for answer in changed:
        try:
            MultiRead(("/a", "/b")).deserialize(answer, 0)
        except kz.ZookeeperError:
            continue
        assert answer == whole


def test_an_old_server_is_named_as_such() -> None:
    problem = translate(kz.UnimplementedError(), "/a")
    assert str(problem) == "/a: this ZooKeeper is too old: headrace needs version 3.6 or later"


@given(st.lists(st.text(max_size=20)), st.integers(1, 5))
def test_requests_have_each_path_once_in_order(paths: list[str], count_max: int) -> None:
    requests = list(in_requests(paths, count_max))
    assert [path for request in requests for path in request] == paths
    assert all(0 < len(request) <= count_max for request in requests)


def test_requests_are_bounded_in_bytes() -> None:
    requests = list(in_requests(["/" + "x" * 60_000] * 7, 100))
    assert sum(map(len, requests)) == 7
    assert all(len(MultiRead(tuple(request)).serialize()) <= REQUEST_MAX_BYTES for request in requests)


@pytest.mark.parametrize("chroot", ["", "/east"])
def test_a_real_server_answers(zookeeper: ZooKeeperRoom, chroot: str) -> None:
    with zookeeper.session() as maker:
        paths = [f"/n{at}" for at in range(1_234)]
        for path in ("", *paths[::2]):
            if chroot or path:
                maker.create(chroot + path, path.encode(), make_parents=True)
        with ZooKeeperSession(maker.hosts + chroot).start() as session:
            nodes = session.get_many_small(paths)
            assert nodes == session.get_many(paths)
            assert [node and node.data for node in nodes[:3]] == [b"/n0", None, b"/n2"]
            assert session.get_many_small(["/n2"] * 7, per_request_max=3) == [nodes[2]] * 7
            (root,) = session.get_many_small(["/"])
            assert root == session.get("/")
            assert session.get_many_small([]) == []


def test_errors_name_the_first_path(zookeeper: ZooKeeperRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise kz.NoAuthError()

    with zookeeper.session() as session:
        monkeypatch.setattr(MultiRead, "deserialize", refuse)
        with pytest.raises(CoordinationError, match=r"^/a: ZooKeeper refused: NoAuthError"):
            session.get_many_small(["/a", "/b"])
