"""Reports the counts of publishers that died: a publisher's successor does it when it starts.

A publisher succeeds those of the same service, server, datacenter and cluster whose journals lie in the same
state directory. It reports what their journals hold under their own names, as closed: what they were handed
and never sent is then lost by name and number, and not unknown.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from uuid import UUID

from headrace.events.claims import claim
from headrace.events.journal import SIZE_MAX_BYTES, UNFINISHED_SUFFIX, Journal
from headrace.events.journal_format import DESCRIPTION_MAX_BYTES, HEADER
from headrace.events.journal_replay import (
    DeadJournal,
    JournalError,
    LaterJournalError,
    description_of,
    replay,
)
from headrace.events.reporter import UnreportableError
from headrace.events.spooled import regular_content
from headrace.wire.primitives import NO_UUID

logger = logging.getLogger(__name__)

STATE_DIR_VARIABLE: Final = "HEADRACE_STATE_DIR"
SUFFIX: Final = ".journal"
REFUSED_SUFFIX: Final = ".refused"
ADOPTED_MAX: Final = 1_000  # journals that one start reports
LOOKED_MAX: Final = 20_000
"""Journals that one start looks at: most may be of others, which share the directory."""
HEIRLESS_KEPT_S: Final = 30 * 24 * 3600.0
"""How long the journal of a dead publisher waits for a successor: a container never gets its name again."""

ReportOf = Callable[[DeadJournal], None]
"""Reports a dead publisher's counts as its last report; raises `ReportError` if that did not arrive."""


def default_state_dir() -> Path:
    """Returns `$HEADRACE_STATE_DIR`, else `state` in `$HEADRACE_HOME`, else `headrace` in the user's
    directory for state (XDG).
    """
    if chosen := os.environ.get(STATE_DIR_VARIABLE):
        return Path(chosen)
    if home := os.environ.get("HEADRACE_HOME"):
        return Path(home) / "state"
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "headrace"


def open_journal(
    folder: Path, publisher: str, description: Mapping[str, str | int], started_ms: int
) -> Journal | None:
    """Returns the new publisher's journal; None, after a warning, if it cannot be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return Journal(folder / f"{publisher}{SUFFIX}", description, started_ms)
    except OSError as error:
        logger.warning(
            "no journal of this publisher's counts can be kept in %s: %s; if the process is killed, the "
            "audit will not know what it was handed last; give another state_dir, or set %s",
            folder,
            error,
            STATE_DIR_VARIABLE,
        )
        return None


def succeed(
    journal: Journal, description: Mapping[str, str | int], report: ReportOf, audit_topic_id: UUID
) -> int:
    """Adopts the journals of dead publishers beside the journal of this one, as `adopt` does.

    `audit_topic_id`: it tells this cluster from an earlier one with the same addresses. Without one, of a
    broker that knows no ids, nothing is adopted.
    """
    if audit_topic_id == NO_UUID:
        return 0
    return adopt(journal.path.parent, description, audit_topic_id, report)


def adopt(folder: Path, successor: Mapping[str, str | int], audit_topic_id: UUID, report: ReportOf) -> int:
    """Reports, and removes, the journals of dead publishers that `successor` (its description) succeeds.

    Returns how many. Journals of another cluster, those that another kernel wrote, and those that nobody
    succeeded for `HEIRLESS_KEPT_S`, are removed, with a warning. A journal whose report fails stays for the
    next start; a file that is no journal is renamed, and so is one whose counts no report can hold: it keeps
    the others of no heir. Services of several versions share the directory: earlier ones rename what they
    cannot read, so what was renamed is looked at again, and journals of later ones are left alone. Raises
    what `report` raises.
    """
    adopted = 0
    for path in (
        *sorted(folder.glob(f"*{SUFFIX}"))[:LOOKED_MAX],
        *sorted(folder.glob(f"*{REFUSED_SUFFIX}"))[:LOOKED_MAX],
    ):
        if adopted >= ADOPTED_MAX:
            break
        if _is_of_others(path, successor):
            continue
        try:
            file = claim(path)
        except OSError as error:
            logger.warning("the journal %s cannot be read: %s", path, error)
            continue
        if file is None:
            continue
        try:
            dead = _read(path, file)
            if dead is None:
                continue
            if not _succeeds(successor, dead.description):
                if time.time() - os.fstat(file).st_mtime < HEIRLESS_KEPT_S:
                    continue
                logger.warning("%s: %s", path, _heirless(dead))
            elif dead.audit_topic_id != audit_topic_id:
                logger.warning("%s: its publisher was killed %s", path, _strange(dead))
            elif _may_lack_its_end(successor, dead):
                logger.warning("%s: %s", path, _cut_off(dead))
            elif not dead.is_whole:
                logger.warning("%s had no room for all counts: what its publisher lost stays unknown", path)
            elif _is_reported(path, dead, report):
                adopted += 1
            else:
                continue
            path.unlink(missing_ok=True)
            path.with_suffix(UNFINISHED_SUFFIX).unlink(missing_ok=True)
        finally:
            os.close(file)
    return adopted


def _is_of_others(path: Path, successor: Mapping[str, str | int]) -> bool:
    """Whether a journal waits for an heir of another service: it is not even locked, since an heir that
    finds it locked takes its publisher for a living one.
    """
    try:
        described = description_of(regular_content(path, HEADER.size + DESCRIPTION_MAX_BYTES))
        is_waiting = time.time() - path.stat().st_mtime < HEIRLESS_KEPT_S
    except OSError:
        return False
    return described is not None and is_waiting and not _succeeds(successor, described)


def _read(path: Path, file: int) -> DeadJournal | None:
    try:
        with open(file, "rb", closefd=False) as stream:
            return replay(path, stream.read(SIZE_MAX_BYTES + 1))
    except LaterJournalError as error:
        logger.warning("%s; it is left to publishers of that version", error)
        return None
    except (OSError, JournalError) as error:
        _refuse(path, str(error))
        return None


def _is_reported(path: Path, dead: DeadJournal, report: ReportOf) -> bool:
    try:
        report(dead)
    except UnreportableError as error:
        _refuse(path, f"{path}: {error}")
        return False
    return True


def _refuse(path: Path, problem: str) -> None:
    if path.suffix == REFUSED_SUFFIX:  # it was said when it was renamed
        return
    logger.warning("%s; it is renamed to %s", problem, path.with_suffix(REFUSED_SUFFIX).name)
    path.replace(path.with_suffix(REFUSED_SUFFIX))


def _heirless(dead: DeadJournal) -> str:
    who = f"service {dead.description.get('service')!r:.80} on {dead.description.get('server')!r:.80}"
    return (
        f"nobody has succeeded its publisher, {who}, for {HEIRLESS_KEPT_S / 86_400:g} days. It is removed, "
        f"and the audit never hears of the last {_count(dead)} events"
    )


def _count(dead: DeadJournal) -> int:
    return sum(state.handed_over_count for state in dead.counts.states())


def _may_lack_its_end(successor: Mapping[str, str | int], dead: DeadJournal) -> bool:
    """Whether the journal was written under another kernel: if the power was cut, the disk has an older state
    of it, and an heir that reported that as the last word would vouch for what was handed over since.
    """
    wrote = dead.description.get("kernel")
    return wrote is not None and wrote != successor.get("kernel")


def _cut_off(dead: DeadJournal) -> str:
    return (
        "the host was started again since its publisher was killed, so it may lack what that was handed "
        f"last. It is removed, and the audit says that nobody knows; it had {_count(dead)} events in it"
    )


def _strange(dead: DeadJournal) -> str:
    count = _count(dead)
    if dead.audit_topic_id == NO_UUID:
        return f"before it had reached a broker, and lost the {count} events that it had been handed"
    return f"beside another cluster of this address, and had been handed {count} events; nobody reports them"


def _succeeds(successor: Mapping[str, str | int], dead: Mapping[str, object]) -> bool:
    same = ("datacenter", "server", "service", "bootstrap", "audit_topic")
    return all(dead.get(name) == successor[name] for name in same)
