"""What requests about settings have in common: which resources have any, and how a result begins."""

from __future__ import annotations

from typing import Any, Final

from headrace.broker.bodies import Tree
from headrace.broker.errors import Refused
from headrace.wire.errors import ErrorCode
from headrace.wire.topic_names import is_topic_name

TOPIC: Final = 2
BROKER: Final = 4


def result_of(resource: Any) -> Tree:
    """Returns the beginning of a resource's result: success."""
    return {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "error_code": ErrorCode.NONE,
        "error_message": None,
    }


def check_topic(name: str) -> None:
    """Raises `Refused` for what can be no topic's name."""
    if not is_topic_name(name):
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"no topic can have the name {name!r}")
