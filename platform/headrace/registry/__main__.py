"""`python -m headrace.registry --listen HOST:PORT --zookeeper HOST:PORT`: one schema registry process.

Exits with 0 on SIGTERM or SIGINT, with 1 and one line on stderr if it cannot start. Port 0 takes a free port;
the line "schema registry listening on http://HOST:PORT" names it.
"""

import argparse
import logging
import socket
import sys
from typing import Final

import uvicorn

from headrace.coordination.errors import CoordinationError
from headrace.coordination.session import ZooKeeperSession
from headrace.process.command_line import on_stop_signals, set_up_logging, split_address
from headrace.process.web import KEEP_ALIVE_S, bounded_http
from headrace.registry.copying import SubjectCopier
from headrace.registry.server import create_app
from headrace.registry.service import SchemaRegistry
from headrace.registry.sources import SOURCES_MAX, Sources
from headrace.registry.store import SchemaStore
from headrace.registry.urls import NamedUrl, parse_urls
from headrace.registry.workers import Workers

CONNECTIONS_MAX: Final = 1_000
REQUEST_WAIT_MAX_S: Final = 10.0
RESPONSE_WAIT_MAX_S: Final = 60.0
SESSION_TIMEOUT_S: Final = 10.0
CALL_TIMEOUT_S: Final = 10.0
"""Below the timeouts of common HTTP clients, so that they get an error response instead of none."""
CONNECT_TIMEOUT_S: Final = 60.0
SHUTDOWN_WAIT_MAX_S: Final = 5
REQUESTS_WAITING_MAX: Final = 128


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m headrace.registry", description="The schema registry.")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="where to serve HTTP")
    parser.add_argument(
        "--zookeeper", required=True, metavar="HOST:PORT", help="the ZooKeeper that stores the schemas"
    )
    parser.add_argument(
        "--sources",
        type=parse_sources,
        default=(),
        metavar="DATACENTER=URL,…",
        help="registries of other datacenters: their subjects are copied, and they are asked for unknown ids",
    )
    options = parser.parse_args(arguments)
    set_up_logging()
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each request to a source
    # uvicorn raises the signal again after its own shutdown; without a handler it would kill the process.
    on_stop_signals(lambda: None)
    try:
        serving = listen(options.listen)
    except (OSError, ValueError) as error:
        print(f"cannot listen on {options.listen}: {error}", file=sys.stderr)
        return 1
    with serving:
        return serve(serving, options.zookeeper, Sources(options.sources))


def parse_sources(text: str) -> tuple[NamedUrl, ...]:
    """Returns the sources in `east=http://127.1.0.3:8081,west=http://…`."""
    found = tuple(parse_urls(text))
    unnamed = [each.url for each in found if each.datacenter is None]
    if not found or unnamed or len(found) > SOURCES_MAX:
        problem = f"{unnamed[0]!r} has no datacenter" if unnamed else f"{len(found)} registries"
        raise argparse.ArgumentTypeError(
            f"{problem}: give 1 to {SOURCES_MAX}, such as east=http://127.1.0.3:8081,west=http://127.2.0.3:8081"
        )
    return found


def serve(serving: socket.socket, zookeeper: str, sources: Sources) -> int:
    """Serves until a signal arrives; returns the exit code."""
    session = ZooKeeperSession(
        zookeeper, timeout_s=SESSION_TIMEOUT_S, call_timeout_s=CALL_TIMEOUT_S, name="registry"
    )
    workers = Workers()
    try:
        session.start(connect_timeout_s=CONNECT_TIMEOUT_S)
        store = SchemaStore(session)
        registry = SchemaRegistry(store, workers, sources)
        app = create_app(store, registry, session)
    except CoordinationError as error:
        session.close()
        print(f"the schema registry cannot start: {error}", file=sys.stderr)
        return 1
    workers.start()
    copier = SubjectCopier(store, workers, sources)
    copier.start()
    config = uvicorn.Config(
        app,
        http=bounded_http(CONNECTIONS_MAX, REQUEST_WAIT_MAX_S, RESPONSE_WAIT_MAX_S),
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_WAIT_MAX_S,
        timeout_keep_alive=KEEP_ALIVE_S,
        lifespan="off",
    )
    host, port = serving.getsockname()[:2]
    print(f"schema registry listening on http://{host}:{port}", flush=True)
    uvicorn.Server(config).run(sockets=[serving])
    copier.stop()
    workers.close()
    session.close()
    sources.close()
    return 0


def listen(address: str) -> socket.socket:
    """Returns a listening socket on "host:port". Raises `OSError` (the port is taken) or `ValueError`."""
    host, port = split_address(address)
    # asyncio sets TCP_NODELAY on accepted sockets only if the protocol is given; without it, small responses
    # wait 40 ms for an ACK.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    serving = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    serving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        serving.bind((host.strip("[]"), port))
        serving.listen(REQUESTS_WAITING_MAX)
    except OSError:
        serving.close()
        raise
    return serving


if __name__ == "__main__":
    sys.exit(main())
