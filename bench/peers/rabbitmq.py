"""RabbitMQ as a peer: Debian's rabbitmq-server, started without its service, in a folder of its own.

Quorum queues and streams, by AMQP 0.9.1 and the stream protocol. Debian's own configuration is not used.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from peers.peer import PeerMissingError
from peers.waiting import accepts, check_port_free, wait_until
from side_by_side.process import PinnedProcess, ProcessFailedError

PACKAGE: Final = "rabbitmq-server"
PROGRAM: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The script that starts Erlang. The one in /usr/sbin would change the user and the folders."""
POLICY: Final = Path("/usr/sbin/policy-rc.d")
INSTALL_WAIT_MAX_S: Final = 600.0
AMQP_PORT: Final = 5672
STREAM_PORT: Final = 5552
DISTRIBUTION_PORT: Final = 25_672
NODE: Final = "headrace-bench@localhost"
# Distribution is up before RabbitMQ looks, so it does not start epmd for it.
ERLANG_ARGUMENTS: Final = ("-noinput", "-sname", NODE, "-erl_epmd_port", str(DISTRIBUTION_PORT))


def ensure_rabbitmq(program: Path = PROGRAM, *, is_root: bool | None = None, policy: Path = POLICY) -> None:
    """Installs Debian's package if it is missing, without starting its service. Raises `PeerMissingError`."""
    if program.is_file():
        return
    is_root = os.geteuid() == 0 if is_root is None else is_root
    if not is_root or shutil.which("apt-get") is None:
        raise PeerMissingError(
            f"RabbitMQ is not installed ({program} is missing): install {PACKAGE} (as root: apt-get install "
            f"{PACKAGE}); its rows are skipped"
        )
    with _no_service_starts(policy):
        _run("apt-get", "update", "-qq")
        _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", PACKAGE)
    if shutil.which("systemctl") is not None:
        # Nor at the next boot. Where systemd does not run, this may fail, and does not matter.
        with contextlib.suppress(PeerMissingError):
            _run("systemctl", "disable", "--quiet", PACKAGE)
    if not program.is_file():
        raise PeerMissingError(f"RabbitMQ: {PACKAGE} is installed without {program}; its rows are skipped")


@contextlib.contextmanager
def _no_service_starts(policy: Path) -> Iterator[None]:
    """Debian asks the program `policy` whether a package may start its service. One that is there stays."""
    try:
        with policy.open("x") as file:
            file.write("#!/bin/sh\nexit 101\n")
    except FileExistsError:
        yield
        return
    try:
        policy.chmod(0o755)
        yield
    finally:
        policy.unlink()


def _run(*command: str) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=INSTALL_WAIT_MAX_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise PeerMissingError(
            f"RabbitMQ: {' '.join(command)} took over {INSTALL_WAIT_MAX_S:.0f} s; its rows are skipped"
        ) from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise PeerMissingError(f"RabbitMQ: {' '.join(command)} failed ({reason}); its rows are skipped")


def installed_version(program: Path = PROGRAM) -> str:
    """Returns the version of the installed server, such as 3.10.8, or "unknown"."""
    for folder in sorted((program.parents[1] / "lib").glob("rabbitmq_server-*")):
        if found := re.fullmatch(r"rabbitmq_server-([0-9.]+)", folder.name):
            return found[1]
    return "unknown"


def rabbitmq_conf(address: str) -> str:
    """Returns the text of rabbitmq.conf: the listeners; all else is RabbitMQ's default."""
    return "".join(
        f"{name} = {value}\n"
        for name, value in {
            "listeners.tcp.1": f"{address}:{AMQP_PORT}",
            "stream.listeners.tcp.1": f"{address}:{STREAM_PORT}",
            "stream.advertised_host": address,
            "stream.advertised_port": STREAM_PORT,
            "log.console": "false",
            "log.file.level": "warning",
        }.items()
    )


def environment(home: Path, address: str) -> dict[str, str]:
    """Returns the variables that keep the node, its files and its listeners to itself."""
    interface = "{" + address.replace(".", ",") + "}"
    return {
        # Also for the Erlang that RabbitMQ starts every minute only so that it starts epmd, the port mapper,
        # which would listen on all addresses and outlive the bench.
        "ERL_AFLAGS": f"-start_epmd false -kernel inet_dist_use_interface {interface}",
        "HOME": str(home),  # the Erlang cookie lies there
        "RABBITMQ_NODENAME": NODE,
        "RABBITMQ_CONF_ENV_FILE": str(home / "rabbitmq-env.conf"),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(home / "data"),
        "RABBITMQ_LOG_BASE": str(home / "logs"),
        # The script then becomes Erlang instead of a parent that waits for it.
        "RABBITMQ_ALLOW_INPUT": "1",
    }


class RabbitMq:
    """One node. Clients make their queues and streams themselves."""

    def __init__(self, home: Path, address: str, cores: Collection[int]) -> None:
        """`home` is a folder of this peer alone, `address` a loopback host such as 127.106.0.2."""
        self.name = f"RabbitMQ {installed_version()}"
        self.amqp_url = f"amqp://guest:guest@{address}:{AMQP_PORT}"
        self.host = address
        self.stream_port = STREAM_PORT
        self._home = home.absolute()
        self._cores = cores
        self._process: PinnedProcess | None = None

    def start(self) -> None:
        """Raises `PeerMissingError`, too."""
        ensure_rabbitmq()
        self.name = f"RabbitMQ {installed_version()}"
        self.stop()
        for port in (AMQP_PORT, STREAM_PORT, DISTRIBUTION_PORT):
            check_port_free(self.host, port)
        self._home.mkdir(parents=True)
        (self._home / "rabbitmq-env.conf").write_text("")
        (self._home / "rabbitmq.conf").write_text(rabbitmq_conf(self.host))
        (self._home / "advanced.config").write_text("[].\n")
        (self._home / "enabled_plugins").write_text("[rabbitmq_stream].\n")
        self._process = PinnedProcess(
            [str(PROGRAM), *ERLANG_ARGUMENTS],
            cores=self._cores,
            log=self._home / "rabbitmq.log",
            env=environment(self._home, self.host),
            cwd=self._home,
        )
        wait_until(
            lambda: accepts(self.host, AMQP_PORT) and accepts(self.host, STREAM_PORT),
            f"{self.name} listens",
            self._process,
        )

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None
        shutil.rmtree(self._home, ignore_errors=True)

    def pids(self) -> list[int]:
        return [self._running().pid]

    def memory_bytes(self) -> int:
        return self._running().memory_bytes()

    def _running(self) -> PinnedProcess:
        if self._process is None:
            raise ProcessFailedError(f"{self.name} is not started")
        return self._process
