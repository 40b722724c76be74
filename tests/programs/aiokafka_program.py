"""aiokafka as one of the real clients of the tests: produces, reads from a place, reads as a group.

Usage: produce BOOTSTRAP TOPIC CODEC FILE BATCH_BYTES LINGER_MS, read BOOTSTRAP TOPIC COUNT
offset|time|last:VALUE …, or group BOOTSTRAP TOPIC GROUP COUNT. Records are lines: time, key and value in hex,
"-" for null. It prints an offset per produced record, or the records that it read, with their offsets; each
of several reads, by a consumer of its own, ends with a line "--".
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

IDLE_MAX_S: Final = 30.0


def _hex(data: bytes | None) -> str:
    return "-" if data is None else "x" + data.hex()


def _unhex(word: str) -> bytes | None:
    return None if word == "-" else bytes.fromhex(word[1:])


async def produce(
    bootstrap: str, topic: str, codec: str, file: str, batch_bytes: str, linger_ms: str
) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=True,
        linger_ms=int(linger_ms),
        max_batch_size=int(batch_bytes),
        compression_type=None if codec == "none" else codec,
    )
    await producer.start()
    sent = []
    for line in Path(file).read_text().splitlines():
        ms, key, value = line.split()
        sent.append(await producer.send(topic, _unhex(value), _unhex(key), partition=0, timestamp_ms=int(ms)))
    delivered = await asyncio.gather(*sent)
    await producer.stop()
    print("\n".join(str(each.offset) for each in delivered))


async def read(bootstrap: str, topic: str, count: str, *starts: str) -> None:
    where = TopicPartition(topic, 0)
    for start in starts:
        kind, _, value = start.partition(":")
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
        await consumer.start()
        consumer.assign([where])
        offset = int(value)
        if kind == "time":
            offset = (await consumer.offsets_for_times({where: offset}))[where].offset
        if kind == "last":
            offset = (await consumer.end_offsets([where]))[where] - offset
        consumer.seek(where, offset)
        await _print_rows(consumer, int(count))
        print("--")


async def group(bootstrap: str, topic: str, name: str, count: str) -> None:
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=name,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    await _print_rows(consumer, int(count), commits=True)


async def _print_rows(consumer: Any, count: int, *, commits: bool = False) -> None:
    clock = asyncio.get_running_loop().time
    received_s, got = clock(), 0
    while got < count and clock() - received_s < IDLE_MAX_S:
        for records in (await consumer.getmany(timeout_ms=200, max_records=count - got)).values():
            for each in records:
                print(each.offset, each.timestamp, _hex(each.key), _hex(each.value))
            got += len(records)
            received_s = clock()
            if commits:
                await consumer.commit()
    await consumer.stop()


VERBS: Final[dict[str, Callable[..., Coroutine[Any, Any, None]]]] = {
    "produce": produce,
    "read": read,
    "group": group,
}

if __name__ == "__main__":
    asyncio.run(VERBS[sys.argv[1]](*sys.argv[2:]))
