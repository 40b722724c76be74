"""What Apache Kafka's load tools print, as they printed it: version 4.3.1, against a headrace broker."""

from __future__ import annotations

from clients.kafka_java import ProducerSummary, consumed, window_records_per_s

PRODUCED = """\
Warmup first 200000 records. Steady state results will print after the complete test summary.
2 records sent, 4.0 records/sec (0.00 MB/sec), 269.0 ms avg latency, 494.0 ms max latency.
15912 records sent, 31508.9 records/sec (6.01 MB/sec), 166.9 ms avg latency, 302.0 ms max latency.
In steady state.
99675 records sent, 198952.1 records/sec (37.95 MB/sec), 919.7 ms avg latency, 971.0 ms max latency.
300000 records sent, 87387.124964 records/sec (16.67 MB/sec), 851.19 ms avg latency, 1070.00 ms max latency, \
931 ms 50th, 1052 ms 95th, 1064 ms 99th, 1069 ms 99.9th.
100000 steady state records sent, 66622.251832 records/sec (12.71 MB/sec), 919.57 ms avg latency, \
971.00 ms max latency, 925 ms 50th, 955 ms 95th, 965 ms 99th, 966 ms 99.9th.
"""
CONSUMED = """\
time, threadId, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, \
fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec
2026-11-22 16:22:02:627, 0, 0.0002, 0.0002, 1, 0.9425, 1019, 42, 0.0045, 23.8095
2026-11-22 16:22:02:945, 0, 12.5690, 39.5247, 65898, 207223.2704, 0, 318, 39.5247, 207223.2704
"""


def test_a_producer_has_two_summaries() -> None:
    found = [each for line in PRODUCED.splitlines() if (each := ProducerSummary.parse(line)) is not None]
    whole, steady = found
    assert (whole.is_steady, whole.records) == (False, 300_000)
    assert (steady.is_steady, steady.records, steady.records_per_s) == (True, 100_000, 66622.251832)
    assert steady.latencies_ms == {
        "avg_ms": 919.57,
        "max_ms": 971.0,
        "p50_ms": 925.0,
        "p95_ms": 955.0,
        "p99_ms": 965.0,
        "p999_ms": 966.0,
    }


def test_the_windows_of_a_producer_are_no_summaries() -> None:
    rates = [rate for line in PRODUCED.splitlines() if (rate := window_records_per_s(line)) is not None]
    assert rates == [4.0, 31508.9, 198952.1]


def test_a_consumer_tells_what_it_has_read_so_far() -> None:
    progress = [each for line in CONSUMED.splitlines() if (each := consumed(line)) is not None]
    assert progress == [(1, 0.0002 * (1 << 20)), (65_898, 12.5690 * (1 << 20))]
