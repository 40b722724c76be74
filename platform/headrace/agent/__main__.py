"""`python -m headrace.agent --home DIR --listen HOST:PORT`: the agent of a host, in the foreground.

With `--daemon` it goes into the background at once, without its caller's terminal, working directory and
outputs; `agent.local` finds out whether it serves.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any


def main(arguments: list[str] | None = None, **more: Any) -> int:
    """Runs the agent; `more` goes to `run_agent`: tests add kinds of units."""
    parser = argparse.ArgumentParser(prog="python -m headrace.agent", description="The agent of a host.")
    add = parser.add_argument
    add("--home", required=True, type=Path, metavar="DIR", help="the folder of state, data and logs")
    add("--listen", required=True, metavar="HOST:PORT", help="where to serve HTTP (port 0: any free one)")
    add("--tls-certificate", type=Path, metavar="FILE", help="PEM, with its chain")
    add("--tls-key", type=Path, metavar="FILE", help="PEM, without a passphrase")
    add("--allow-plain", action="store_true", help="serve without TLS though not on loopback")
    add("--ends-units", action="store_true", help="stop the units when it ends")
    add(
        "--allow-path",
        action="append",
        type=Path,
        default=[],
        metavar="FOLDER",
        help="a folder that requests may name for data, besides the home; may be repeated",
    )
    add("--daemon", action="store_true", help="go into the background")
    options = parser.parse_args(arguments)
    home = options.home.absolute()
    host, _, port = options.listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        parser.error(f"--listen: {options.listen!r} is not HOST:PORT")
    log = home / "logs" / "agent.log"
    if options.daemon:
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _go_into_the_background(log)
    # Imported here because these take a while, and the caller waits only until the fork.
    from headrace.agent.process import AgentOptions, run_agent
    from headrace.site.addresses import Address
    from headrace.site.errors import SiteError

    try:
        run_agent(
            AgentOptions(
                home=home,
                listen=Address(host.strip("[]"), int(port)),
                tls_certificate=options.tls_certificate,
                tls_key=options.tls_key,
                allow_plain=options.allow_plain,
                log=log if options.daemon else None,
                ends_units=options.ends_units,
                allow_paths=tuple(path.absolute() for path in options.allow_path),
            ),
            **more,
        )
    except SiteError as error:
        print(f"the agent cannot start: {error}", file=sys.stderr)
        return 1
    return 0


def _go_into_the_background(log: Path) -> None:
    """Forks twice, so that the caller need not wait for the agent and no terminal can ever control it."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.umask(0o077)
    with Path(os.devnull).open("rb") as nothing, log.open("ab") as file:
        os.dup2(nothing.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


if __name__ == "__main__":
    sys.exit(main())
