"""What a warehouse is: the addresses of its parts. Pure."""

from dataclasses import dataclass
from typing import Final

DEFAULT_ROOT: Final = "/data"
DEFAULT_DATACENTER: Final = "analysis"


@dataclass(frozen=True)
class WarehouseOptions:
    """Where a warehouse's tables lie, and where their records come from."""

    hdfs_url: str
    """What Spark writes to, such as `hdfs://127.9.0.31:8020`."""
    webhdfs_url: str
    bootstrap: str
    """Brokers of the analysis cluster, `host:port` with commas between."""
    registry_url: str
    """Schema registries, with commas between.

    The ids are the same everywhere; what one lacks another may know.
    """
    root: str = DEFAULT_ROOT
    datacenter: str = DEFAULT_DATACENTER
    """Whose word the load reports are."""
    audit: bool = True
    """Whether loads are told to the audit, by an event in the analysis cluster's audit topic."""
    user: str | None = None
    """The HDFS user; by default the one who runs this."""
    patience_s: float = 30.0
    """How long HDFS may be away or in safe mode before a call to it fails."""

    @property
    def name(self) -> str:
        """How the audit calls this warehouse: the URL of its root."""
        return f"{self.hdfs_url.rstrip('/')}{self.root.rstrip('/')}"

    def url(self, path: str) -> str:
        """The URL that Spark has for a path of the HDFS."""
        return f"{self.hdfs_url.rstrip('/')}{path}"

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(server.strip() for server in self.bootstrap.split(",") if server.strip())
