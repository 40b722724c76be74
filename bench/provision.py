"""`make bench-terraform`: how long Terraform takes to deploy the demo: cold, without changes, after a stop.

Owns a site of its own (block 180 of loopback, a temporary home), the bars and the exit code, which is 1 if a
bar is missed. For comparison it measures `headrace up`: the same units without Terraform.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.fleet import operate, terraform
from headrace.fleet.terraform.folder import folder_of, process_environment
from headrace.fleet.units import units_of
from headrace.site.errors import SiteError
from headrace.site.site import Site

BLOCK: Final = 180
APPLY_BAR_S: Final = 60.0
PLAN_BAR_S: Final = 5.0
PLANS: Final = 3
# A pause before each measurement, until the load of the one before has ended.
CALM_S: Final = 10.0


def timed(act: Callable[[], object]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


def apply(site: Site) -> None:
    terraform.apply(site, units_of(site), lambda progress: None, print)


def plan(site: Site) -> None:
    command = ["terraform", "plan", "-detailed-exitcode", "-no-color"]
    done = subprocess.run(
        command,
        cwd=folder_of(site),
        env=process_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SiteError(f"the plan should have no changes:\n{done.stdout}{done.stderr}")


def forget(site: Site) -> None:
    """Stops the site and removes all but the jars."""
    operate.down(site)
    for path in site.home.iterdir():
        if not path.is_symlink():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    time.sleep(CALM_S)


def measure(site: Site) -> bool:
    rows: list[tuple[str, float, float | None]] = []

    def note(what: str, seconds: float, bar: float | None = None) -> None:
        rows.append((what, seconds, bar))
        shown_bar = "" if bar is None else f"  (bar: {bar:g} s)"
        print(f"{what:<44} {seconds:6.1f} s{shown_bar}", flush=True)

    # The first run fills the page cache.
    operate.up(site)
    forget(site)
    note("headrace up, cold", timed(lambda: operate.up(site)))
    forget(site)
    note("terraform apply, cold", timed(lambda: apply(site)), APPLY_BAR_S)
    time.sleep(CALM_S)
    plans = sorted(timed(lambda: plan(site)) for _ in range(PLANS))
    note(f"terraform plan without changes, median of {PLANS}", plans[PLANS // 2], PLAN_BAR_S)
    note("terraform apply without changes", timed(lambda: apply(site)))
    operate.down(site)
    time.sleep(CALM_S)
    note("terraform apply after `headrace down`", timed(lambda: apply(site)), APPLY_BAR_S)
    return all(bar is None or seconds < bar for _, seconds, bar in rows)


def main() -> int:
    home = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    (home / "jars").symlink_to(Site.load().home.absolute() / "jars")
    site = Site.one_machine(home, block=BLOCK)
    try:
        if problem := terraform.missing(site):
            raise SiteError(problem)
        print(f"{len(units_of(site))} units, {len(site.datacenters)} datacenters")
        return 0 if measure(site) else 1
    except SiteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        operate.down(site)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
