"""What a broker is started with: its number, its datacenter, its addresses and settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """A broker's configuration. Port 0 takes any free port; `advertise` is the address that clients see.

    A balancer connects to `front_listen`; `front_advertise` is the balancer's own address.
    """

    broker_id: int
    datacenter: str
    listen: Address
    zookeeper: str
    data_dir: Path
    advertise: Address | None = None
    settings: dict[str, str] = field(default_factory=dict)
    front_listen: Address | None = None
    front_advertise: Address | None = None
