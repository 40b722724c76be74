"""The provider's log as Terraform reads it: one JSON object per line on stderr (go-hclog's form).

Owns the form and the level. Terraform shows a line if `TF_LOG` (or `TF_LOG_PROVIDER`) asks for its level.
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
_LEVEL_NAMES: Final = {logging.WARNING: "warn", logging.CRITICAL: "error", TRACE: "trace"}


class HclogFormatter(logging.Formatter):
    """Formats a log record as go-hclog would write it."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        fields = {
            "@level": _LEVEL_NAMES.get(record.levelno, record.levelname.lower()),
            "@message": text,
            "@module": f"{MODULE}.{record.name.removeprefix('headrace.')}",
            "@timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
        }
        return json.dumps(fields)


def level_of(environment: Mapping[str, str]) -> int:
    """Returns the level that Terraform asks for; warnings by default."""
    for name in ("TF_LOG_PROVIDER_HEADRACE", "TF_LOG_PROVIDER", "TF_LOG"):
        if level := environment.get(name, "").upper():
            return _LEVELS.get(level, TRACE)
    return logging.WARNING


def set_up(environment: Mapping[str, str] = os.environ) -> None:
    """Sends everything that this process logs to stderr in this form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(HclogFormatter())
    level = level_of(environment)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # These clients log a line for each request, with its URL.
    for name in ("httpx", "httpcore", "urllib3", "kazoo"):
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
