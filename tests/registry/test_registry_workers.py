"""Processes that parse and compare: deadlines, crashes, a bound of waiting tasks."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.registry import workers as workers_module
from headrace.registry.compatibility import Level, incompatibilities
from headrace.registry.errors import RegistryError
from headrace.registry.schemas import InvalidSchemaError, parse
from headrace.registry.workers import Lane, TooLongError, Workers

V1 = json.dumps({"type": "record", "name": "a.R", "fields": [{"name": "x", "type": "int"}]})
V2 = json.dumps({"type": "record", "name": "a.R", "fields": [{"name": "y", "type": "int"}]})


def endless(levels: int = 40) -> str:
    """A schema whose default fits or not in 2^levels ways."""
    value: Any = 5
    for _ in range(levels):
        value = {"f": value}
    a, b = (
        {"type": "record", "name": name, "fields": [{"name": "f", "type": types}]}
        for name, types in (("A", ["null", "A", "B"]), ("B", ["A", "B", "null"]))
    )
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": "u", "type": [a, b], "default": value}]}
    )


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(task_max_s=1.0)
    yield made
    made.close()


def test_the_same_answers_as_in_this_process(workers: Workers) -> None:
    assert workers.parse(V1) == parse(V1)
    for level in Level:
        expected = incompatibilities(level, V2, [(1, V1)])
        assert workers.incompatibilities(level, parse(V2), [(1, V1)]) == expected
    with pytest.raises(InvalidSchemaError, match="lacks its attribute 'type'"):
        workers.parse("{}")


def test_a_task_that_takes_too_long_ends_and_the_next_one_is_served(workers: Workers) -> None:
    for _ in range(2):
        with pytest.raises(InvalidSchemaError, match=r"longer than 1 s to read the schema; .*simplify"):
            workers.parse(endless())
        assert workers.parse(V1) == parse(V1)


def test_what_a_task_may_take_is_cpu(workers: Workers) -> None:
    """On a busy machine a task takes longer, and is not given up for it."""
    workers.start()
    with ThreadPoolExecutor(1) as pool:
        workers.parse('"int"')
        process = workers._light._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        running = pool.submit(workers.parse, V1)
        threading.Event().wait(1.2)
        process.send_signal(signal.SIGCONT)
        assert running.result() == parse(V1)


def test_a_process_that_dies_is_replaced() -> None:
    lane = Lane("tested", task_max_s=60.0)
    task = {"do": "parse", "text": V1}
    try:
        assert "digest" in lane.run(task)
        assert lane._process is not None
        os.kill(lane._process.pid, signal.SIGKILL)
        lane._process.wait()
        assert "digest" in lane.run(task), "it died between two tasks"
        # In a task: as if it took all memory.
        pid = lane._process.pid
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(lane.run, {"do": "parse", "text": endless()})
            threading.Event().wait(0.2)
            os.kill(pid, signal.SIGKILL)
            assert "simplify the schema" in running.result()["invalid"]
        assert "digest" in lane.run(task)
    finally:
        lane.close()


def test_a_process_that_does_not_read_its_task_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe takes 64 kB: who writes more waits, and all other requests with it."""
    monkeypatch.setattr(workers_module, "HALF_WAIT_S", 0.1)
    lane = Lane("tested", task_max_s=0.2)
    try:
        lane.start()
        assert lane._process is not None
        stopped = lane._process
        os.kill(stopped.pid, signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(lane.run, {"do": "parse", "text": " " * 200_000 + V1})
            try:
                with pytest.raises(TooLongError):
                    running.result(timeout=5)
            finally:
                stopped.kill()
        assert "digest" in lane.run({"do": "parse", "text": V1}), "the next one is served"
    finally:
        lane.close()


def test_only_so_many_tasks_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "WAITING_MAX", 2)
    monkeypatch.setattr(workers_module, "WAIT_MAX_S", 60.0)  # on a busy machine 2 s of CPU take long
    lane = Lane("tested", task_max_s=2.0)
    try:
        lane.start()
        with ThreadPoolExecutor(6) as pool:
            tasks = [pool.submit(lane.run, {"do": "parse", "text": endless()}) for _ in range(6)]
            errors = [task.exception() for task in tasks]
        busy = [error for error in errors if isinstance(error, RegistryError)]
        assert len(busy) == 4 and all(error.status == 503 and error.retriable for error in busy)
        assert sum(isinstance(error, TooLongError) for error in errors) == 2
    finally:
        lane.close()
