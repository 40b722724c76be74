"""Responses of Kafka's protocol with a field more: tagged, so other clients skip it (KIP-482).

Tags from 10,000 on are ours: Kafka counts from 0. No postponed annotations here: kio and `wire.schemas` read
the types of the fields.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from kio.index import load_response_schema
from kio.schema.describe_log_dirs.v4.response import DescribeLogDirsResponse, DescribeLogDirsResult

from headrace.wire.apis import ApiKey

PROBLEM_TAG: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir(DescribeLogDirsResult):
    """`problem`: what is wrong with the log directory, and the ways out; Kafka has only an error code."""

    problem: str = field(metadata={"kafka_type": "string", "tag": PROBLEM_TAG}, default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirs(DescribeLogDirsResponse):
    results: tuple[LogDir, ...]


_OWN: Final[dict[tuple[int, int], type[Any]]] = {(ApiKey.DESCRIBE_LOG_DIRS, 4): LogDirs}


@lru_cache(maxsize=512)
def response_schema(api_key: int, version: int) -> type[Any]:
    """Returns the dataclass of a response. Raises kio's `KioIndexError` for an unknown version."""
    return _OWN.get((api_key, version)) or load_response_schema(api_key, version)
