"""The loads of an Airflow whose host is dead: they move with it, or go with a host that was given up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fix_hosts import StartHosts, die
from fix_terraform import Workspace

Make = Callable[[str], Workspace]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_loads_of_a_dead_host_move_and_only_a_given_up_host_keeps_what_is_deleted(
    workspace: Make, hosts: StartHosts
) -> None:
    agents = hosts(("host-a", "host-b"))

    def hcl(known: tuple[str, ...], **loads: str) -> str:
        listed = "".join(
            f'    "{host}" = {{ url = "http://{agents[host].address}", '
            f'token_file = "{agents[host].home}/agent/token" }}\n'
            for host in known
        )
        return f'provider "headrace" {{\n  agents = {{\n{listed}  }}\n}}\n' + "".join(
            f'resource "headrace_load" "{topic}" {{\n  host = "{host}"\n  topic = "{topic}"\n'
            '  owner = "web"\n}\n'
            for topic, host in loads.items()
        )

    folder = workspace(hcl(("host-a", "host-b"), clicks="host-b", views="host-b"))
    assert "2 added" in folder.apply()
    die(agents["host-b"])
    # One moves; the other one is told from a typing error, as its host may come back.
    folder.write(hcl(("host-a", "host-b"), clicks="host-a"))
    output = " ".join(folder.apply(code=1).split())
    assert "Load clicks was not deleted from host host-b" in output
    assert "A host's agent does not answer" in output
    assert agents["host-a"].client.load("clicks")["owner"] == "web"
    assert folder.attributes("headrace_load.clicks")["host"] == "host-a"
    assert folder.attributes("headrace_load.views")["host"] == "host-b"

    # A host that is not in `agents` any more is given up.
    folder.write(hcl(("host-a",), clicks="host-a"))
    assert "0 added, 0 changed, 1 destroyed" in folder.apply()
    folder.plan(code=0)
