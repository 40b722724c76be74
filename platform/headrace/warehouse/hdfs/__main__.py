"""`python -m headrace.warehouse.hdfs`: run the local HDFS in the foreground.

Java replaces this process, so that a supervisor's signals reach it.
"""

import argparse
import os
import socket
import sys
from pathlib import Path
from typing import NoReturn

from headrace.warehouse.hdfs.local import HdfsConfig, Role, command
from headrace.warehouse.jars import JarsError


def main(argv: list[str] | None = None) -> NoReturn:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.warehouse.hdfs", description="A NameNode and a DataNode in one JVM."
    )
    parser.add_argument("--host", required=True, help="the address to listen on")
    parser.add_argument("--data-dir", required=True, type=Path, help="holds the name and data directories")
    parser.add_argument("--rpc-port", type=int, default=8020)
    parser.add_argument("--http-port", type=int, default=9870, help="WebHDFS")
    parser.add_argument("--data-port", type=int, default=9866)
    parser.add_argument("--data-ipc-port", type=int, default=9867)
    parser.add_argument("--data-http-port", type=int, default=9864)
    parser.add_argument("--role", choices=["both", "namenode", "datanode"], default="both")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a further Hadoop setting"
    )
    options = parser.parse_args(argv)
    extra: dict[str, str] = {}
    for pair in options.set:
        name, equals, value = pair.partition("=")
        if not equals:
            parser.error(f"--set takes NAME=VALUE, not {pair!r}")
        extra[name] = value
    config = HdfsConfig(
        host=options.host,
        data_dir=options.data_dir.resolve(),
        rpc_port=options.rpc_port,
        http_port=options.http_port,
        data_port=options.data_port,
        data_ipc_port=options.data_ipc_port,
        data_http_port=options.data_http_port,
        extra=extra,
    )
    role: Role = options.role
    taken = port_taken(config, role)
    if taken is not None:
        sys.exit(
            f"hdfs: {config.host}:{taken} is already taken; stop what listens there or choose another port"
        )
    try:
        arguments = command(config, role)
    except JarsError as error:
        sys.exit(f"hdfs: {error}")
    os.execv(arguments[0], arguments)


def port_taken(config: HdfsConfig, role: Role) -> int | None:
    """Returns the first port of `config` that another process listens on, or None."""
    names = [config.rpc_port, config.http_port] if role != "datanode" else []
    data = [config.data_port, config.data_ipc_port, config.data_http_port] if role != "namenode" else []
    for port in names + data:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((config.host, port))
            except OSError:
                return port
    return None


if __name__ == "__main__":
    main()
