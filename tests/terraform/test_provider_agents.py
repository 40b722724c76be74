"""Mistakes in the provider's `agents`: named, never a bug of the provider, and no token in an error. Real
terraform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import quick_kinds_agent
from fix_agent import HOST, RunningAgent
from fix_ports import free_port
from fix_terraform import Workspace

Make = Callable[[str], Workspace]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RunningAgent]:
    home = tmp_path / "home"
    home.mkdir()
    made = RunningAgent(home)
    try:
        made.start(quick_kinds_agent.PROGRAM)
        yield made
    finally:
        made.close()


def hcl(agents: dict[str, str]) -> str:
    """Returns a provider with these agents, each the HCL of one, and a unit on each of their hosts."""
    listed = "".join(f'    "{host}" = {block}\n' for host, block in agents.items())
    units = "".join(
        f'resource "headrace_zookeeper" "{host}" {{\n  host = "{host}"\n  name = "z"\n'
        f'  datacenter = "east"\n  listen = "{HOST}:{free_port(HOST)}"\n}}\n'
        for host in agents
    )
    return f'provider "headrace" {{\n  agents = {{\n{listed}  }}\n}}\n{units}'


def said(output: str) -> str:
    assert "bug in headrace" not in output, output
    return " ".join(output.replace("│", " ").split())


def test_what_is_no_agent_is_named(workspace: Make) -> None:
    urls = (
        "http://[::1",
        "http://127.0.0.1:port",
        "http://127.0.0.1:1 ",
        f"http://{'a' * 64}:1",
        "http://:1",
    )
    blocks = {f"u{at}": f'{{ url = "{url}", token = "{"x" * 32}" }}' for at, url in enumerate(urls)}
    output = said(workspace(hcl({**blocks, "nothing": "null"})).run("plan", code=1))
    for url in urls:
        assert f"has '{url}'; expected a URL such as" in output
    assert "Host nothing is null" in output


def test_a_home_that_nobody_can_have_is_named(workspace: Make, tmp_path: Path) -> None:
    """A file was waited for as a home whose agent has just been started, for a minute."""
    (tmp_path / "file").touch()
    unit = hcl({"local": "null"}).partition("\n}\n")[2]
    folder = workspace('provider "headrace" {\n  home = "~nobody-of-this-name/home"\n}\n' + unit)
    assert "there is no such user" in said(folder.run("plan", code=1))
    folder.write(f'provider "headrace" {{\n  home = "{tmp_path}/file"\n}}\n' + unit)
    assert f"whether an agent keeps {tmp_path}/file is not known" in said(folder.run("plan", code=1))


def test_what_is_no_token_is_named(workspace: Make, tmp_path: Path) -> None:
    (tmp_path / "agent.der").write_bytes(b"\x30\x82\xff")
    url = 'url = "http://127.0.0.1:1"'
    blocks = {
        "empty": f'{{ {url}, token = "" }}',
        "accents": f'{{ {url}, token = "s\u00e9cret{"é" * 32}" }}',
        "lines": f'{{ {url}, token = "secret\\nsecret" }}',
        "binary": f'{{ {url}, token_file = "{tmp_path}/agent.der" }}',
        "tilde": f'{{ {url}, token_file = "~nobody-of-this-name/token" }}',
        "pinned": f'{{ {url}, token = "{"x" * 32}", certificate_file = "~nobody-of-this-name/agent.pem" }}',
    }
    output = said(workspace(hcl(blocks)).run("plan", code=1))
    for host in ("empty", "accents", "lines"):
        assert f"The token of host {host} is none" in output
    for host in ("binary", "tilde"):
        assert f"token_file of host {host} cannot be used" in output
    assert "certificate_file of host pinned cannot be used" in output
    assert "secret" not in output and "s\u00e9cret" not in output


def test_a_token_may_be_read_by_file_with_the_newline_of_its_line(
    workspace: Make, agent: RunningAgent
) -> None:
    """The agent "did not answer", and the error showed the token."""
    token = agent.home / "agent" / "token"
    made = workspace(hcl({"a": f'{{ url = "http://{agent.address}", token = file("{token}") }}'}))
    output = made.apply(code=None)
    assert token.read_text().strip() not in output
    assert "Apply complete! Resources: 1 added" in output
