"""HDFS as our code reads it: a NameNode that answers anything, and commit logs that somebody else wrote."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fix_memory_hdfs import MemoryHdfs
from headrace.warehouse.commitlog import CommitLog
from headrace.warehouse.hdfs import answers
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.hdfs.errors import HdfsError
from headrace.warehouse.layout import TopicPaths
from headrace.warehouse.manifest import DataFile, HourCount, LoadedRange, Manifest, ManifestError, TableState

PATHS = TopicPaths("/data", "t")
CALL_MAX_S = 20.0
ERROR_MAX_CHARS = 2_000

# --- commit logs ---


def manifest(**changes: Any) -> Manifest:
    file = DataFile(PATHS.data_file(0, 0, 0), f"{PATHS.staged('c')}/0", 0, 5, 1, 7)
    loaded = LoadedRange(0, 0, 10, (HourCount(0, 5, 5),))
    values = {"ranges": (loaded,), "files": (file,), "topic": "t", "change_id": "c", "sequence": 0}
    return Manifest(**{**values, "kind": "load", "committed_ms": 0, "warehouse": "w", **changes})


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    raw = json.loads(manifest().to_json())
    change(raw)
    return json.dumps(raw).encode()


def setting(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Puts the last of `path` at the place that the others name."""

    def change(raw: Any) -> None:
        *way, last, value = path
        for step in way:
            raw = raw[step]
        raw[last] = value

    return change


HOSTILE = {
    "empty": b"",
    "no text": b"\xff\xfe\x00",
    "a list": b"[]",
    "a number": b"7",
    "deep": b"[" * 200_000,
    "deep objects": b'{"a":' * 100_000,
    "a long number": b'{"format": ' + b"9" * 5_000 + b"}",
    "nothing": b"{}",
    "another format": changed(setting("format", 99)),
    "a list as format": changed(setting("format", [])),
    "text as sequence": changed(setting("sequence", "0")),
    "NaN": changed(setting("committed_ms", float("nan"))),
    "infinity": changed(setting("ranges", 0, "to_address", float("inf"))),
    "a float": changed(setting("ranges", 0, "to_address", 10.5)),
    "truth": changed(setting("sequence", False)),
    "beyond 64 bits": changed(setting("ranges", 0, "to_address", 2**70)),
    "ranges as text": changed(setting("ranges", "abc")),
    "ranges as an object": changed(setting("ranges", {"a": 1})),
    "hours as text": changed(setting("ranges", 0, "hours", "abc")),
    "files of lists": changed(setting("files", [[1, 2, 3]])),
    "a file's rows": changed(setting("files", 0, "rows", None)),
    "a file's path": changed(setting("files", 0, "path", 7)),
    "removed numbers": changed(setting("removed", [1, 2])),
    "writers": changed(setting("writer_ids", ["x"])),
    "a kind that nobody knows": changed(setting("kind", "destroy")),
    "a topic of lists": changed(setting("topic", [])),
    "an unknown field": changed(setting("surprise", 1)),
    "a missing field": changed(lambda raw: raw.pop("files")),
    "a huge note": changed(setting("note", "x" * 200_000)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_manifest_is_an_error_that_names_the_file(name: str) -> None:
    for read in (Manifest.from_json, TableState.from_json):
        with pytest.raises(ManifestError, match=r"/log/0\.json") as caught:
            read(HOSTILE[name], "/log/0.json")
        assert len(str(caught.value)) < ERROR_MAX_CHARS and "\n" not in str(caught.value)
    hdfs = MemoryHdfs()
    hdfs.files[PATHS.manifest(0)] = HOSTILE[name]
    with pytest.raises(ManifestError):
        CommitLog(hdfs, PATHS).state()


ELSEWHERE = (
    "/data/other/hourly/0.parquet",
    "/data/t",
    "/data/t/",
    "/data/t/../other/x",
    "/data/t/hourly/../../other",
    "/data/t/./x",
    "/data/t//x",
    "/data/t/hourly/#LATEST",
    "/data/t/hourly/a\nb",
    "/data/tx/y",
    "relative",
    "/",
    "",
    "hdfs://elsewhere/data/t/x",
)


@pytest.mark.parametrize("path", ELSEWHERE)
def test_a_manifest_moves_and_removes_nothing_outside_of_its_table(path: str) -> None:
    """One file of `_log` would otherwise be enough to rename or remove anything that the loads' user may."""
    file = manifest().files[0]
    unchanged(manifest(removed=(path,)), "not below /data/t")
    unchanged(manifest(files=(DataFile(path, file.staged, 0, 5, 1, 7),)), "not below /data/t")
    unchanged(manifest(files=(DataFile(file.path, path, 0, 5, 1, 7),)), "not below /data/t")


@pytest.mark.parametrize("change_id", ["", ".", "..", "../..", "a/b", "/", "x" * 300, "#LATEST", "a\n"])
def test_a_change_id_is_the_name_of_one_directory(change_id: str) -> None:
    """A completed change's directory is deleted with all that is in it."""
    unchanged(manifest(change_id=change_id), "names no directory")


def test_a_manifest_of_another_place_is_refused() -> None:
    unchanged(manifest(topic="u"), "of topic 'u'")
    hdfs = MemoryHdfs()
    hdfs.files[PATHS.manifest(0)] = manifest(sequence=3).to_json()
    with pytest.raises(ManifestError, match="manifest 3 can't follow"):
        CommitLog(hdfs, PATHS).state()


def unchanged(lie: Manifest, said: str) -> None:
    hdfs = MemoryHdfs()
    hdfs.files |= dict.fromkeys(("/data/other/x", "/data/t/hourly/x", "/data/t/_staging/c/0"), b"kept")
    hdfs.files[PATHS.manifest(0)] = lie.to_json()
    hdfs.makedirs(PATHS.staged("c"))
    before = dict(hdfs.files)
    for call in (CommitLog.state, lambda log: log.complete_all(None)):
        with pytest.raises(ManifestError, match=said):
            call(CommitLog(hdfs, PATHS))
    assert hdfs.files == before


def test_an_honest_manifest_is_read() -> None:
    hdfs = MemoryHdfs()
    hdfs.files[PATHS.manifest(0)] = manifest().to_json()
    assert CommitLog(hdfs, PATHS).manifest(0) == manifest()
    state = CommitLog(hdfs, PATHS).state()
    assert TableState.from_json(state.to_json(), "x") == state


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(json.loads(manifest().to_json()))), JSON)
def test_any_value_of_any_field_is_read_or_refused(field: str, value: object) -> None:
    try:
        found = Manifest.from_json(changed(setting(field, value)), "x")
    except ManifestError:
        return
    assert Manifest.from_json(found.to_json(), "x") == found


# --- NameNodes ---

Answer = Callable[[socket.socket], object]
"""What is sent once a request's head was read."""


class FakeNameNode:
    """Gives each connection the same answer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._server = socket.create_server(("127.0.0.1", 0))
        host, port = self._server.getsockname()
        self.url = f"http://{host}:{port}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(client,), daemon=True).start()

    def _one(self, client: socket.socket) -> None:
        with client:
            head = b""
            try:
                while b"\r\n\r\n" not in head:
                    piece = client.recv(65536)
                    if not piece:
                        return
                    head += piece
                self._answer(client)
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):  # closing at once would reset what the client has not read yet
                    continue
            except OSError:
                return

    def close(self) -> None:
        self._server.close()


def says(body: bytes, status: str = "200 OK", head: str = "") -> Answer:
    kind = "Content-Type: application/json\r\nConnection: close"
    start = f"HTTP/1.1 {status}\r\n{kind}\r\nContent-Length: {len(body)}\r\n{head}\r\n"
    return lambda client: client.sendall(start.encode() + body)


def raw(data: bytes) -> Answer:
    return lambda client: client.sendall(data)


def endless(piece: bytes, pause_s: float = 0.0) -> Answer:
    def answer(client: socket.socket) -> None:
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        while True:
            client.sendall(piece)
            time.sleep(pause_s)

    return answer


def circular(client: socket.socket) -> None:
    host, port = client.getsockname()
    says(b"", "307 Go", f"Location: http://{host}:{port}/x\r\n")(client)


def listing(*names: object) -> bytes:
    status = {"type": "DIRECTORY", "length": 0, "modificationTime": 0}
    return json.dumps({"FileStatuses": {"FileStatus": [{**status, "pathSuffix": n} for n in names]}}).encode()


OTHER_NUMBERS = b"""{"FileStatuses": {"FileStatus": [{"pathSuffix": "a", "type": "FILE", "length": "x",
"modificationTime": 0}]}, "FileStatus": {"type": "FILE", "length": NaN, "modificationTime": 0},
"ContentSummary": {"fileCount": {}, "length": 1}}"""
GARBAGE = {
    "no JSON": says(b"<html>hello</html>"),
    "nothing": says(b""),
    "a list": says(b"[]"),
    "a number": says(b"7"),
    "an empty object": says(b"{}"),
    "null": says(b'{"FileStatuses": null, "FileStatus": null, "ContentSummary": null, "boolean": null}'),
    "other types": says(b'{"FileStatuses": {"FileStatus": 5}, "FileStatus": [], "ContentSummary": "x"}'),
    "other numbers": says(OTHER_NUMBERS),
    "deep": says(b"[" * 300_000),
    "a long number": says(b'{"FileStatus": ' + b"9" * 10_000 + b"}"),
    "no UTF-8": says(b"\xff\xfe\xff"),
    "an error page": says(b"no" * 1_000, "500 Broken"),
    "an error of another shape": says(b'{"RemoteException": 7}', "404 Not Found"),
    "a redirect to itself": circular,
    "a redirect to nowhere": says(b"", "307 Go", "Location: ftp://x/\r\n"),
    "half an answer": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"),
    "no HTTP": raw(b"\x00\x01\x02garbage\r\n\r\n"),
    "large headers": raw(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 1_000_000 + b"\r\n"),
    "many headers": raw(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000 + b"\r\n{}"),
    "hangs up": lambda client: client.close(),
}

StartNameNode = Callable[[Answer], HdfsClient]


@pytest.fixture
def name_node() -> Iterator[StartNameNode]:
    nodes: list[FakeNameNode] = []
    clients: list[HdfsClient] = []

    def start(answer: Answer) -> HdfsClient:
        nodes.append(FakeNameNode(answer))
        clients.append(HdfsClient(nodes[-1].url, user="u", patience_s=0.0))
        return clients[-1]

    yield start
    for client in clients:
        client.close()
    for node in nodes:
        node.close()


def refused(call: Callable[[], object]) -> str:
    began_s = time.monotonic()
    with pytest.raises(HdfsError) as caught:
        call()
    assert time.monotonic() - began_s < CALL_MAX_S
    text = str(caught.value)
    assert "\n" not in text and len(text) < ERROR_MAX_CHARS, text[:3_000]
    return text


@pytest.mark.parametrize("name", GARBAGE)
def test_a_name_node_that_answers_garbage_is_an_error_in_a_line(name: str, name_node: StartNameNode) -> None:
    hdfs = name_node(GARBAGE[name])
    for call in (hdfs.entries, hdfs.walk, hdfs.status, hdfs.usage):
        refused(lambda c=call: c("/data"))  # type: ignore[misc]
    assert hdfs.problem()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../etc", 7, None])
def test_a_listing_leads_nowhere_else(name: object, name_node: StartNameNode) -> None:
    refused(lambda: name_node(says(listing("good", name))).entries("/data"))


def test_directories_without_end_are_left(name_node: StartNameNode) -> None:
    assert "nests deeper" in refused(lambda: name_node(says(listing("again", "and again"))).walk("/data"))


def test_an_answer_without_end_is_left(name_node: StartNameNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "ANSWER_MAX_BYTES", 4 << 20)
    assert "more than" in refused(lambda: name_node(endless(b" " * 65_536)).status("/data"))


def test_an_answer_that_drips_is_left(name_node: StartNameNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "ANSWER_MAX_S", 0.5)
    assert "took longer" in refused(lambda: name_node(endless(b" ", 0.02)).status("/data"))


def test_a_file_that_is_larger_than_was_asked_for_is_refused(
    name_node: StartNameNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.warehouse.hdfs.client.READ_SIZE_MAX_BYTES", 1 << 20)
    assert "over the limit" in refused(lambda: name_node(endless(b"x" * 65_536)).read("/data/x"))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(JSON)
def test_any_json_is_an_answer_or_an_error(name_node: StartNameNode, value: object) -> None:
    hdfs = name_node(says(json.dumps({"FileStatus": value, "FileStatuses": {"FileStatus": value}}).encode()))
    for call in (hdfs.status, hdfs.entries):
        try:
            call("/data")
        except HdfsError:
            continue
