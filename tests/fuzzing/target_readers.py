"""Stored bytes that are damaged in any way, read by the wire's decoders and by `headrace dump-log`.

A reader may refuse bytes by the errors that it names; it may not fail otherwise, take long, or take much
memory.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from fuzzing.batches import TIME_MS, batch, honest_batch
from fuzzing.limits import bounded
from fuzzing.values import mutate
from fuzzing.world import World
from headrace.wire.batch import hop, readdress
from headrace.wire.errors import WireError
from headrace.wire.records import decode_columns, decode_records

CASES: Final = 400
DUMPS: Final = 2
DUMP_WAIT_MAX_S: Final = 60.0


def run(_world: World, rng: random.Random) -> list[str]:
    """Returns the last bytes in hex."""
    data = b""
    for _ in range(CASES):
        data = _stored(rng)
        try:
            read_in_process(data)
        except Exception as error:
            raise AssertionError(f"{error!r} for {data.hex()[:20_000]}") from error
    for _ in range(DUMPS):
        _dump(b"".join(_stored(rng) for _ in range(10)))
    return [data.hex()]


def read_in_process(data: bytes) -> None:
    """By the decoders of `wire`."""
    with bounded("decoding"):
        for decode in (decode_records, decode_columns):
            try:
                for position, _ in hop(data):
                    try:
                        decode(data, position)
                    except WireError:
                        continue
            except WireError:
                continue


def _stored(rng: random.Random) -> bytes:
    """A few batches as they stand in a log, damaged in one case of two."""
    out = bytearray()
    for _ in range(rng.choice((1, 2, 4))):
        at = len(out)
        out += batch(rng) if rng.random() < 0.7 else honest_batch(rng.randbytes(20), TIME_MS)
        if len(out) - at > 61:
            try:
                readdress(out, at, at, 3)
            except (OverflowError, ValueError):
                continue
    return mutate(rng, bytes(out)) if rng.random() < 0.5 else bytes(out)


def _dump(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{0:020}.log"
        path.write_bytes(data)
        command = [sys.executable, "-m", "headrace.cli", "dump-log", str(path)]
        ended = subprocess.run(command, capture_output=True, timeout=DUMP_WAIT_MAX_S, check=False)
        said = ended.stderr.decode(errors="replace")
        assert b"Traceback" not in ended.stderr, f"dump-log: {said[-3000:]} for {data.hex()[:20_000]}"
        assert ended.returncode in (0, 1), f"dump-log ends with {ended.returncode}: {said[-500:]}"
