"""Structs of Thrift's compact protocol, as far as the headers and footers of Parquet files need it. Pure.

Owns one walk over bytes that anybody may have written: every length is checked before it is believed, what
nests is bounded, and a walk takes at most `STEPS_MAX` steps.

Source: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from typing import Final

DEPTH_MAX: Final = 32
STEPS_MAX: Final = 1_000_000
"""Values of one walk. The schema of a table with a thousand columns has some ten thousand."""
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
INTEGERS: Final = (I16, I32, I64)
_VARINT_MAX_BYTES: Final = 10
_FIXED_SIZES_BYTES: Final = {TRUE: 1, FALSE: 1, BYTE: 1, DOUBLE: 8}  # of an element of a collection


class ThriftError(ValueError):
    """The bytes are no struct."""


class StructReader:
    """Goes through one struct that begins at `at`. All calls raise `ThriftError`."""

    def __init__(self, data: bytes | memoryview, at: int = 0, what: str = "its footer") -> None:
        self._data = data
        self._what = what
        self._steps = 0
        self.at = at

    def field(self, wanted: int) -> int:
        """Returns an integer field of the outermost struct; reads no further."""
        number = 0
        while head := self._byte():
            number = self._field_number(head, number)
            if number == wanted:
                if head & 0xF not in INTEGERS:
                    raise ThriftError(f"field {wanted} of {self._what} is no number")
                return self._number()
            self._skip(head & 0xF, 0)
        raise ThriftError(f"{self._what} has no field {wanted}")

    def numbers(self) -> dict[tuple[int, ...], int]:
        """Reads the struct to its end; returns the integers in it and in the structs that are its fields, by
        the numbers of the fields that lead to each.
        """
        return self._numbers(())

    def _numbers(self, path: tuple[int, ...]) -> dict[tuple[int, ...], int]:
        found: dict[tuple[int, ...], int] = {}
        number = 0
        while head := self._byte():
            number = self._field_number(head, number)
            kind = head & 0xF
            if kind in INTEGERS:
                found[(*path, number)] = self._number()
            elif kind == STRUCT and not path:
                found |= self._numbers((number,))
            else:
                self._skip(kind, 0)
        return found

    def _field_number(self, head: int, before: int) -> int:
        return before + (head >> 4) if head >> 4 else self._number()

    def _byte(self) -> int:
        if self.at >= len(self._data):
            raise ThriftError(f"{self._what} ends too early")
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise ThriftError(f"{self._what} has more than {STEPS_MAX} values")
        value = self._data[self.at]
        self.at += 1
        return value

    def _varint(self) -> int:
        value = 0
        for index in range(_VARINT_MAX_BYTES):
            byte = self._byte()
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value
        raise ThriftError(f"a number in {self._what} has no end")

    def _number(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _advance(self, size_bytes: int) -> None:
        if size_bytes > len(self._data) - self.at:
            raise ThriftError(f"a length in {self._what} leads beyond its end")
        self.at += size_bytes

    def _skip(self, kind: int, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise ThriftError(f"{self._what} nests deeper than {DEPTH_MAX}")
        if kind in (TRUE, FALSE):
            return
        if kind == BYTE:
            self._advance(1)
        elif kind in INTEGERS:
            self._varint()
        elif kind == DOUBLE:
            self._advance(8)
        elif kind == BINARY:
            self._advance(self._varint())
        elif kind in (LIST, SET):
            head = self._byte()
            count = self._varint() if head >> 4 == 0xF else head >> 4
            self._skip_all([head & 0xF], count, depth)
        elif kind == MAP:
            if count := self._varint():
                kinds = self._byte()
                self._skip_all([kinds >> 4, kinds & 0xF], count, depth)
        elif kind == STRUCT:
            while head := self._byte():
                if not head >> 4:
                    self._number()
                self._skip(head & 0xF, depth + 1)
        else:
            raise ThriftError(f"{self._what} has a field of kind {kind}")

    def _skip_all(self, kinds: list[int], count: int, depth: int) -> None:
        left = len(self._data) - self.at
        if count > left:
            raise ThriftError(f"{self._what} claims {count} elements in {left} bytes")
        if all(kind in _FIXED_SIZES_BYTES for kind in kinds):
            self._advance(count * sum(_FIXED_SIZES_BYTES[kind] for kind in kinds))
            return
        for _ in range(count):
            for kind in kinds:
                if kind in (TRUE, FALSE):
                    self._advance(1)
                else:
                    self._skip(kind, depth + 1)
