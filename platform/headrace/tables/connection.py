"""Connecting to a context's warehouse.

Owns `connect` and which context it means: the given one, `$HEADRACE_CONTEXT`, the one that `headrace context
use` chose, and else this home's own site, as commands do.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from headrace.agent.chosen_context import chosen_context
from headrace.site.context import Context
from headrace.site.context_store import ContextStore
from headrace.site.environment_variables import HOME_VARIABLE
from headrace.tables.moments import Moment, as_of, moment_ms
from headrace.tables.options import warehouse_of
from headrace.tables.table import Table
from headrace.warehouse.api import list_tables
from headrace.warehouse.options import DEFAULT_ROOT, WarehouseOptions
from headrace.warehouse.versions import Wanted

PATIENCE_S: Final = 30.0


@dataclass(frozen=True)
class Connection:
    """The warehouse of one context. Holds no open connections."""

    context: Context
    warehouse: WarehouseOptions

    def topics(self) -> list[str]:
        """Returns the topics that have a table, by name. Raises `HdfsError`."""
        return list_tables(self.warehouse)

    def table(
        self,
        topic: str,
        *,
        sealed: bool = True,
        as_of: Moment | None = None,
        from_: Moment | None = None,
        until: Moment | None = None,
    ) -> Table:
        """Returns the table of a topic, of which nothing is read yet.

        `sealed`: only hours that the audit has proven complete, as they were sealed; False: every row that is
        loaded. `as_of`: the table after the change with this sequence number, or as it was at this time.
        `from_`, `until`: rows whose event time is in `[from_, until)`; files of other hours are not read.
        Times are texts (`2026-11-20T18`), datetimes, or Unix ms; those without a zone are UTC. Raises
        `MomentError`, `TopicNameError`.
        """
        return Table(self.warehouse, topic, _wanted(sealed, as_of, from_, until))


def connect(
    context: str | None = None,
    *,
    home: str | os.PathLike[str] | None = None,
    root: str = DEFAULT_ROOT,
) -> Connection:
    """Returns the warehouse of a context of this home, by default the one in use; see the module.

    `home`: where contexts and site are, by default `$HEADRACE_HOME` or `.headrace`. `root`: the directory of
    the tables in HDFS, which is the `output` of their loads. Raises `ContextError`.
    """
    contexts = ContextStore(Path(home or os.environ.get(HOME_VARIABLE) or ".headrace"))
    found = chosen_context(contexts, context)
    return Connection(found, replace(warehouse_of(found, patience_s=PATIENCE_S), root=root))


def _wanted(sealed: bool, version: Moment | None, from_: Moment | None, until: Moment | None) -> Wanted:
    sequence, at_ms = as_of(version)
    return Wanted(
        from_ms=None if from_ is None else moment_ms(from_, "from_"),
        until_ms=None if until is None else moment_ms(until, "until"),
        is_sealed=sealed,
        sequence=sequence,
        at_ms=at_ms,
    )
