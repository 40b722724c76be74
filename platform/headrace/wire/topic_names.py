"""Which names a topic can have: Kafka's own rule (org.apache.kafka.common.internals.Topic)."""

from __future__ import annotations

import re
from typing import Final

TOPIC_NAME_LENGTH_MAX: Final = 249
TOPIC_NAME_RULE: Final = (
    f"1 to {TOPIC_NAME_LENGTH_MAX} characters of a-z A-Z 0-9 . _ - other than '.' and '..'"
)
_TOPIC_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_NAME_LENGTH_MAX}}}")


def is_topic_name(name: str) -> bool:
    """Whether Kafka allows the name."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in {".", ".."}
