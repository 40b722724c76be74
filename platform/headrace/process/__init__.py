"""What every process of headrace does alike: it reads the wall clock, and serves a status page.

The lowest room beside `wire`. Knows nothing of Kafka.
"""
