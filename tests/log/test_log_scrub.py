"""The scrub finds flipped bits of durable batches, keeps its place, and takes retention for no damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fix_log import build, segments
from headrace.broker.scrubber import lower_io_priority
from headrace.log import checkpoint, flushed
from headrace.log.config import LogConfig
from headrace.log.names import CHECKPOINT
from headrace.log.scrub import STATE_FILE, DiskFile, Scrub

FAST_BYTES_PER_S = 1 << 40
PASS = b'{"place": null, "pass_began_ms": 1, "pass_ended_ms": 1, "findings": %s}'


def logs(root: Path) -> list[Path]:
    folders = [root / name for name in ("a-0", "b-0")]
    for folder in folders:
        build(folder, [100] * 20, clean=True)
        (folder / "partition.json").write_text("{}")
    return folders


def scrub(root: Path, steps: int = 10**9, rests: list[float] | None = None) -> Scrub:
    """A scrub that ends after so many rests."""
    left = steps

    def rest(seconds: float) -> bool:
        nonlocal left
        left -= 1
        if rests is not None:
            rests.append(seconds)
        return left < 0

    return Scrub(root, FAST_BYTES_PER_S, 86_400_000, rest)


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_a_whole_directory_has_no_findings(tmp_path: Path) -> None:
    logs(tmp_path)
    one = scrub(tmp_path)
    assert one.one_pass()
    assert one.findings == [] and one.place is None and one.pass_ended_ms
    assert one.read_bytes == 2 * 3400


def test_a_flipped_bit_is_found_reported_once_and_forgotten_when_mended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, folder = logs(tmp_path)
    victims = [segments(folder)[1], segments(folder)[-1]]
    for victim in victims:
        flip(victim, 100)
    one = scrub(tmp_path)
    assert one.one_pass()
    assert [(each.partition, each.segment, each.start) for each in one.findings] == [
        ("b-0", int(victim.stem), int(victim.stem)) for victim in victims
    ]
    first = int(victims[0].stem)
    assert f"b-0: {victims[0].name}: addresses [{first}, {first + 170}) are damaged" in caplog.text
    stored = json.loads((tmp_path / STATE_FILE).read_text())["findings"]
    assert [each["start"] for each in stored] == [int(victim.stem) for victim in victims]
    caplog.clear()
    again = scrub(tmp_path)
    assert again.findings == one.findings, "they are kept over a restart"
    assert again.one_pass()
    assert again.findings == one.findings and not caplog.records
    for victim in victims:
        flip(victim, 100)
    assert again.one_pass()
    assert again.findings == []
    mended = [(each.partition, each.start) for each in again.mended]
    assert mended == [("b-0", int(victim.stem)) for victim in victims]
    assert scrub(tmp_path).mended == again.mended, "they are kept over a restart"
    flip(victims[0], 100)
    assert again.one_pass()
    assert [each.start for each in again.findings] == [first]
    assert [each.start for each in again.mended] == [int(victims[1].stem)], "what rots again is not mended"


def test_a_damaged_segment_that_retention_deletes_is_mended(tmp_path: Path) -> None:
    folder, _ = logs(tmp_path)
    victim = segments(folder)[0]
    flip(victim, 100)
    one = scrub(tmp_path)
    assert one.one_pass() and [each.start for each in one.findings] == [int(victim.stem)]
    victim.unlink()
    assert one.one_pass()
    assert one.findings == [] and [each.start for each in one.mended] == [int(victim.stem)]


def test_beyond_its_bound_no_damage_counts_as_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest findings gave way, and the audit was told that those ranges are whole again."""
    monkeypatch.setattr("headrace.log.scrub.FINDINGS_MAX", 3)
    victims = [victim for folder in logs(tmp_path) for victim in segments(folder)[:3]]
    for victim in victims[3:]:
        flip(victim, 100)
    one = scrub(tmp_path)
    assert one.one_pass()
    said = [(each.partition, each.segment) for each in one.findings]
    assert said == [("b-0", int(victim.stem)) for victim in victims[3:]]
    for victim in victims[:3]:
        flip(victim, 100)
    for _ in range(2):
        assert one.one_pass()
        assert [(each.partition, each.segment) for each in one.findings] == said
        assert one.mended == []
    flip(victims[3], 100)
    assert one.one_pass() and one.one_pass()
    assert [(each.partition, each.segment) for each in one.mended] == said[:1]
    assert {(each.partition, each.segment) for each in one.findings} == {*said[1:], ("a-0", 0)}


def test_it_keeps_its_place(tmp_path: Path) -> None:
    logs(tmp_path)
    total = passes = 0
    ended = False
    while not ended and passes < 1_000:
        passes += 1
        one = scrub(tmp_path, steps=3)
        ended = one.one_pass()
        total += one.read_bytes
    assert ended and passes > 3
    assert 2 * 3400 <= total <= 3 * 3400, "at most the segment that was interrupted is read again"


def test_what_retention_deletes_is_no_finding(tmp_path: Path) -> None:
    folder, _ = logs(tmp_path)
    victim = segments(folder)[0]
    flip(victim, 100)

    def rest(_: float) -> bool:
        victim.unlink(missing_ok=True)
        return False

    one = Scrub(tmp_path, FAST_BYTES_PER_S, 86_400_000, rest)
    assert one.one_pass()
    assert one.findings == []


def test_what_is_not_durable_yet_is_not_read(tmp_path: Path) -> None:
    build(tmp_path / "a-0", [100] * 3, unflushed=3)
    (tmp_path / "a-0" / "partition.json").write_text("{}")
    segments(tmp_path / "a-0")[0].write_bytes(b"being written")
    one = scrub(tmp_path)
    assert one.one_pass()
    assert one.findings == [] and one.read_bytes == 0


def test_it_rests_for_what_it_reads(tmp_path: Path) -> None:
    logs(tmp_path)
    rests: list[float] = []
    one = scrub(tmp_path, rests=rests)
    one._rate = 1_000
    assert one.one_pass()
    assert sum(rests) > 6.7


def test_a_broken_state_file_begins_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logs(tmp_path)
    (tmp_path / STATE_FILE).write_bytes(b"\0" * 50)
    one = scrub(tmp_path)
    assert "the scrub begins again" in caplog.text
    assert one.one_pass() and one.read_bytes == 6800


def test_files_are_read_at_any_position(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = bytes(range(256)) * 100
    path.write_bytes(content)
    file = DiskFile(path)
    for position, size in ((0, 10), (5, 5000), (4096, 4096), (25_000, 10_000), (25_600, 1), (12_345, 0)):
        assert file.read(size, position) == content[position : position + size]


def test_idle_priority() -> None:
    assert isinstance(lower_io_priority(), bool)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b"[]",
        b"\xff",
        b"null",
        b'{"place": [], "pass_began_ms": 1, "pass_ended_ms": 1, "findings": []}',
        b'{"place": "x", "pass_began_ms": 1, "pass_ended_ms": 1, "findings": []}',
        b'{"place": null, "pass_began_ms": 1e999, "pass_ended_ms": 1, "findings": []}',
        PASS % b'[{"partition": "a-0"}]',
        PASS % b'[{"partition": "a-0", "segment": 0, "start": "x", "end": 1, "cause": "", "found_ms": 1}]',
        PASS % b'[{"partition": "a-0", "segment": 0, "start": 5, "end": 1, "cause": "", "found_ms": 1}]',
    ],
    ids=range(10),
)
def test_a_state_that_is_damaged_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    _, folder = logs(tmp_path)
    flip(segments(folder)[1], 100)
    (tmp_path / STATE_FILE).write_bytes(content)
    one = scrub(tmp_path)
    assert caplog.text.count("the scrub begins again") == 1
    assert one.findings == [] and one.place is None
    assert one.one_pass() and len(one.findings) == 1
    assert len(scrub(tmp_path).findings) == 1


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_is_durable_is_read_also_behind_the_checkpoint_and_where_that_is_lost(
    tmp_path: Path, is_lost: bool
) -> None:
    """Such as in a log that its broker keeps offline: nobody else would ever read it."""
    folder = tmp_path / "a-0"
    built = build(folder, [100] * 3, checkpoint_after=1, unflushed=1, config=LogConfig())
    (folder / "partition.json").write_text("{}")
    saved = checkpoint.load(folder)
    assert saved is not None and 0 < saved.recovery_point < built.durable
    flushed.write(folder, saved.lineage, built.durable)
    if is_lost:
        checkpoint.save(folder, saved)  # twice the same one
        (folder / CHECKPOINT).unlink()
    one = scrub(tmp_path)
    flip(segments(folder)[-1], built.starts[2] + 100)  # it was only written: perhaps it is torn
    assert one.one_pass()
    assert one.findings == []
    flip(segments(folder)[-1], built.starts[1] + 100)
    assert one.one_pass()
    assert [(each.start, each.end) for each in one.findings] == [(built.starts[1], built.starts[2])]
