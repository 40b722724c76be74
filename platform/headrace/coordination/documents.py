"""JSON in znodes: `{"version": 1, …}`, compact, sorted; and the complaint when a node holds something
else."""

import json
from typing import Any, Final

from headrace.coordination.errors import CorruptNodeError

VERSION: Final = 1


def encode(fields: dict[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **fields}, separators=(",", ":"), sort_keys=True).encode()


def decode(path: str, data: bytes) -> dict[str, Any]:
    """The fields of a node's document. Raises `CorruptNodeError` unless it is a JSON object of our
    version."""
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise CorruptNodeError(f"{path}: expected JSON, found {data[:40]!r} ({error})") from None
    if not isinstance(fields, dict) or fields.get("version") != VERSION:
        raise CorruptNodeError(f"{path}: expected a JSON object of version {VERSION}, found {data[:80]!r}")
    return fields
