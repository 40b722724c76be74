"""Kafka's protocol as bytes: no sockets, no threads, no clock."""

import importlib
import sys

# kio registers strategies with hypothesis wherever that is installed, and so would load all of it into every
# broker, mirror and command. Whoever has hypothesis loaded already (a test) keeps it.
if "kio.static" not in sys.modules and "hypothesis" not in sys.modules:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("kio.static.primitive")
    finally:
        del sys.modules["hypothesis"]
