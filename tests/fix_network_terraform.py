"""A deployment over several hosts by Terraform: an agent on each host, and `network/site.tf` applied.

Terraform runs on an operator's host, which reaches most agents over the WAN. Fixture: `provisioned_site`,
applied and ready, for the tests of a file.
"""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from fix_agent import self_signed
from fix_network import Network, OpenNetwork
from fix_terraform import ROOT, Workspace

PLAN: Final = {
    "east": {"east-1": (2,), "east-2": (3,), "east-3": (51,)},
    "west": {"west-1": (2,), "west-2": (51,)},
    "analysis": {"analysis-1": (2,), "analysis-2": (3,), "analysis-3": (51,)},
}
SERVICES: Final = {"east": "east-3", "west": "west-2", "analysis": "analysis-3"}
"""The hosts of each datacenter's services and consumers; they have no agent."""
OPERATOR: Final = SERVICES["analysis"]
AGENT_PORT: Final = 8084
AGENT_WAIT_MAX_S: Final = 60.0
Result = TypeVar("Result")


class ProvisionedSite:
    """`outputs`: datacenter → the outputs of its module. All files lie in `home`, in a folder per host."""

    def __init__(self, network: Network, home: Path) -> None:
        self.network = network
        self.home = home
        self.outputs: dict[str, dict[str, Any]] = {}
        self._workspace = Workspace(home / "terraform" / "site")

    def start_agents(self) -> None:
        """Starts the agents, over TLS, each with its own certificate and token."""
        agents = {}
        hosts = [host for there in PLAN.values() for host in there if host not in SERVICES.values()]
        for host in hosts:
            folder = self.home / host
            folder.mkdir()
            address = self.network.address(host)
            certificate, key = self_signed(folder, address)
            listen = f"{address}:{AGENT_PORT}"
            words = ["--home", str(folder), "--listen", listen, "--ends-units"]
            words += ["--tls-certificate", str(certificate), "--tls-key", str(key)]
            program = [sys.executable, "-m", "headrace.agent", *words]
            self.network.popen(host, program, folder / "agent.out")
            token = folder / "agent" / "token"
            agents[host] = {
                "url": f"https://{listen}",
                "token_file": str(token),
                "certificate_file": str(certificate),
            }
        for host in hosts:
            self._wait_for_agent(self.home / host)
        self._write_folder(agents)

    def _wait_for_agent(self, folder: Path) -> None:
        deadline = time.monotonic() + AGENT_WAIT_MAX_S
        while not (folder / "agent" / "agent.json").exists():
            assert time.monotonic() < deadline, (folder / "agent.out").read_text()
            time.sleep(0.1)

    def _write_folder(self, agents: dict[str, dict[str, str]]) -> None:
        folder = self._workspace.folder
        folder.mkdir(parents=True)
        (folder.parent / "modules").symlink_to(ROOT / "terraform" / "modules")
        shutil.copy(ROOT / "tests" / "network" / "site.tf", folder / "main.tf")
        variables = {
            "agents": agents,
            "addresses": {host: self.network.address(host) for host in agents},
            "audit_store": self.audit_store_url,
        }
        (folder / "terraform.tfvars.json").write_text(json.dumps(variables))
        self.terraform("init")

    def terraform(self, *words: str, code: int | None = 0) -> str:
        """Runs Terraform on the operator's host, as `Workspace.run`."""
        return self.network.call(OPERATOR, lambda: self._workspace.run(*words, code=code))

    def apply(self) -> str:
        """Applies the configuration and reads `outputs`; returns Terraform's output."""
        printed = self.terraform("apply", "-auto-approve")
        outputs = json.loads(self.terraform("output", "-json"))
        self.outputs = {datacenter: output["value"] for datacenter, output in outputs.items()}
        return printed

    @property
    def audit_store_url(self) -> str:
        return f"sqlite:///{self.home}/audit.db"

    def bootstrap(self, datacenter: str) -> str:
        """Returns the brokers' own addresses, for consumers and administration."""
        return ",".join(self.outputs[datacenter]["bootstrap_servers"])

    def call(self, datacenter: str, function: Callable[..., Result], *arguments: Any) -> Result:
        """Calls a function on the host of the datacenter's services, as `Network.call`."""
        return self.network.call(SERVICES[datacenter], function, *arguments)


@pytest.fixture(scope="module")
def provisioned_site(terraform: None, open_network: OpenNetwork) -> Iterator[ProvisionedSite]:
    """The three datacenters of `network/site.tf`."""
    network = open_network(PLAN)
    home = Path(tempfile.mkdtemp(prefix="headrace-network-"))
    try:
        made = ProvisionedSite(network, home)
        made.start_agents()
        made.apply()
        yield made
    finally:
        network.close()
        shutil.rmtree(home, ignore_errors=True)
