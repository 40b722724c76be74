"""Expected errors without a traceback: Spark shows what the error says, and nothing of its Python worker.

Owns the one switch of PySpark's workers for this. A worker ends after an error, so the switch concerns that
error alone. The option `debug` leaves the traceback in.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headrace.warehouse.source.errors import SourceError

_HIDE: Final = "SPARK_HIDE_TRACEBACK"
_RUNTIME: Final = "SPARK_PYTHON_RUNTIME"
_WORKER: Final = "PYTHON_WORKER"


@contextmanager
def plain_errors(*, is_debug: bool) -> Iterator[None]:
    """Hides the traceback of a `SourceError` that leaves the block, if this is a worker of Spark."""
    try:
        yield
    except SourceError:
        if not is_debug and os.environ.get(_RUNTIME) == _WORKER:
            os.environ[_HIDE] = "1"
        raise
