"""`python -m headrace.registry.worker`: parses and compares schemas for a registry, one task after the other.

A process of its own, because a schema of a few kB can keep a parser or the compatibility check busy for
ever, or take all memory: each task has a limit of CPU and of time, which end the process
(`registry.workers`), and other requests never wait for it. Tasks and answers are JSON behind a length of four
bytes, on standard input and output.
"""

import contextlib
import json
import resource
import signal
import struct
import sys
from typing import IO, Any, Final

from headrace.registry.compatibility import Level, incompatibilities
from headrace.registry.schemas import InvalidSchemaError, parse

LENGTH: Final = struct.Struct(">I")
MEMORY_MAX_BYTES: Final = 1 << 30
OVERDUE_S: Final = 2.0
"""If the registry was killed, nobody else ends a task that waits."""


def perform(task: dict[str, Any]) -> dict[str, Any]:
    """Returns a task's answer: its result, or `invalid`, what is wrong with the schema."""
    try:
        if task["do"] == "parse":
            parsed = parse(task["text"])
            return {
                "text": parsed.text,
                "normal_text": parsed.normal_text,
                "digest": parsed.digest.hex(),
                "parts": parsed.parts,
                "branches_max": parsed.branches_max,
                "illegal_name": parsed.illegal_name,
            }
        earlier = [(int(version), str(text)) for version, text in task["earlier"]]
        return {"problems": incompatibilities(Level(task["level"]), task["new"], earlier)}
    except InvalidSchemaError as error:
        return {"invalid": str(error)}
    except MemoryError:
        return {"invalid": f"it takes more than {MEMORY_MAX_BYTES >> 20} MiB of memory to read the schema"}
    except RecursionError:
        return {"invalid": "the schema is nested too deeply"}
    except Exception as error:
        # A library's checker met a schema that its parser let through.
        return {"invalid": f"the schema can't be compared: {type(error).__name__} {error}"[:500]}


def read_message(stream: IO[bytes]) -> Any:
    """Returns the next message; None at the stream's end."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = stream.read(length)
    return json.loads(body) if len(body) == length else None


def message(content: Any) -> bytes:
    body = json.dumps(content).encode()
    return LENGTH.pack(len(body)) + body


def main() -> int:
    # A terminal's Ctrl-C goes to all of its processes; the registry ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))
    while (task := read_message(sys.stdin.buffer)) is not None:
        signal.setitimer(signal.ITIMER_PROF, task["cpu_max_s"])
        signal.setitimer(signal.ITIMER_REAL, task["wall_max_s"] + OVERDUE_S)
        answer = message(perform(task))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
