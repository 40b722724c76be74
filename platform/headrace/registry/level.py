"""The names of the compatibility levels. Apart from their rules: commands name the levels in their help, and
start faster without Avro's libraries.
"""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    """BACKWARD: the new schema reads what the old one wrote. FORWARD: the old one reads what the new writes.

    FULL: both. TRANSITIVE: with all earlier versions, not only the last.
    """

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        return self.value.endswith("_TRANSITIVE")
