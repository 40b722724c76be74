"""Names of topics and partitions. Which a topic can have is Kafka's own rule
(org.apache.kafka.common.internals.Topic).
"""

from __future__ import annotations

import re
from typing import Final

TopicPartition = tuple[str, int]
"""A topic's name, and the number of one of its partitions."""

TOPIC_NAME_LENGTH_MAX: Final = 249
TOPIC_NAME_RULE: Final = (
    f"1 to {TOPIC_NAME_LENGTH_MAX} characters of a-z A-Z 0-9 . _ - other than '.' and '..'"
)
_TOPIC_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_NAME_LENGTH_MAX}}}")


def is_topic_name(name: str) -> bool:
    """Whether Kafka allows the name."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in {".", ".."}
