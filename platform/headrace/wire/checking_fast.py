"""Checks records by LuaJIT (the package `lupa`): 25 to 45 ns a record instead of 1 to 4 µs.

Numba would take 144 MB and 1.6 s of CPU to import, in a broker of 48 MB; numpy 20 MB, and the boundaries of
records of different sizes would remain a loop in Python. LuaJIT takes 2 MB and 5 ms, without the GIL. The
loop itself is `checking.lua`; `wire.checking` says the same in Python, and serves where `lupa` is missing.
"""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path
from typing import Any, Final

from headrace.wire.checking import Scan, Scanner, TimestampDeltas, scan_records
from headrace.wire.primitives import Buffer

logger = logging.getLogger(__name__)

SOURCE: Final = Path(__file__).with_suffix("").with_name("checking.lua")


def make_scanner() -> tuple[Scanner, bool]:
    """Returns a scanner for one thread, and whether it is the fast one: a second thread would wait for it."""
    try:
        from lupa.luajit21 import LuaRuntime
    except ImportError:
        return scan_records, False
    try:
        runtime = LuaRuntime(
            encoding=None, unpack_returned_tuples=True, register_eval=False, register_builtins=False
        )
        return _LuaScanner(runtime.execute(SOURCE.read_bytes())), True
    except Exception as error:  # whatever it is, there is a way without
        logger.warning("LuaJIT cannot be used, records are checked by slower code: %s", error)
        return scan_records, False


class _LuaScanner:
    """`scan` is the function that `checking.lua` returns."""

    __slots__ = ("_scan",)

    def __init__(self, scan: Any) -> None:
        self._scan = scan

    def __call__(
        self, data: Buffer, count: int, deltas: TimestampDeltas, *, needs_keys: bool = False
    ) -> Scan:
        size_bytes = len(data)
        if not size_bytes:
            return Scan(0, 0, None)
        view = memoryview(data)
        # ctypes tells the address of writable memory only.
        pinned = ctypes.c_char.from_buffer(bytearray(view) if view.readonly else view)
        index, at, latest = self._scan(ctypes.addressof(pinned), size_bytes, count, *deltas, needs_keys)
        return Scan(int(index), int(at), int(latest) if index else None)
