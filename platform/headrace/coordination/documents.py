"""JSON documents in znodes: `{"version": 1, …}`, compact, with sorted keys."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from headrace.coordination.errors import CorruptNodeError, TooLargeError

VERSION: Final = 1
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
CONFIG_MAX_BYTES: Final = 256 * 1024
"""All settings of a topic, or of a broker: each broker reads them again after each change of its topic."""


def encode(fields: dict[str, Any]) -> bytes:
    return _ENCODER.encode({"version": VERSION, **fields}).encode()


def encode_config(path: str, config: Mapping[str, str]) -> bytes:
    """Returns the document of settings. Raises `TooLargeError`."""
    data = encode({"config": dict(config)})
    if len(data) > CONFIG_MAX_BYTES:
        raise TooLargeError(f"{path}: settings of {len(data)} bytes; at most {CONFIG_MAX_BYTES} are stored")
    return data


def decode(path: str, data: bytes) -> dict[str, Any]:
    """Returns the fields of a node's document. Raises `CorruptNodeError` if it is not a JSON object of
    `VERSION`."""
    try:
        fields = _DECODER.decode(data.decode(json.detect_encoding(data), "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise CorruptNodeError(f"{path}: expected JSON, found {data[:40]!r} ({error})") from None
    if not isinstance(fields, dict) or fields.get("version") != VERSION:
        raise CorruptNodeError(f"{path}: expected a JSON object of version {VERSION}, found {data[:80]!r}")
    return fields


def numbers(names: Iterable[str]) -> list[int]:
    """Returns the numbers among the names of nodes, in order: those of INT32 from 0 on, as they are written.

    Anybody with access to ZooKeeper can create a node with any name.
    """
    short = {name for name in names if len(name) <= 10 and name.isascii() and name.isdecimal()}
    return sorted(int(name) for name in short if int(name) <= INT32_MAX and str(int(name)) == name)


def int32(value: object) -> int:
    """Returns a field that must be a number of INT32 from -1 on. Raises `ValueError`."""
    number = int(value) if isinstance(value, int | str) else None
    if number is None or not -1 <= number <= INT32_MAX:
        raise ValueError(f"{str(value)[:40]!r} is no number from -1 to {INT32_MAX}")
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is not a number that everybody reads alike")
    return number


# `json.loads` and `json.dumps` make new ones for each document, if told anything but their defaults.
_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True)
