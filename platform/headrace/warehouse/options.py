"""The options of a warehouse: the addresses of its parts. Pure."""

from dataclasses import dataclass
from typing import Final

DEFAULT_ROOT: Final = "/data"
DEFAULT_DATACENTER: Final = "analysis"


@dataclass(frozen=True)
class WarehouseOptions:
    """Where a warehouse's tables are, and where their records come from."""

    hdfs_url: str
    """Where Spark writes, such as `hdfs://127.9.0.31:8020`."""
    webhdfs_url: str
    bootstrap: str
    """Brokers of the analysis cluster, `host:port`, separated by commas."""
    registry_url: str
    """Schema registries, separated by commas, each with its datacenter's name, such as
    `east=http://127.1.0.3:8081`. Their ids agree, but each may lack schemas of another."""
    root: str = DEFAULT_ROOT
    datacenter: str = DEFAULT_DATACENTER
    """The datacenter that the load reports name as their publisher's."""
    audit: bool = True
    """Whether to report loads to the audit, in the analysis cluster's audit topic."""
    user: str | None = None
    """The HDFS user; by default the user of this process."""
    zookeeper: str | None = None
    """The analysis cluster's ZooKeeper, which knows the source datacenter of each partition."""
    patience_s: float = 30.0
    """How long HDFS may be unreachable or in safe mode before a call fails."""

    @property
    def name(self) -> str:
        """The audit's name of this warehouse: the URL of its root."""
        return f"{self.hdfs_url.rstrip('/')}{self.root.rstrip('/')}"

    def url(self, path: str) -> str:
        """Returns Spark's URL of a path in HDFS."""
        return f"{self.hdfs_url.rstrip('/')}{path}"

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(server.strip() for server in self.bootstrap.split(",") if server.strip())
