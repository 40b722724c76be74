"""What every process of headrace shares: the wall clock, the status page, the command line.

The lowest room beside `wire`. Knows nothing about Kafka.
"""
