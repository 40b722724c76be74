"""How many bytes a column of a Parquet file can unpack to: from its pages' headers, before it is decoded.

A footer's sizes are claims; a page's header is what readers obey. A page of a few bytes may unpack to 2 GiB,
and one long value in a dictionary may be named by a million rows.

Source: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headrace.warehouse.hdfs.remote_file import RemoteFile
from headrace.warehouse.thrift import StructReader

WALKED_MAX_BYTES: Final = 4 << 20
"""Of a dictionary, once unpacked. In a larger one each value may be as long as all of it."""
PAGES_MAX: Final = 100_000  # of one column chunk
VALUE_SIZE_BYTES: Final = 16
"""What a value takes beside the bytes of a text: a number, or its place and that of its list."""
DICTIONARY_PAGE: Final = 2
_CODECS: Final = ("BROTLI", "GZIP", "SNAPPY", "ZSTD")
_TYPE, _UNPACKED, _PACKED = (1,), (2,), (3,)
_VALUES: Final = ((5, 1), (8, 1))  # of data pages of both versions


@dataclass(frozen=True)
class Sizes:
    """What a column chunk can unpack to. `path`: of its column. `pages_bytes`: of all its pages, as they are
    in the file. `named_bytes`: what its values can take more, because they name values of its dictionary.
    """

    path: str
    pages_bytes: int
    named_bytes: int

    @property
    def all_bytes(self) -> int:
        return self.pages_bytes + self.named_bytes


def sizes_of(chunk: Any, remote: RemoteFile) -> Sizes:
    """Returns the sizes of one column chunk, of pyarrow's metadata. Raises `ValueError`, `ArrowException`."""
    start, size_bytes = start_of(chunk), chunk.total_compressed_size
    remote.seek(start)
    data = memoryview(remote.read(max(0, size_bytes)))
    at = pages = pages_bytes = values = longest_bytes = 0
    while at < len(data):
        pages += 1
        reader = StructReader(data, at, "a page's header")
        found = reader.numbers()
        packed, unpacked = found.get(_PACKED, -1), found.get(_UNPACKED, -1)
        counts = [found[place] for place in _VALUES if place in found]
        is_possible = 0 <= packed <= len(data) - reader.at and unpacked >= 0 and min(counts, default=0) >= 0
        if not is_possible or pages > PAGES_MAX:
            raise ValueError(f"page {pages} of column {chunk.path_in_schema} has impossible sizes")
        if found.get(_TYPE) == DICTIONARY_PAGE:
            page = data[reader.at : reader.at + packed]
            longest_bytes = max(longest_bytes, _longest(page, unpacked, chunk))
        pages_bytes += unpacked
        values += sum(counts)
        at = reader.at + packed
    named = values * longest_bytes if chunk.physical_type == "BYTE_ARRAY" else 0
    return Sizes(chunk.path_in_schema, pages_bytes + values * VALUE_SIZE_BYTES, named)


def start_of(chunk: Any) -> int:
    """Returns where a column chunk begins in its file."""
    dictionary = chunk.dictionary_page_offset
    return int(chunk.data_page_offset if dictionary is None else min(dictionary, chunk.data_page_offset))


def _longest(page: memoryview, unpacked_bytes: int, chunk: Any) -> int:
    """Returns the length of the longest text in a dictionary, or a bound of it."""
    if chunk.physical_type != "BYTE_ARRAY" or unpacked_bytes > WALKED_MAX_BYTES:
        return unpacked_bytes
    data: Any = page
    if chunk.compression in _CODECS:
        codec = pa.Codec(chunk.compression.lower())
        data = memoryview(codec.decompress(page, decompressed_size=unpacked_bytes))
    elif chunk.compression != "UNCOMPRESSED":
        return unpacked_bytes
    at = longest = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        longest = max(longest, size)
        at += 4 + size
    return min(longest, unpacked_bytes)
