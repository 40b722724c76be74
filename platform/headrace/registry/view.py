"""A copy of all subjects in memory, which ZooKeeper's events keep up to date.

ZooKeeper has the state. `current()` first learns, by one small read, of every change that was complete before
the call, so a listing shows whatever any registry answered before it; without ZooKeeper it shows what was
known last.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.coordination.errors import CoordinationError, CorruptNodeError, ZooKeeperUnavailableError
from headrace.coordination.nodes import Node
from headrace.coordination.session import SessionState, ZooKeeperSession
from headrace.registry.subjects import SUBJECTS, Subject, parse_subject, subject_name, subject_path

logger = logging.getLogger(__name__)

LOAD_WAIT_MAX_S: Final = 30.0
"""How long a request waits for the first copy."""
REFRESH_WAIT_MAX_S: Final = 3.0
"""How long a request waits for another one's refresh, before it takes what is known."""
EVENTS_WAIT_MAX_S: Final = 5.0
QUIET_S: Final = 0.1
"""Between an event and the refresh that no request asked for."""
RETRY_PAUSE_S: Final = 1.0


@dataclass(frozen=True)
class Copy:
    """All subjects at one time, sorted by name; `users`: the subjects that have a schema, by its id;
    `unreadable`: those whose nodes say nothing. Which schemas these have is not known.
    """

    subjects: tuple[Subject, ...] = ()
    by_name: dict[str, Subject] = field(default_factory=dict)
    users: dict[int, frozenset[str]] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()


class SubjectsView:
    """`on_refreshed` is called in the view's own thread, after each refresh that this thread made."""

    def __init__(self, session: ZooKeeperSession, on_refreshed: Callable[[Copy], None]) -> None:
        self._session = session
        self._on_refreshed = on_refreshed
        self._copy: Copy | None = None
        self._refreshing = threading.Lock()
        self._marks = threading.Condition()
        self._no_watches = True
        self._children_changed = False
        self._changed: set[str] = set()
        # The same object each time, see `coordination.events`.
        self._on_event: Callable[[Any], None] = self._mark

    def start(self) -> None:
        threading.Thread(target=self._follow, name="registry-view", daemon=True).start()

    def known(self) -> Copy | None:
        """Returns the copy as it is, without asking ZooKeeper; None before the first one."""
        return self._copy

    def present(self) -> Copy:
        """Returns the present copy. Raises `CoordinationError`: for decisions about what is written."""
        if not self._refreshing.acquire(timeout=LOAD_WAIT_MAX_S):
            raise ZooKeeperUnavailableError(f"the subjects were not read within {LOAD_WAIT_MAX_S:g} s; retry")
        try:
            return self._refreshed()
        finally:
            self._refreshing.release()

    def current(self) -> Copy:
        """Returns the present copy; the last known one while ZooKeeper does not answer."""
        known = self._copy
        if known is not None and self._session.state is not SessionState.CONNECTED:
            return known
        if not self._refreshing.acquire(timeout=LOAD_WAIT_MAX_S if known is None else REFRESH_WAIT_MAX_S):
            if self._copy is None:
                raise ZooKeeperUnavailableError(f"the subjects were not read within {LOAD_WAIT_MAX_S:g} s")
            return self._copy
        try:
            return self._refreshed()
        except CoordinationError as error:
            if self._copy is None or not error.retriable:
                raise
            logger.warning("a listing shows what was known last: %s", error)
            return self._copy
        finally:
            self._refreshing.release()

    # --- inside ---

    def _mark(self, event: Any) -> None:
        with self._marks:
            if event.path is None:
                self._no_watches = True
            elif event.path == SUBJECTS:
                self._children_changed = True
            else:
                self._changed.add(event.path)
            self._marks.notify_all()

    def _refreshed(self) -> Copy:
        self._session.exists(SUBJECTS)
        if not self._session.events_handled(EVENTS_WAIT_MAX_S):
            raise ZooKeeperUnavailableError("events of ZooKeeper are late; retry")
        with self._marks:
            everything = self._no_watches or self._copy is None
            children_changed, changed = self._children_changed or everything, self._changed
            self._no_watches, self._children_changed, self._changed = False, False, set()
        if not children_changed and not changed:
            assert self._copy is not None
            return self._copy
        before = Copy() if self._copy is None else self._copy
        try:
            if children_changed:
                nodes = self._session.children(SUBJECTS, fired=self._on_event)
                present = {f"{SUBJECTS}/{node}" for node in nodes}
                known = set() if everything else {subject.path for subject in before.subjects}
                changed = (present - known) | changed
                names = before.by_name.keys() | before.unreadable
                gone = {name for name in names if subject_path(name) not in present}
                self._copy = _with(before, {**dict.fromkeys(gone), **self._read(changed)})
            else:
                self._copy = _with(before, self._read(changed))
        except BaseException:
            with self._marks:
                self._no_watches = True
            raise
        return self._copy

    def _read(self, paths: Iterable[str]) -> dict[str, Subject | CorruptNodeError | None]:
        listed = sorted(paths)
        nodes = self._session.get_many(listed, fired=self._on_event)
        return {subject_name(path): _parsed(path, node) for path, node in zip(listed, nodes, strict=True)}

    def _follow(self) -> None:
        """Keeps the copy warm, so that it is there when ZooKeeper is not."""
        while self._session.state is not SessionState.CLOSED:
            with self._marks:
                if not (self._no_watches or self._children_changed or self._changed):
                    self._marks.wait(RETRY_PAUSE_S)
                    continue
            time.sleep(QUIET_S)
            if not self._session.wait_connected(RETRY_PAUSE_S):
                continue
            try:
                self._on_refreshed(self.current())
            except Exception as error:
                logger.warning(
                    "the copy of the subjects is not up to date: %s: %s; retrying",
                    type(error).__name__,
                    error,
                )
                time.sleep(RETRY_PAUSE_S)


def _parsed(path: str, node: Node | None) -> Subject | CorruptNodeError | None:
    if node is None:
        return None
    try:
        subject = parse_subject(path, node)
    except CorruptNodeError as error:
        logger.warning("a subject is left out of listings: %s", error)
        return error
    return subject if subject.versions else None


def _with(before: Copy, changes: dict[str, Subject | CorruptNodeError | None]) -> Copy:
    """Returns a copy with these subjects changed, added, unreadable, or (None) removed. Pure."""
    by_name = dict(before.by_name)
    users = dict(before.users)
    unreadable = {name for name, after in changes.items() if isinstance(after, CorruptNodeError)}
    for name, found in changes.items():
        after = None if isinstance(found, CorruptNodeError) else found
        earlier = by_name.pop(name, None)
        if after is not None:
            by_name[name] = after
        old_ids = earlier.schema_ids if earlier is not None else frozenset()
        new_ids = after.schema_ids if after is not None else frozenset()
        for schema_id in old_ids - new_ids:
            left = users[schema_id] - {name}
            if left:
                users[schema_id] = left
            else:
                del users[schema_id]
        for schema_id in new_ids - old_ids:
            users[schema_id] = users.get(schema_id, frozenset()) | {name}
    unreadable |= before.unreadable - changes.keys()
    return Copy(tuple(by_name[name] for name in sorted(by_name)), by_name, users, frozenset(unreadable))
