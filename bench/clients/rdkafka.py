"""The client on librdkafka: a C program that the bench builds, and the commands that start it.

Owns `$HEADRACE_HOME/bench/rdkafka_bench`, built from the C files beside this module. Most clients in
other languages than Java rest on librdkafka. The producer keeps its defaults unless an option says otherwise:
acks=all, not idempotent, a batch of up to 1 MB or 10,000 records that waits at most 5 ms, up to 1,000,000
requests in flight, a queue of 100,000 records. It keeps that queue full, so that with batches of one record
up to 100,000 requests are in flight.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from clients.outcome import ClientFailedError
from side_by_side.process import PinnedProcess

from headrace.warehouse.jars import headrace_home

PACKAGES: Final = ("librdkafka-dev", "gcc", "libc6-dev")
INSTALL_WAIT_MAX_S: Final = 600.0
BUILD_WAIT_MAX_S: Final = 120.0
HEADER: Final = Path("/usr/include/librdkafka/rdkafka.h")
_HERE: Final = Path(__file__).parent
_SOURCES: Final = tuple(sorted(_HERE.glob("rdkafka_*.[ch]")))
_FLAGS: Final = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror")


class ClientMissingError(Exception):
    """The client cannot be built here. The message names the Debian packages that it needs."""


# --- building ---


def ensure_client(home: Path | None = None) -> Path:
    """Returns the program; builds it if its source has changed, and installs what that needs if root.

    Raises `ClientMissingError`.
    """
    folder = (home or headrace_home()) / "bench"
    program, marker = folder / "rdkafka_bench", folder / "rdkafka_bench.digest"
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in _SOURCES)).hexdigest()
    if program.is_file() and marker.is_file() and marker.read_text() == digest:
        return program
    _require_packages()
    folder.mkdir(parents=True, exist_ok=True)
    build(program)
    marker.write_text(digest)
    return program


def build(program: Path) -> None:
    """Compiles the program. Raises `ClientMissingError` with the compiler's messages."""
    fresh = program.with_suffix(f".{os.getpid()}")
    sources = [str(path) for path in _SOURCES if path.suffix == ".c"]
    done = subprocess.run(
        ["cc", *_FLAGS, "-o", str(fresh), *sources, "-lrdkafka"],
        capture_output=True,
        text=True,
        timeout=BUILD_WAIT_MAX_S,
        check=False,
    )
    if done.returncode != 0:
        raise ClientMissingError(f"the C client does not compile: {done.stderr[-3000:]}")
    fresh.replace(program)


def _require_packages() -> None:
    if is_installed():
        return
    names = " ".join(PACKAGES)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ClientMissingError(f"the C client needs {names}; as root: apt-get install {names}")
    update = ["apt-get", "update", "-qq"]
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]
    for command in (update, install):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_WAIT_MAX_S, check=False
        )
        if done.returncode != 0:
            raise ClientMissingError(
                f"the C client needs {names}, and they could not be installed: {done.stderr[-1000:]}"
            )


def is_installed() -> bool:
    """Returns whether the program can be built here."""
    return HEADER.is_file() and shutil.which("cc") is not None


# --- commands ---


def produce_command(
    bootstrap: str,
    topic: str,
    *,
    records: int = 0,
    seconds: float = 0,
    warmup_s: float = 0,
    partitions: int = 1,
    first_partition: int = 0,
    value_bytes: int = 200,
    batch: int = 0,
    acks: str = "all",
    settings: Mapping[str, str] | None = None,
) -> list[str]:
    """Returns the command of a producer: for `seconds` after `warmup_s`, or of exactly `records` records.

    `batch` is the records in a batch; 0 is librdkafka's default batching.
    """
    command = _command("produce", bootstrap, topic, partitions, first_partition, value_bytes)
    command += ["--batch", str(batch), "--acks", acks]
    return command + _extent(records, seconds, warmup_s) + _settings(settings)


def consume_command(
    bootstrap: str,
    topic: str,
    *,
    records: int = 0,
    seconds: float = 0,
    warmup_s: float = 0,
    partitions: int = 1,
    first_partition: int = 0,
    value_bytes: int = 200,
    settings: Mapping[str, str] | None = None,
) -> list[str]:
    """Returns the command of a consumer that starts at the beginning.

    With `seconds` it reads the partitions again and again; otherwise `records` records, or to the end.
    """
    command = _command("consume", bootstrap, topic, partitions, first_partition, value_bytes)
    return command + _extent(records, seconds, warmup_s) + _settings(settings)


def _command(
    mode: str, bootstrap: str, topic: str, partitions: int, first_partition: int, value_bytes: int
) -> list[str]:
    command = [str(ensure_client()), mode, "--bootstrap", bootstrap, "--topic", topic]
    command += ["--partitions", str(partitions), "--first-partition", str(first_partition)]
    return [*command, "--value-bytes", str(value_bytes)]


def _extent(records: int, seconds: float, warmup_s: float) -> list[str]:
    if records:
        return ["--records", str(records)]
    return ["--seconds", str(seconds), "--warmup", str(warmup_s)] if seconds else []


def _settings(settings: Mapping[str, str] | None) -> list[str]:
    return [word for name, value in (settings or {}).items() for word in ("--set", f"{name}={value}")]


def hold_connections(bootstrap: str, count: int, *, cores: Collection[int], log: Path) -> PinnedProcess:
    """Opens `count` connections and returns once all are open; they idle until the process is stopped.

    They are plain sockets, because a thousand librdkafka clients would have thousands of threads. Raises
    `ClientFailedError`.
    """
    program = _HERE.parent / "idle_connections.py"
    command = [sys.executable, str(program), f"--bootstrap={bootstrap}", f"--count={count}"]
    process = PinnedProcess(command, cores=cores, log=log, pipe_output=True)
    if process.output.readline() != b"begin\n":
        process.kill()
        raise ClientFailedError(f"{count} connections to {bootstrap} do not open: {process.log_tail()}")
    return process
