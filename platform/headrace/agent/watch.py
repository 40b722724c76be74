"""The watch over a host: at its start, whenever supervisord has died, and after a change that failed in its
middle, it starts the units again; also those that supervisord has given up.

Owns when that happens and in which order units start. `keeper` makes the changes.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from headrace.agent.given_up import GivenUp
from headrace.agent.keeper import Keeper
from headrace.agent.reserve import refill
from headrace.agent.supervisor import Supervisor
from headrace.agent.zookeeper_room import keep_room
from headrace.site.errors import SiteError

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S: Final = 1.0
RETRY_INTERVAL_S: Final = 5.0
RETRY_INTERVAL_MAX_S: Final = 60.0
"""What goes on failing is tried at longer and longer intervals."""
REFILL_INTERVAL_S: Final = 10.0
GIVEN_UP_INTERVAL_S: Final = 5.0
"""Between looks at which units supervisord has given up."""
STOP_WAIT_MAX_S: Final = 5.0


class Watch:
    """A thread that watches over a keeper's host from `start` until `ending` is set."""

    def __init__(self, keeper: Keeper, ending: threading.Event) -> None:
        self._keeper = keeper
        self._ending = ending
        self._supervisor = Supervisor(keeper.home)
        self._given_up = GivenUp()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Waits until the thread has ended, at most `STOP_WAIT_MAX_S`."""
        self._thread.join(STOP_WAIT_MAX_S)

    def _run(self) -> None:
        must_restore, was_gone = True, False
        refill_at_s = retry_at_s = given_up_at_s = 0.0
        retry_interval_s = RETRY_INTERVAL_S
        while not self._ending.is_set():
            is_gone = bool(self._keeper.names()) and not self._keeper.is_supervised()
            must_restore = self._keeper.take_unfinished() or must_restore or is_gone
            if not must_restore:
                retry_interval_s = RETRY_INTERVAL_S
            elif time.monotonic() >= retry_at_s or (is_gone and not was_gone):
                must_restore = not self._is_restored()
                retry_at_s = time.monotonic() + retry_interval_s
                retry_interval_s = min(2 * retry_interval_s, RETRY_INTERVAL_MAX_S)
            was_gone = is_gone
            if time.monotonic() >= refill_at_s:
                refill()
                self._keep_zookeepers_room()
                refill_at_s = time.monotonic() + REFILL_INTERVAL_S
            if not is_gone and time.monotonic() >= given_up_at_s:
                self._start_given_up()
                given_up_at_s = time.monotonic() + GIVEN_UP_INTERVAL_S
            self._ending.wait(WATCH_INTERVAL_S)

    def _is_restored(self) -> bool:
        """Restores the host; False if it has to be tried again."""
        try:
            self._restore()
        except (SiteError, OSError) as error:
            logger.error("the host could not be restored: %s", error)
        except Exception:
            logger.exception("the host could not be restored, by an error of the agent")
        else:
            return True
        return False

    def _start_given_up(self) -> None:
        try:
            for name in self._given_up.due(self._supervisor.states().values()):
                logger.warning("supervisord has given %s up; it is tried again", name)
                self._keeper.start_again(name)
        except (SiteError, OSError) as error:
            logger.debug("what supervisord has given up is not known: %s", error)
        except Exception:
            logger.exception("units that supervisord has given up stay so, by an error of the agent")

    def _keep_zookeepers_room(self) -> None:
        """Of the units of this host; what goes wrong is for the next time."""
        try:
            units = [unit for level in self._keeper.start_order() for unit in level]
            found = {unit.name: unit.data_dir for unit in units if unit.kind == "zookeeper"}
            for report in self._keeper.reports(list(found), with_drift=False) if found else ():
                directory = found[report.name]
                if directory is not None:
                    keep_room(directory, is_running=report.problem is None)
        except (SiteError, OSError) as error:
            logger.debug("no room is kept for ZooKeeper: %s", error)
        except Exception:
            logger.exception("no room is kept for ZooKeeper, by an error of the agent")

    def _restore(self) -> None:
        """Completes interrupted changes, then starts units in the order of their requirements.

        A unit that fails does not delay the others.
        """
        to_start = self._keeper.recover_changes()
        for level in self._keeper.start_order():
            stopped = [unit for unit in level if unit.name in to_start]
            for unit in [unit for unit in stopped if self._keeper.start_again(unit.name)]:
                if self._ending.is_set() or not self._keeper.is_supervised():
                    return
                if unit.name in self._keeper.names():
                    self._keeper.wait_ready(unit.name, unit.start_timeout_s)
