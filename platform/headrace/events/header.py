"""The header of every event and report: when, where and by which service it was published."""

import uuid
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Origin:
    """The publishing service: the constant part of the header."""

    datacenter: str
    server: str
    service: str

    def header(self, time_ms: int) -> dict[str, Any]:
        return {
            "time": time_ms,
            "datacenter": self.datacenter,
            "server": self.server,
            "service": self.service,
            "guid": str(uuid.uuid4()),
        }
