"""An agent with a further kind of unit: a stand-in, which starts in a moment and needs no JVM.

`python tests/stand_in_agent.py` takes the options of `python -m headrace.agent`. A file `crash-at` in
the home, with the name of a step, makes the agent kill itself once when it reaches that step.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from headrace.agent.configuration import Configuration, HostPort, Text
from headrace.agent.host import Host
from headrace.agent.kinds import KINDS, Kinds, UnitKind, unit_of
from headrace.agent.probes import HttpProbe
from headrace.agent.unit import Unit, UnitProcess
from headrace.site.addresses import Address

# Serves pages after a while; leaves a child behind unless it is ended as a group. It cannot start while there
# is a file with its name and the suffix `.broken` in the home.
STAND_IN = """
import http.server, os, pathlib, subprocess, sys, time
print("stand-in %d%% here")
broken = pathlib.Path(os.environ["HEADRACE_HOME"], os.environ["HEADRACE_UNIT"] + ".broken")
if broken.exists():
    sys.exit(broken.read_text())
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
time.sleep(0.1)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""


class StandIn(Configuration):
    """The configuration of a stand-in."""

    kind: Literal["stand-in"] = "stand-in"
    listen: HostPort
    value: Text = "100% of, it; #1"
    start_timeout_s: Annotated[float, Field(gt=0)] = 20.0


def _stand_in(name: str, configuration: StandIn, host: Host) -> UnitProcess:
    script = host.home / 'it\'s a "stand in".py'
    return UnitProcess(
        command=(
            host.python,
            str(script),
            configuration.listen.host,
            str(configuration.listen.port),
            configuration.value,
        ),
        listens=(configuration.listen,),
        probe=HttpProbe(f"http://{configuration.listen}/"),
        environment={"A_VALUE": "100% of, it"},
        files={script: STAND_IN, host.home / f"{name}.value": configuration.value},
        start_timeout_s=configuration.start_timeout_s,
        stop_timeout_s=5,
    )


STAND_IN_KINDS: Kinds = {**KINDS, "stand-in": UnitKind(StandIn, _stand_in)}
PROGRAM = (sys.executable, __file__)


def stand_in(home: Path, name: str, address: Address, requires: tuple[str, ...] = (), **more: object) -> Unit:
    """A stand-in as a unit of this host."""
    configuration = StandIn.model_validate(
        {"datacenter": "east", "listen": address, "requires": requires, **more}
    )
    return unit_of(name, configuration, Host.here(home), STAND_IN_KINDS)


def crash(step: str) -> None:
    """Kills this process if `crash-at`, in the working directory (the agent's home), names the step."""
    try:
        wanted = Path("crash-at").read_text()
    except FileNotFoundError:
        return
    if wanted == step:
        Path("crash-at").unlink()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    from headrace.agent.__main__ import main

    sys.exit(main(kinds=STAND_IN_KINDS, reached=crash))
