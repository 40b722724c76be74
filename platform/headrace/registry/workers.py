"""Runs the tasks of `registry.worker` in processes of their own, each with a deadline.

Two *lanes*, each with one process: a task that may take long never keeps a short one waiting. A lane has a
bound of waiting tasks. A task that takes too much CPU, or too long, is ended with its process; the next task
gets a new one.
"""

import logging
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from headrace.registry import errors
from headrace.registry.bounded_cache import BoundedCache
from headrace.registry.compatibility import Level
from headrace.registry.errors import RegistryError
from headrace.registry.schemas import SCHEMA_MAX_BYTES, InvalidSchemaError, ParsedSchema
from headrace.registry.worker import message, read_message

logger = logging.getLogger(__name__)

TASK_MAX_S: Final = 4.0
"""Of the worker's CPU: what a schema may take is the same on a machine that is busy."""
WALL_FACTOR: Final = 3
"""How many times as long a task may take by the clock: others wait for it."""
START_MAX_S: Final = 20.0
"""Of a worker process: it imports two Avro libraries, on a machine that may be busy."""
HALF_WAIT_S: Final = 1.0
"""How much longer the halves of a task and of its answer may take."""
WAIT_MAX_S: Final = 5.0
WAITING_MAX: Final = 12
"""Tasks of one lane, below a third of the threads that serve requests."""
LIGHT_MAX_BYTES: Final = 64_000
LIGHT_PAIRS_MAX: Final = 20_000
"""Of types that are compared; a check of this many takes below half a second."""
PARSED_MAX_BYTES: Final = 32 << 20


class TooLongError(Exception):
    """The task did not end before its deadline."""


class Lane:
    """One process and the tasks that wait for it."""

    def __init__(self, name: str, *, task_max_s: float = TASK_MAX_S) -> None:
        self._name = name
        self._task_max_s = task_max_s
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(WAITING_MAX)
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def run(self, task: dict[str, Any]) -> dict[str, Any]:
        """Returns the task's answer. Raises `TooLongError`, or `RegistryError` 503 if too many tasks wait."""
        if not self._slots.acquire(blocking=False):
            raise _busy(f"{WAITING_MAX} requests")
        try:
            if not self._lock.acquire(timeout=WAIT_MAX_S):
                raise _busy(f"others, for {WAIT_MAX_S:g} s")
            try:
                return self._run(task)
            finally:
                self._lock.release()
        finally:
            self._slots.release()

    def start(self) -> None:
        """Starts the process before a task needs it."""
        with self._lock:
            self._running()

    def close(self) -> None:
        self._closed = True
        self._end()

    def _run(self, task: dict[str, Any]) -> dict[str, Any]:
        process = self._running()
        wall_max_s = WALL_FACTOR * self._task_max_s
        limits = {"cpu_max_s": self._task_max_s, "wall_max_s": wall_max_s}
        answer = self._answer(process, {**task, **limits}, wall_max_s)
        if not isinstance(answer, dict):
            self._end()
            if process.returncode == -signal.SIGPROF:  # the limit of its CPU
                raise TooLongError
            # The task took all memory, or an Avro library crashed.
            logger.warning(
                "the registry's %s worker ended with %d during a task", self._name, process.returncode
            )
            return {"invalid": "the process that reads schemas ended over this one; simplify the schema"}
        return answer

    def _answer(self, process: subprocess.Popen[bytes], task: dict[str, Any], wait_max_s: float) -> Any:
        """Returns the answer to a task; None if the process ended. It is ended before `TooLongError`."""
        assert process.stdin is not None and process.stdout is not None
        is_late = threading.Event()

        def give_up() -> None:
            is_late.set()
            process.kill()

        # A process that reads or answers only a half is killed: no pipe has a deadline of its own.
        timer = threading.Timer(wait_max_s + HALF_WAIT_S, give_up)
        timer.start()
        answer = None
        try:
            process.stdin.write(message(task))
            process.stdin.flush()
            if _readable(process, wait_max_s):
                answer = read_message(process.stdout)
            else:
                is_late.set()
        except BrokenPipeError:
            answer = None
        finally:
            timer.cancel()
        if is_late.is_set():
            self._end()
            raise TooLongError
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise RegistryError(503, "The registry is stopping")
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headrace.registry.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            # A first task, so that the time of its imports does not count as a schema's.
            limits = {"cpu_max_s": START_MAX_S, "wall_max_s": START_MAX_S}
            first = {"do": "parse", "text": '"int"', **limits}
            try:
                answer = self._answer(self._process, first, START_MAX_S)
            except TooLongError:
                answer = None
            if answer is None:
                self._end()
                raise RegistryError(
                    503, f"The process that reads schemas did not start within {START_MAX_S:g} s; retry"
                )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue


class Workers:
    """Parses and compares schemas as `registry.schemas` and `registry.compatibility` do, in bounded time."""

    def __init__(self, *, task_max_s: float = TASK_MAX_S) -> None:
        self._task_max_s = task_max_s
        self._light = Lane("quick", task_max_s=task_max_s)
        self._heavy = Lane("slow", task_max_s=task_max_s)
        self._parsed: BoundedCache[str, ParsedSchema] = BoundedCache(PARSED_MAX_BYTES)

    def start(self) -> None:
        """Starts the processes in the background: the first request finds them ready."""
        for lane in (self._light, self._heavy):
            threading.Thread(target=_start_quietly, args=(lane,), daemon=True).start()

    def close(self) -> None:
        self._light.close()
        self._heavy.close()

    def parse(self, text: str) -> ParsedSchema:
        """Raises `InvalidSchemaError`, `RegistryError` 503."""
        if len(text) > SCHEMA_MAX_BYTES:
            raise InvalidSchemaError(f"the schema is longer than {SCHEMA_MAX_BYTES} bytes")
        known = self._parsed.get(text)
        if known is not None:
            return known
        lane = self._light if len(text) <= LIGHT_MAX_BYTES else self._heavy
        answer = self._run(lane, {"do": "parse", "text": text}, "read")
        parsed = ParsedSchema(
            answer["text"],
            answer["normal_text"],
            bytes.fromhex(answer["digest"]),
            answer["parts"],
            answer["branches_max"],
            answer["illegal_name"],
        )
        self._parsed.put(text, parsed, 4 * (2 * len(text) + len(parsed.normal_text)))
        return parsed

    def incompatibilities(
        self, level: Level, new: ParsedSchema, earlier: Sequence[tuple[int, str]]
    ) -> list[str]:
        """Raises `InvalidSchemaError` if the check takes too long, `RegistryError` 503."""
        if level is Level.NONE or not earlier:
            return []
        olds = [self.parse(text) for _, text in earlier]
        pairs = sum(new.parts * old.branches_max + old.parts * new.branches_max for old in olds)
        size = len(new.text) + sum(len(text) for _, text in earlier)
        lane = self._light if pairs <= LIGHT_PAIRS_MAX and size <= LIGHT_MAX_BYTES else self._heavy
        task = {"do": "compare", "level": level.value, "new": new.text, "earlier": list(earlier)}
        problems: list[str] = self._run(lane, task, "compare")["problems"]
        return problems

    def _run(self, lane: Lane, task: dict[str, Any], verb: str) -> dict[str, Any]:
        try:
            answer = lane.run(task)
        except TooLongError:
            against = f" with {len(task['earlier'])} earlier versions" if "earlier" in task else ""
            raise InvalidSchemaError(
                f"it took longer than {self._task_max_s:g} s to {verb} the schema{against}; it was "
                "given up: simplify the schema (fewer branches in unions, fewer types)"
                + (", or set the subject's level to NONE" if against else "")
            ) from None
        if "invalid" in answer:
            raise InvalidSchemaError(answer["invalid"])
        return answer


def _busy(what: str) -> RegistryError:
    return RegistryError(
        errors.BUSY, f"The registry is busy: {what} with schemas that take long are waiting; retry later"
    )


def _readable(process: subprocess.Popen[bytes], wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    assert process.stdout is not None
    while (left_s := deadline - time.monotonic()) > 0:
        # poll() has no limit of file descriptors, as select() has.
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN | select.POLLHUP)
        if poll.poll(left_s * 1000):
            return True
    return False


def _start_quietly(lane: Lane) -> None:
    try:
        lane.start()
    except (OSError, RegistryError) as error:
        logger.warning("a worker of the registry could not be started yet: %s", error)
