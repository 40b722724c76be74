"""What the provider logs, as Terraform takes it in: one JSON object a line on stderr (go-hclog's form).

Owns the form and the level. Terraform shows a line when `TF_LOG` (or `TF_LOG_PROVIDER`) asks for its level.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

MODULE: Final = "provider.headrace"
TRACE: Final = 5
_LEVELS: Final = {
    "TRACE": TRACE,
    "JSON": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "OFF": logging.CRITICAL + 1,
}
_WORDS: Final = {logging.WARNING: "warn", logging.CRITICAL: "error", TRACE: "trace"}


class HclogFormatter(logging.Formatter):
    """A log record as go-hclog would write it."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        said = {
            "@level": _WORDS.get(record.levelno, record.levelname.lower()),
            "@message": text,
            "@module": f"{MODULE}.{record.name.removeprefix('headrace.')}",
            "@timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
        }
        return json.dumps(said)


def level_of(environment: Mapping[str, str]) -> int:
    """What Terraform wants to know; without its word, warnings."""
    for name in ("TF_LOG_PROVIDER_HEADRACE", "TF_LOG_PROVIDER", "TF_LOG"):
        if word := environment.get(name, "").upper():
            return _LEVELS.get(word, TRACE)
    return logging.WARNING


def set_up(environment: Mapping[str, str] = os.environ) -> None:
    """Everything that is logged in this process goes to stderr so."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(HclogFormatter())
    level = level_of(environment)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # One line a request would tell tokens' owners nothing.
    for name in ("httpx", "httpcore", "urllib3", "kazoo"):
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
