"""A run survives its JSON, and pages are made from it: tables, bars, README's summary."""

from __future__ import annotations

from pathlib import Path

import pytest
from side_by_side.bars import Bar, beside_kafka, judge
from side_by_side.figures import BROKER_CPU, CLIENT_CORES, RECORDS_PER_S, Row
from side_by_side.page import fill, filled
from side_by_side.plots import draw
from side_by_side.profiling import summary
from side_by_side.report import Report, ReportError

OURS, THEIRS, DURABLE = "headrace", "Apache Kafka", "Apache Kafka, fsync"


def a_report() -> Report:
    report = Report("2026-11-22", False, {"cores": "2"}, skipped=["RabbitMQ: not installed"])
    row = Row("produce-batch-1", "one record a batch", (RECORDS_PER_S, BROKER_CPU))
    for rate in (60_000.0, 59_000.0, 61_000.0):
        sizes = {"records": rate * 10, "size_bytes": rate * 2000}
        row.add(OURS, {RECORDS_PER_S: rate, BROKER_CPU: 11.6, CLIENT_CORES: 0.8, **sizes})
    row.add(THEIRS, {RECORDS_PER_S: 11_000.0, BROKER_CPU: 83.0, CLIENT_CORES: 0.9, "size_bytes": 22e6})
    row.add(DURABLE, {RECORDS_PER_S: 2_000.0, BROKER_CPU: 232.0, CLIENT_CORES: 0.1, "size_bytes": 4e6})
    report.add(row, [judge(row, bar) for bar in (*beside_kafka(OURS, THEIRS, None), IMPOSSIBLE)])
    without = Row("consume", "consume", (RECORDS_PER_S, BROKER_CPU))
    for name, rate in ((OURS, 50_000.0), (THEIRS, 40_000.0)):
        without.add(name, {RECORDS_PER_S: rate, BROKER_CPU: 1.0, CLIENT_CORES: 0.5, "size_bytes": 4e6})
    report.add(without, [])
    return report


IMPOSSIBLE = Bar(RECORDS_PER_S, OURS, THEIRS, 100.0)


def test_json_there_and_back(tmp_path: Path) -> None:
    report = a_report()
    report.write(tmp_path / "run.json")
    again = Report.read(tmp_path / "run.json")
    again.write(tmp_path / "again.json")
    assert (tmp_path / "run.json").read_text() == (tmp_path / "again.json").read_text()
    assert again.rows[0].median(OURS, RECORDS_PER_S) == 60_000.0
    assert [each.verdict for each in again.judgements["produce-batch-1"]] == [
        each.verdict for each in report.judgements["produce-batch-1"]
    ]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 99}', '{"format": 1, "rows": [3]}'])
def test_another_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ReportError, match=r"other\.json"):
        Report.read(tmp_path / "other.json")


PAGE = """Words by hand.
<!-- bench: machine -->
old
<!-- bench end -->
More words.
<!-- bench: produce-batch-1 -->
<!-- bench end -->
<!-- bench: summary -->
<!-- bench end -->
<!-- bench: missed -->
<!-- bench end -->
"""


def test_a_page_keeps_its_words_and_gets_the_figures(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert fill(page, a_report())
    text = page.read_text()
    assert text.startswith(
        "Words by hand.\n<!-- bench: machine -->\nRun of 2026-11-22 (cores 2).\nLeft out: RabbitMQ"
    )
    assert "old" not in text and "More words." in text
    assert "| headrace | 60 <sub>59–61</sub> | 11.60 | 0.80 |" in text
    assert "\n3 rounds of 10 s, 2026-11-22.\n" in text
    assert "- headrace ÷ Apache Kafka: k records/s ≥ 1.5: 5.45, met" in text
    assert "| one record a request, acks=all | 60 k records/s | 2 | 30 × | 11 | 5.5 × | 0.14 × |" in text
    assert "| consume from memory | 50 k records/s | – | – | 40 | 1.2 × | 1 × |" in text
    assert "- one record a batch: headrace ÷ Apache Kafka: k records/s ≥ 100: 5.45, **missed**" in text
    assert not fill(page, a_report()), "the same figures change nothing"


def test_a_row_that_was_left_out() -> None:
    page = filled("<!-- bench: mirror -->\nold\n<!-- bench end -->\n", a_report())
    assert page == "<!-- bench: mirror -->\nNot measured in this run.\n<!-- bench end -->\n"


def test_plots(tmp_path: Path) -> None:
    paths = draw(a_report(), tmp_path)
    assert [path.name for path in paths] == ["figure-4-producers.png", "figure-5-consumers.png"]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_profile_tells_the_loop_from_the_workers() -> None:
    stacks = (
        "thread (1): MainThread;run (loop.py:1);turn (loop.py:2) 30\n"
        "thread (1): MainThread;run (loop.py:1);EventLoop.turn (broker/loop.py:134) 99\n"
        "thread (2): workers-0;fsync (f.py:9) 10\njunk\n"
        "thread (2): workers-0;Condition.wait (threading.py:327) 99\n"
    )
    lines = summary(stacks)
    assert lines[0] == "  the loop's thread: 30 samples at work"
    assert "turn (loop.py:2)" in lines[1] and "100.0 %" in lines[1]
    assert lines[2] == "  the workers: 10 samples at work"
