"""What a broker is started with: its number, its datacenter, its addresses and settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headrace.broker.settings.setting import ConfigError
from headrace.process.text import is_wildcard

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """A broker's configuration. Port 0 takes any free port; `advertise` is the address that clients see.

    A balancer connects to `front_listen`; `front_advertise` is the balancer's own address. Raises
    `ConfigError` if clients would see an address that nobody can connect to.
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

    def __post_init__(self) -> None:
        pairs = (
            ("listen", self.listen, "advertise", self.advertise),
            ("front-listen", self.front_listen, "front-advertise", self.front_advertise),
        )
        for listen, listened, advertise, advertised in pairs:
            option, seen = (listen, listened) if advertised is None else (advertise, advertised)
            if seen is not None and is_wildcard(seen[0]):
                raise ConfigError(
                    f"--{option} {seen[0]}:{seen[1]} means every address of this machine; clients can't "
                    f"connect to that: give --{advertise} HOST:PORT, the address that they are to see"
                )

    def front_address(self, bound: Address) -> Address:
        """Returns where a balancer reaches the front listener, which is `bound`: on all addresses of this
        machine it is reached at the one that clients see."""
        host, port = bound
        return ((self.advertise or self.listen)[0] if is_wildcard(host) else host), port
