"""The warehouse of a context: which of its addresses a warehouse needs."""

from headrace.site.context import Context
from headrace.warehouse.options import WarehouseOptions


def warehouse_of(context: Context, *, patience_s: float) -> WarehouseOptions:
    """Returns the options of the context's warehouse. Raises `ContextError` if it has none.

    `patience_s`: how long HDFS may be unreachable.
    """
    analysis = context.analysis
    # Search the publishers' registries first: subjects are registered there.
    registries = [*(source for source in context.sources if source != analysis), analysis]
    return WarehouseOptions(
        hdfs_url=context.hdfs_url,
        webhdfs_url=context.webhdfs_url,
        bootstrap=analysis.bootstrap,
        registry_url=",".join(f"{each.name}={each.registry}" for each in registries),
        datacenter=analysis.name,
        zookeeper=analysis.zookeeper,
        patience_s=patience_s,
    )
