"""The load as a process of its own: its command line, SIGKILL at any moment, a standalone Spark cluster."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fix_ports import free_ports
from fix_warehouse import BASE_TIME_MS, TestTopic, World, click
from fix_zookeeper import die_with_parent
from headrace.warehouse.session import python_files

pytestmark = [pytest.mark.spark, pytest.mark.hdfs]

JOB_WAIT_MAX_S = 240.0
KILLS = 10
EVENTS_A_RUN = 2_000
LARGE = 2_000


def clicks(first: int, count: int) -> list[dict[str, Any]]:
    return [click(number, BASE_TIME_MS + number * 500) for number in range(first, first + count)]


def job(topic: TestTopic, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """`python -m headrace.warehouse.job load`, in a process group of its own."""
    world = topic.world
    command = [sys.executable, "-m", "headrace.warehouse.job", "load", topic.name, "--no-audit"]
    for name in ("bootstrap", "registry_url", "hdfs_url", "webhdfs_url", "root"):
        command += [f"--{name.replace('_', '-')}", world.addresses[name]]
    return subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=die_with_parent,
        env={**os.environ, **environment},
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, error = process.communicate(timeout=JOB_WAIT_MAX_S)
    finally:
        kill_group(process)
    return process.returncode, out, error


def kill_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.timeout(1500)
def test_ten_kills_at_random_moments_lose_and_duplicate_nothing(world: World) -> None:
    topic = world.topic("killed", partitions=3)
    topic.publish(clicks(0, EVENTS_A_RUN))
    began = time.monotonic()
    code, out, error = finish(job(topic, "--master", "local[2]"))
    assert code == 0, error
    assert json.loads(out)[0]["rows"] == EVENTS_A_RUN
    whole_s = time.monotonic() - began
    chance = random.Random(2011)
    produced = EVENTS_A_RUN
    for kill in range(KILLS):
        topic.publish(clicks(produced, EVENTS_A_RUN))
        produced += EVENTS_A_RUN
        process = job(topic, "--master", "local[2]")
        # A job spends the first half of its time on starting.
        moment_s = whole_s * chance.uniform(0.4, 1.1)
        try:
            process.communicate(timeout=moment_s)
        except subprocess.TimeoutExpired:
            if kill % 2:
                os.kill(process.pid, signal.SIGKILL)
            kill_group(process)
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stderr.close()
    topic.load()
    rows = topic.table().selectExpr("number", "_partition", "_offset", "header.time as time").collect()
    assert sorted(row.number for row in rows) == list(range(produced))
    assert len({(row._partition, row._offset) for row in rows}) == produced
    by_hour: dict[int, int] = {}
    for event in clicks(0, produced):
        hour = int(event["header"]["time"].timestamp()) // 3600
        by_hour[hour] = by_hour.get(hour, 0) + 1
    in_files: dict[int, int] = {}
    for each in topic.log.state().files.values():
        in_files[each.hour_ms // 3_600_000] = in_files.get(each.hour_ms // 3_600_000, 0) + each.rows
    assert in_files == by_hour


def test_a_refusal_is_one_line_and_a_result_file_is_whole(world: World, tmp_path: Path) -> None:
    topic = world.topic("refused")
    result = tmp_path / "result.json"
    topic.send([(b"x", BASE_TIME_MS)])
    # The load is refused before Spark starts, which would fail without Java.
    code, _, error = finish(job(topic, "--result", str(result), JAVA_HOME="/nowhere"))
    assert code == 1
    assert f"headrace warehouse: no registry has the subject {topic.name}-value" in error
    assert "Traceback" not in error
    assert not result.exists()
    code, out, error = finish(job(topic, "--dry-run", "--result", str(result)))
    assert code == 0, error
    [plan] = json.loads(result.read_text())
    assert plan == json.loads(out)[0]
    assert plan["topic"] == topic.name
    assert len(plan["ranges"]) == 1


def test_a_load_without_new_records_starts_no_spark(world: World) -> None:
    topic = world.topic("silent")
    code, out, error = finish(job(topic, JAVA_HOME="/nowhere"))
    assert code == 0, error
    assert json.loads(out)[0]["sequence"] is None


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    """A Spark master and two workers; its URL."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    port, *ui = free_ports(4)
    url = f"spark://127.0.0.1:{port}"
    base = ["java", "-Xmx256m", "-cp", f"{jars}/*"]
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> None:
        with (tmp_path / f"{name}.log").open("ab") as log:
            environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(jars.parent)}
            environment["SPARK_SCALA_VERSION"] = "2.13"
            started.append(
                subprocess.Popen(
                    [*base, *arguments], stdout=log, stderr=log, env=environment, preexec_fn=die_with_parent
                )
            )

    host = ("--host", "127.0.0.1")
    start(
        "master",
        "org.apache.spark.deploy.master.Master",
        *host,
        "--port",
        str(port),
        "--webui-port",
        str(ui[0]),
    )
    deadline = time.monotonic() + 120
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            assert time.monotonic() < deadline, (tmp_path / "master.log").read_text()
            time.sleep(0.2)
    for number in (1, 2):
        start(
            f"worker-{number}",
            "org.apache.spark.deploy.worker.Worker",
            url,
            *host,
            *("--cores", "1", "--memory", "700m", "--webui-port", str(ui[number])),
            *("--work-dir", str(tmp_path / f"work-{number}")),
        )
    yield url
    for process in started:
        process.kill()
        process.wait(30)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_load_on_a_standalone_cluster_survives_a_killed_executor(
    world: World, standalone: str, tmp_path: Path
) -> None:
    topic = world.topic("cluster", partitions=4)
    topic.publish(large_clicks(0))
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(
        "spark.executor.memory 512m\nspark.driver.host 127.0.0.1\nspark.driver.bindAddress 127.0.0.1\n"
        "spark.ui.enabled false\nspark.executor.cores 1\nspark.cores.max 2\n"
        "spark.scheduler.minRegisteredResourcesRatio "
        "1.0\nspark.scheduler.maxRegisteredResourcesWaitingTime 60s\n"
    )
    # A killed executor costs its tasks another attempt, and nothing else.
    process = job(topic, "--master", standalone, SPARK_CONF_DIR=str(conf), PYSPARK_PYTHON=sys.executable)
    killed = kill_a_working_executor(topic, tmp_path / "work-1")
    code, out, error = finish(process)
    assert code == 0, error
    assert json.loads(out)[0]["rows"] == LARGE
    executors = [path for number in (1, 2) for path in (tmp_path / f"work-{number}").glob("app-*/*")]
    assert {path.parts[-3] for path in executors} == {"work-1", "work-2"}
    assert len(executors) > 2, f"none took the place of executor {killed}"
    # Both got the Python files.
    sent = [path / "headrace.zip" for path in executors if (path / "headrace.zip").exists()]
    assert len(sent) >= 2
    assert all(path.read_bytes() == python_files() for path in sent)
    assert sorted(row.number for row in topic.table().select("number").collect()) == list(range(LARGE))


def large_clicks(first: int) -> list[dict[str, Any]]:
    """Events that do not compress, enough for two tasks."""
    noise = random.Random(first)
    return [{**each, "word": noise.randbytes(4_000).hex()} for each in clicks(first, LARGE)]


def kill_a_working_executor(topic: TestTopic, work: Path) -> str:
    """Kills the executor of a worker once the load stages files; returns its number."""
    deadline = time.monotonic() + JOB_WAIT_MAX_S
    while not any(path.endswith(".parquet") for path, _ in topic.world.hdfs.walk(topic.log.paths.staging)):
        assert time.monotonic() < deadline, "nothing is staged"
        time.sleep(0.02)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if (entry / "cwd").readlink().is_relative_to(work) and b"--executor-id" in words:
                os.kill(int(entry.name), signal.SIGKILL)
                return words[words.index(b"--executor-id") + 1].decode()
    raise AssertionError("no executor is at work there")
