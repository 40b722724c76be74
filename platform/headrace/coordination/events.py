"""Events of single reads, for a caller that keeps a copy of many nodes.

`session.get_many(paths, fired=…)` and `session.children(path, fired=…)` arm ZooKeeper's own watches, each
for one event: `fired(event)` is called in the library's thread, in the order of arrival, once for the next
change of each node that was found. `event.path` names the node; it is None after a lost connection, which
ends all watches: then anything may have changed. `fired` must not block and should be the same object each
time, so that the library keeps one entry a path.

ZooKeeper sends an event before the answer to a later read. So after any read and
`session.events_handled()`, the caller has been told of every change that this read could have seen.
"""

import threading
from collections.abc import Callable
from typing import Any

from kazoo.protocol.states import Callback

Fired = Callable[[Any], None]


def handled(handler: Any, wait_max_s: float) -> bool:
    """Waits until the library's thread has made all calls of `fired` that are queued by now."""
    done = threading.Event()
    handler.dispatch_callback(Callback("watch", done.set, ()))
    return done.wait(wait_max_s)
