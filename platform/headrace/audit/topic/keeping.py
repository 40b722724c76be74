"""How long the audit topics keep their records: as long as the store promises its hours, and a day longer.

A store that is lost is folded again from these topics. So they must not forget what the store still keeps.
Owns their `retention.ms`, which it only ever raises.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from headrace.client import Admin

logger = logging.getLogger(__name__)

KEPT_LONGER_MS: Final = 24 * 3_600_000
"""An hour's first records are older than its last ones, which say how long the store keeps it."""
_MS, _BYTES = "retention.ms", "retention.bytes"
_NO_LIMIT: Final = -1


def keep_records(admin: Admin, topics: Iterable[str], keep_ms: int) -> list[str]:
    """Makes these topics keep their records for `keep_ms`, and a day longer; returns those that it changed.

    A topic that does not exist is left out. One with a limit in bytes keeps it, and is named in the log.
    Raises `ClientError`.
    """
    wanted_ms = keep_ms + KEPT_LONGER_MS
    changed: list[str] = []
    for topic, settings in admin.topic_settings(topics, (_MS, _BYTES)).items():
        if int(settings.get(_BYTES) or _NO_LIMIT) != _NO_LIMIT:
            logger.warning(
                "%s keeps %s bytes a partition: a store that is rebuilt from it may lack older hours",
                topic,
                settings[_BYTES],
            )
        if _NO_LIMIT < int(settings.get(_MS) or _NO_LIMIT) < wanted_ms:
            admin.alter_configs(topic, {_MS: str(wanted_ms)})
            logger.info("%s keeps its records for %d ms from now on, as the store does", topic, wanted_ms)
            changed.append(topic)
    return changed
