"""`dump-log` over any file, and `consume` over any record: what can be read is printed, the rest is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fix_bad_batches import flipped
from fix_cli import Headrace, command_runner
from fix_client import StartCluster
from headrace.cli.output import in_time
from headrace.process.text import escaped_lines
from headrace.wire.batch import read_header, readdress
from headrace.wire.compression import Codec
from headrace.wire.records import Record, encode_batch

NAME = "00000000000000001000.log"


@pytest.fixture
def headrace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Headrace:
    return command_runner(monkeypatch, capsys)


def segment(count: int = 5) -> tuple[bytearray, list[int]]:
    """A segment's bytes, and where its batches begin, and its end."""
    data, cuts = bytearray(), [0]
    for index in range(count):
        batch = bytearray(encode_batch([Record(0, 1_000, None, b"v%d" % index)] * 2, codec=Codec.ZSTD))
        readdress(batch, 0, 1000 + cuts[-1], leader_epoch=0)
        data += batch
        cuts.append(len(data))
    return data, cuts


@pytest.mark.parametrize("records", [(), ("--records",)])
def test_dump_log_goes_on_behind_a_bad_batch_whose_length_can_be_believed(
    headrace: Headrace, tmp_path: Path, records: tuple[str, ...]
) -> None:
    data, cuts = segment()
    path = tmp_path / NAME
    for at in (16, 20, 60, 57, cuts[1] - cuts[0] - 2):  # magic, CRC, record count (twice), a record
        spoiled = bytearray(data)
        spoiled[cuts[1] + at] ^= 0x80
        path.write_bytes(spoiled)
        result = headrace("dump-log", path, *records)
        assert result.exit_code == 1, at
        assert result.out.count("damaged:") == 1
        assert all(str(1000 + cut) in result.out for cut in cuts[:-1] if cut != cuts[1])


def test_dump_log_says_where_it_cannot_go_on(headrace: Headrace, tmp_path: Path) -> None:
    data, cuts = segment()
    path = tmp_path / NAME
    whole = f"{path} at {cuts[2]} (address {1000 + cuts[2]})"
    for length in (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\1"):  # negative, huge, too short
        path.write_bytes(data[: cuts[2] + 8] + length + data[cuts[2] + 12 :])
        result = headrace("dump-log", path)
        assert result.exit_code == 1
        assert result.out.count(" records ") == 2
        assert whole in result.err and "not a whole batch" in result.err
    path.write_bytes(data[: cuts[2] + 30])
    assert "ends with 30 bytes" in headrace("dump-log", path).err
    path.write_bytes(data[: cuts[2]] + b"no batch at all " * 40)
    assert whole in headrace("dump-log", path, "--records").err
    path.write_bytes(b"")
    assert headrace("dump-log", path).exit_code == 0


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data(), st.booleans())
def test_dump_log_survives_any_file(
    headrace: Headrace, tmp_path: Path, choices: st.DataObject, json: bool
) -> None:
    data, _ = segment(3)
    for _ in range(choices.draw(st.integers(0, 6))):
        data[choices.draw(st.integers(0, len(data) - 1))] = choices.draw(st.integers(0, 255))
    noise = choices.draw(st.binary(max_size=200))
    content = choices.draw(st.sampled_from([bytes(data), noise + data, bytes(data) + noise, noise]))
    path = tmp_path / NAME
    path.write_bytes(content[choices.draw(st.integers(0, 3)) :])
    result = headrace("dump-log", path, "--records", *(["--json"] if json else []))
    assert result.exit_code in (0, 1)


def test_consume_prints_what_it_can_and_names_the_rest(
    headrace: Headrace, fake_cluster: StartCluster
) -> None:
    cluster = fake_cluster()
    escape = b"\x1b]0;owned\x07\x1b[2J"
    with cluster.lock:
        log = cluster.log()
        for record in (
            Record(0, 1_000, escape, b"first" + escape),
            Record(0, 2_000, None, b"second"),
            Record(0, 1_763_839_200_000_000, b"[red]key[/nothing]", b"[bold]third[/x]"),
        ):
            log.append(encode_batch([record]))
        bad = read_header(log.batches[1])
        log.batches[1] = flipped(bad, bytes(log.batches[1]))
    words = ("consume", "t", "--from", "beginning", "--to-end", "--bootstrap", cluster.bootstrap)
    result = headrace(*words)
    assert "first\\x1b]0;owned\\x07" in result.out and "second" not in result.out
    assert "\x1b]" not in result.out and "\x07" not in result.out
    assert "[red]key[/nothing]" in result.out and "[bold]third[/x]" in result.out
    assert "1763839200000000 ms" in result.out
    assert f"the batch at offsets {bad.address} to {bad.next_offset} is left out" in result.err.replace(
        "\n", ""
    )
    assert result.exit_code == 1 and "1 damaged batches were left out" in result.err
    lines = headrace(*words, "--json").out.splitlines()
    assert len(lines) == 2 and "\x1b" not in lines[0]


def test_what_moves_a_terminals_cursor_is_escaped() -> None:
    assert escaped_lines("a\tb\nc ü 界") == "a\tb\nc ü 界"
    assert escaped_lines("\x1b[2J\r\x00\x9b\u202e") == "\\x1b[2J\\r\\x00\\x9b\\u202e"
    assert in_time(2**63 - 1) == "9223372036854775807 ms"
    assert in_time(253_402_300_799_999).startswith("9999-12-31")
