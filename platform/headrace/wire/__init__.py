"""Kafka's protocol as bytes: no sockets, no threads, no clock."""

import importlib
import sys

# kio imports hypothesis if it is installed, which would slow down the start of every process. A process that
# has already imported it (a test) keeps it.
if "kio.static" not in sys.modules and "hypothesis" not in sys.modules:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("kio.static.primitive")
    finally:
        del sys.modules["hypothesis"]
