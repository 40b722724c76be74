"""The local HDFS and its client: data survives SIGKILL, and errors name every problem."""

import http.server
import json
import threading
from pathlib import Path

import pytest

from fix_agent import eventually
from fix_hdfs import HdfsProcess, hdfs_process
from headrace.process.clock import now_ms
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.hdfs.errors import (
    HdfsDamagedError,
    HdfsError,
    HdfsExistsError,
    HdfsFullError,
    HdfsMissingError,
    HdfsNoTargetError,
    HdfsPermissionError,
    HdfsSafeModeError,
    HdfsUnreachableError,
    explain,
)

pytestmark = pytest.mark.hdfs


def test_files_are_written_read_renamed_and_deleted(hdfs: HdfsProcess) -> None:
    with hdfs.client() as client:
        client.write("/t/a/one", b"0123456789")
        assert client.read("/t/a/one") == b"0123456789"
        assert client.read("/t/a/one", offset=3, length=4) == b"3456"
        assert [entry.name for entry in client.entries("/t/a")] == ["one"]
        assert client.entries("/t/none") == []
        assert client.status("/t/none") is None
        assert client.rename("/t/a/one", "/t/a/two")
        assert [path for path, _ in client.walk("/t")] == ["/t/a/two"]
        assert client.delete("/t")
        assert not client.delete("/t")


def test_the_time_of_the_namenode(hdfs: HdfsProcess) -> None:
    with hdfs.client() as client:
        before_ms = now_ms()
        assert before_ms <= client.now_ms("/clock/now") <= now_ms()
        assert client.entries("/clock") == []


def test_a_rename_onto_a_taken_name_fails_and_changes_nothing(hdfs: HdfsProcess) -> None:
    with hdfs.client() as client:
        client.write("/r/one", b"1")
        client.write("/r/two", b"2")
        assert not client.rename("/r/one", "/r/two")
        assert client.read("/r/two") == b"2"
        assert client.read("/r/one") == b"1"
        assert not client.rename("/r/absent", "/r/three")
        with pytest.raises(HdfsExistsError):
            client.write("/r/two", b"3")
        with pytest.raises(HdfsMissingError):
            client.read("/r/absent")


def test_a_user_without_permission_is_refused_by_name(hdfs: HdfsProcess) -> None:
    with hdfs.client() as client:
        client.write("/mine/file", b"x")
    with (
        hdfs.client(user="stranger") as stranger,
        pytest.raises(HdfsPermissionError, match=r"stranger.*chown"),
    ):
        stranger.write("/mine/other", b"y")


def test_data_outlives_sigkill_and_calls_wait_for_the_restart(own_hdfs: HdfsProcess) -> None:
    with own_hdfs.client() as client, own_hdfs.client(patience_s=0) as hasty:
        client.write("/kept", b"k" * 1000)
        own_hdfs.kill("datanode")
        own_hdfs.kill("namenode")
        with pytest.raises(HdfsUnreachableError, match="start HDFS"):
            hasty.status("/kept")
        own_hdfs.start("namenode")
        # The NameNode is in safe mode until its DataNode has reported. Writes wait for that, reads of
        # metadata do not.
        assert client.status("/kept") is not None
        with pytest.raises(HdfsSafeModeError, match="safe mode"):
            hasty.delete("/kept")
        assert "safe mode" in str(client.problem())
        own_hdfs.start("datanode")
        client.write("/after", b"a")
        assert client.read("/kept") == b"k" * 1000


class JustConnected(http.server.BaseHTTPRequestHandler):
    """A NameNode that finds no DataNode for the first `refusals` blocks."""

    capacity_bytes = 0
    free_bytes = 0
    refusals = 0

    def do_GET(self) -> None:
        bean = {"FSState": "Operational", "NumLiveDataNodes": 1}
        bean |= {"CapacityTotal": self.capacity_bytes, "CapacityRemaining": self.free_bytes}
        self._answer(200, {"beans": [bean]})

    def do_PUT(self) -> None:
        if type(self).refusals:
            type(self).refusals -= 1
            message = "Failed to find datanode, suggest to check cluster health."
            self._answer(403, {"RemoteException": {"exception": "IOException", "message": message}})
        elif "datanode" in self.path:
            self._answer(201, {})
        else:
            assert isinstance(self.server, http.server.HTTPServer)
            self._answer(307, {}, Location=f"http://127.0.0.1:{self.server.server_port}/datanode")

    def _answer(self, status: int, body: dict[str, object], **headers: str) -> None:
        data = json.dumps(body).encode()
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def test_the_namenodes_journal_is_folded_into_its_image_while_it_runs(
    java_jars: dict[str, Path], tmp_path: Path
) -> None:
    """A NameNode alone never does: each transaction of years would be kept, and read at the next start."""
    settings = {"dfs.namenode.checkpoint.txns": "30", "dfs.namenode.num.extra.edits.retained": "0"}
    process = hdfs_process(tmp_path, **settings)
    files = tmp_path / "hdfs" / "name" / "current"

    def oldest() -> int:
        """The first transaction that is kept as such."""
        return min(int(path.name.split("_")[-1].split("-")[0]) for path in files.glob("edits_*"))

    process.start()
    try:
        process.wait_ready()
        with process.client() as client:
            count = 0

            def is_folded() -> bool:
                nonlocal count
                client.write(f"/folded/{count}", str(count).encode())
                count += 1
                return len(list(files.glob("fsimage_*[0-9]"))) > 1 and oldest() > 30

            eventually(is_folded, 60.0)
            process.kill()
            process.start()
            process.wait_ready()
            assert sorted(int(entry.name) for entry in client.entries("/folded")) == list(range(count))
            assert client.read(f"/folded/{count - 1}") == str(count - 1).encode()
    finally:
        process.stop()


@pytest.mark.parametrize(
    ("capacity_bytes", "free_bytes", "words", "kind"),
    [
        (0, 0, "offers no room at all", HdfsUnreachableError),
        (1 << 40, 1 << 39, "although 549755813888 bytes are free", HdfsNoTargetError),
        (1 << 40, 1 << 20, "no DataNode has room", HdfsFullError),
    ],
)
def test_a_block_without_a_datanode(
    capacity_bytes: int, free_bytes: int, words: str, kind: type[HdfsError]
) -> None:
    state = {"capacity_bytes": capacity_bytes, "free_bytes": free_bytes}
    handler = type("Handler", (JustConnected,), {**state, "refusals": 3})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            with HdfsClient(url, patience_s=0) as hasty, pytest.raises(kind, match=words):
                hasty.write("/x", b"x")
            with HdfsClient(url, sleep=lambda _: None) as patient:
                if kind.retriable:
                    patient.write("/x", b"x")
                else:
                    with pytest.raises(kind):
                        patient.write("/x", b"x")
        finally:
            server.shutdown()
            thread.join()


class WithoutReplicas(JustConnected):
    """A NameNode that knows a file, and none of its blocks' replicas."""

    live = 1

    def do_GET(self) -> None:
        if "/jmx" in self.path:
            bean = {"FSState": "Operational", "NumLiveDataNodes": self.live}
            self._answer(200, {"beans": [{**bean, "CapacityTotal": 9, "CapacityRemaining": 9}]})
            return
        message = "No active and not excluded nodes contain this block"
        self._answer(403, {"RemoteException": {"exception": "IOException", "message": message}})


@pytest.mark.parametrize(("live", "kind"), [(1, HdfsDamagedError), (0, HdfsUnreachableError)])
def test_blocks_without_replicas_are_lost_only_if_datanodes_are_there(
    live: int, kind: type[HdfsError]
) -> None:
    handler = type("Handler", (WithoutReplicas,), {"live": live})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            with HdfsClient(url, patience_s=0) as client, pytest.raises(kind):
                client.read("/x")
        finally:
            server.shutdown()
            thread.join()


class Half(http.server.BaseHTTPRequestHandler):
    """A DataNode that is killed in the middle of its first two answers."""

    data = b"0123456789" * 1_000
    kills = 2
    is_chunked = False

    def do_GET(self) -> None:
        type(self).kills -= 1
        kept = self.data[: 4_000 if self.kills >= 0 else None]
        self.send_response(200)
        if self.is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
            kept = b"%x\r\n%b\r\n%b" % (len(kept), kept, b"" if self.kills >= 0 else b"0\r\n\r\n")
        else:
            self.send_header("Content-Length", str(len(self.data)))
        self.end_headers()
        self.wfile.write(kept)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("is_chunked", [False, True])
def test_half_an_answer_is_not_taken_for_a_file(is_chunked: bool) -> None:
    handler = type("Handler", (Half,), {"is_chunked": is_chunked})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            with (
                HdfsClient(url, patience_s=0) as hasty,
                pytest.raises(HdfsUnreachableError, match="ended too early"),
            ):
                hasty.read("/x")
            with HdfsClient(url, sleep=lambda _: None) as patient:
                assert patient.read("/x") == Half.data
                with pytest.raises(HdfsError, match="10000 bytes instead of 10"):
                    patient.read("/x", offset=5, length=10)
        finally:
            server.shutdown()
            thread.join()


def test_an_address_without_hdfs() -> None:
    with HdfsClient("http://127.0.0.1:9", patience_s=0) as client:
        assert "doesn't answer" in str(client.problem())
        with pytest.raises(HdfsUnreachableError):
            client.entries("/")


@pytest.mark.parametrize(
    ("message", "kind", "retriable"),
    [
        ("Cannot create file/x. Name node is in safe mode.", HdfsSafeModeError, True),
        (
            "/x could only be written to 0 of the 1 minReplication nodes. There are 1 datanode(s) running",
            HdfsFullError,
            False,
        ),
        (
            "/x could only be written to 0 of the 1 minReplication nodes. There are 0 datanode(s) running",
            HdfsUnreachableError,
            True,
        ),
        ('Permission denied: user=eve, access=WRITE, inode="/"', HdfsPermissionError, False),
        ("java.net.ConnectException: Connection refused", HdfsUnreachableError, True),
    ],
)
def test_hadoops_messages_are_recognised(message: str, kind: type, retriable: bool) -> None:
    error = explain(f"An error occurred\n\tat {message}\n\tat x.y(Z.java)", "load t")
    assert error is not None
    assert type(error) is kind
    assert error.retriable is retriable
    assert str(error).startswith("load t: ")
    assert "Z.java" not in str(error)


def test_other_messages_are_not_hdfs_problems() -> None:
    assert explain("java.lang.NullPointerException", "load t") is None
