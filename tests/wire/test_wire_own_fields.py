"""Fields of our own in Kafka's messages: ours read them, others skip them."""

from __future__ import annotations

import pytest
from kio.schema.describe_log_dirs.v4.response import DescribeLogDirsResponse as KafkaLogDirs

from headrace.broker.bodies import build
from headrace.wire.apis import ApiKey
from headrace.wire.messages import decode_response, encode_response
from headrace.wire.primitives import ItemBound
from headrace.wire.schemas import reader

TREE = {
    "error_code": 0,
    "results": [
        {"error_code": 56, "log_dir": "/data/rot-0", "topics": [], "problem": "a bit is wrong"},
        {
            "error_code": 0,
            "log_dir": "/data",
            "topics": [],
            "total_bytes": 9,
            "usable_bytes": 4,
            "file_system": "f00",
            "reserve_bytes": 3,
        },
    ],
}
HEADER_BYTES = 4 + 4 + 1  # length, correlation id, tags


def test_a_problem_is_in_a_tagged_field_that_others_skip() -> None:
    framed = encode_response(build(ApiKey.DESCRIBE_LOG_DIRS, 4, TREE), correlation_id=7)
    number, body = decode_response(framed[4:], api_key=ApiKey.DESCRIBE_LOG_DIRS, version=4)
    assert number == 7
    assert [each.problem for each in body.results] == ["a bit is wrong", ""]
    assert [(each.file_system, each.reserve_bytes) for each in body.results] == [("", -1), ("f00", 3)]
    theirs, end = reader(KafkaLogDirs)(memoryview(framed), HEADER_BYTES, ItemBound())
    assert end == len(framed)
    assert [(each.log_dir, each.total_bytes) for each in theirs.results] == [
        ("/data/rot-0", -1),
        ("/data", 9),
    ]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_older_versions_are_kafkas(version: int) -> None:
    framed = encode_response(build(ApiKey.DESCRIBE_LOG_DIRS, version, TREE), correlation_id=1)
    assert b"a bit is wrong" not in framed and b"f00" not in framed
    _, body = decode_response(framed[4:], api_key=ApiKey.DESCRIBE_LOG_DIRS, version=version)
    assert [each.log_dir for each in body.results] == ["/data/rot-0", "/data"]
