"""The broker: event loop, sans-IO core, handlers. `python -m headrace.broker` runs one."""

import headrace.wire  # noqa: F401  # before kio: see there
