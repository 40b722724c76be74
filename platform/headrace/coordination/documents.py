"""JSON documents in znodes: `{"version": 1, …}`, compact, with sorted keys."""

import json
from typing import Any, Final

from headrace.coordination.errors import CorruptNodeError

VERSION: Final = 1


def encode(fields: dict[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **fields}, separators=(",", ":"), sort_keys=True).encode()


def decode(path: str, data: bytes) -> dict[str, Any]:
    """Returns the fields of a node's document. Raises `CorruptNodeError` if it is not a JSON object of
    `VERSION`."""
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise CorruptNodeError(f"{path}: expected JSON, found {data[:40]!r} ({error})") from None
    if not isinstance(fields, dict) or fields.get("version") != VERSION:
        raise CorruptNodeError(f"{path}: expected a JSON object of version {VERSION}, found {data[:80]!r}")
    return fields
