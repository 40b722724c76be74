"""One health check of one broker: a request over its own connection, as HAProxy sends it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from headrace.balancer.backends import CHECK_TIMEOUT_S
from headrace.balancer.haproxy_config import CHECK_REQUEST, CHECK_RESPONSE
from headrace.process.command_line import HostPort

FRAME_LENGTH_BYTES: Final = 4
NO_RESPONSE: Final = f"no response within {CHECK_TIMEOUT_S:g} s"


async def check(address: HostPort) -> str:
    """What is wrong with the broker at this address; empty if it responds as a broker."""
    writer = None
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(CHECK_REQUEST)
            response = await reader.readexactly(FRAME_LENGTH_BYTES + len(CHECK_RESPONSE))
    except TimeoutError:
        return NO_RESPONSE
    except (OSError, UnicodeError, asyncio.IncompleteReadError) as error:
        return str(error)  # a UnicodeError: a host that can have no address
    finally:
        if writer is not None:
            # The rest of the response is not read, so the connection cannot be closed in order.
            with contextlib.suppress(OSError):
                writer.transport.abort()
    return "" if response[FRAME_LENGTH_BYTES:] == CHECK_RESPONSE else "it does not respond as a broker"
