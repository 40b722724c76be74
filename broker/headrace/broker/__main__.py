"""`python -m headrace.broker`: one broker process. Owns the command line, logging and signals."""

from __future__ import annotations

import argparse
import gc
import logging
import signal
import sys
from pathlib import Path
from typing import Final

from headrace.broker.broker import Broker
from headrace.broker.metrics import metrics
from headrace.broker.options import Address, BrokerOptions
from headrace.broker.page import page
from headrace.broker.settings.config import BROKER_SETTINGS
from headrace.broker.settings.setting import ConfigError
from headrace.coordination.errors import CoordinationError
from headrace.log.errors import LogError
from headrace.process.command_line import (
    STOP_SIGNALS,
    host_port,
    on_stop_signals,
    raise_descriptor_limit,
    set_up_logging,
)
from headrace.process.disk import explained, is_full
from headrace.process.status import StatusServer

SWITCH_INTERVAL_S: Final = 0.001
GC_THRESHOLD: Final = 50_000  # new objects before a collection: requests leave no cycles behind


def parse_address(text: str) -> Address:
    """`host:port` or `[v6]:port`."""
    host, port = host_port(text)
    return host.strip("[]"), port


def address_text(text: str) -> str:
    """HOST:PORT, checked."""
    host_port(text)
    return text


def parse_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name.strip(), value.strip()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m headrace.broker", description="One headrace broker, speaking Kafka's protocol."
    )
    made.add_argument("--broker-id", type=int, help="number of this broker, unique in its datacenter")
    made.add_argument(
        "--datacenter", help="name of the datacenter; clients see it as the rack, unless broker.rack is set"
    )
    made.add_argument(
        "--listen",
        type=parse_address,
        metavar="HOST:PORT",
        help="where clients connect (port 0: any free one)",
    )
    made.add_argument(
        "--advertise",
        type=parse_address,
        metavar="HOST:PORT",
        help="the address that clients see, if not --listen",
    )
    made.add_argument(
        "--front-listen",
        type=parse_address,
        metavar="HOST:PORT",
        help="where a TCP balancer connects: producers see the whole cluster as one node there",
    )
    made.add_argument(
        "--front-advertise",
        type=parse_address,
        metavar="HOST:PORT",
        help="the balancer's own address, which its clients see",
    )
    made.add_argument("--zookeeper", metavar="HOSTS", help="host:port[,host:port…][/chroot]")
    made.add_argument("--data-dir", type=Path, metavar="DIR", help="the folder of its logs, one per broker")
    made.add_argument(
        "--set",
        type=parse_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="settings",
        help="a broker setting, by Kafka's name; may be repeated",
    )
    made.add_argument(
        "--status",
        type=address_text,
        metavar="HOST:PORT",
        help="where to serve its page, and GET /status as JSON (default: nowhere)",
    )
    made.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    made.add_argument("--help-settings", action="store_true", help="list the broker settings, and exit")
    return made


def tune_process() -> None:
    """Allows as many descriptors as possible (connections, segments), and quick switches between threads.

    What the modules have made so far stays, so that the garbage collector need not go through it again: the
    event loop waits meanwhile.
    """
    raise_descriptor_limit()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(GC_THRESHOLD)
    gc.freeze()


def serve(broker: Broker, status: str | None) -> None:
    """Runs the broker until it is stopped, with its status page if there is an address for it."""
    if status is None:
        broker.run()
        return
    try:
        server = StatusServer(status, broker.status, page, metrics=metrics)
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot serve its status on {status}: {error.strerror or error}; is another process there?",
        ) from None
    try:
        broker.run()
    finally:
        server.close()


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0 after a clean stop, 1 if starting failed, 2 for a wrong command line."""
    command = parser()
    options = command.parse_args(arguments)
    if options.help_settings:
        for setting in BROKER_SETTINGS.values():
            print(f"{setting.name}={setting.default}\n    {setting.doc}")
        return 0
    for required in ("broker_id", "datacenter", "listen", "zookeeper", "data_dir"):
        if getattr(options, required) is None:
            command.error(f"--{required.replace('_', '-')} is required")
    set_up_logging(options.log_level, level_width=7, kazoo_level=logging.WARNING)
    tune_process()
    try:
        broker = Broker(
            BrokerOptions(
                broker_id=options.broker_id,
                datacenter=options.datacenter,
                listen=options.listen,
                zookeeper=options.zookeeper,
                data_dir=options.data_dir,
                advertise=options.advertise,
                settings=dict(options.settings),
                front_listen=options.front_listen,
                front_advertise=options.front_advertise,
            ),
            on_ready=lambda address: print(
                f"broker {options.broker_id} ready on {address[0]}:{address[1]}", flush=True
            ),
        )
        on_stop_signals(broker.stop)
        serve(broker, options.status)
        for number in STOP_SIGNALS:
            # A second signal while the interpreter ends must not turn a clean stop into a kill.
            signal.signal(number, signal.SIG_IGN)
    except (ConfigError, CoordinationError, LogError) as error:
        print(f"broker {options.broker_id}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        # An error of a write does not say where.
        where = options.data_dir if is_full(error) and not error.filename else None
        print(f"broker {options.broker_id}: {explained(error, where)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
