// kafkajs as one of the real clients of the tests: produces, reads from a place, reads as a group.
//
// Usage: node kafkajs.mjs produce BOOTSTRAP TOPIC CODEC FILE BATCH_BYTES LINGER_MS
//        node kafkajs.mjs read BOOTSTRAP TOPIC COUNT offset|time|last:VALUE …
//        node kafkajs.mjs group BOOTSTRAP TOPIC GROUP COUNT
// Records are lines: time, key and value in hex, "-" for null. It prints an offset per produced record, or the records
// that it read, with their offsets; each of several reads, by a consumer of its own, ends with a line "--".
import { readFileSync, writeSync } from "node:fs";
import kafkajs from "kafkajs";

const { Kafka, CompressionTypes, logLevel } = kafkajs;
const CODECS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP };
const RECORDS_PER_BATCH = 300;
const LINES_PER_WRITE = 1000;
const IDLE_MAX_MS = 30_000;

const [verb, bootstrap, topic, ...rest] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "tests", brokers: bootstrap.split(","), logLevel: logLevel.ERROR });
const hex = (data) => (data === null ? "-" : "x" + data.toString("hex"));
const unhex = (word) => (word === "-" ? null : Buffer.from(word.slice(1), "hex"));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function print(lines) {
  for (let at = 0; at < lines.length; at += LINES_PER_WRITE) {
    writeSync(1, lines.slice(at, at + LINES_PER_WRITE).join("\n") + "\n");
  }
}

async function produce(codec, file) {
  const messages = readFileSync(file, "utf8").trim().split("\n").map((line) => {
    const [timestamp, key, value] = line.split(" ");
    return { partition: 0, timestamp, key: unhex(key), value: unhex(value) };
  });
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  const offsets = [];
  for (let at = 0; at < messages.length; at += RECORDS_PER_BATCH) {
    const piece = messages.slice(at, at + RECORDS_PER_BATCH);
    const [{ baseOffset }] = await producer.send({ topic, messages: piece, compression: CODECS[codec] });
    piece.forEach((_, index) => offsets.push(BigInt(baseOffset) + BigInt(index)));
  }
  await producer.disconnect();
  print(offsets);
}

async function consume(groupId, count, offset, commits) {
  const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 200 });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const rows = [];
  let committed = 0;
  let receivedAt = Date.now();
  await consumer.run({
    autoCommit: false,
    eachBatch: async ({ batch, resolveOffset, commitOffsetsIfNecessary, uncommittedOffsets }) => {
      for (const message of batch.messages) {
        rows.push(`${message.offset} ${message.timestamp} ${hex(message.key)} ${hex(message.value)}`);
        resolveOffset(message.offset);
      }
      receivedAt = Date.now();
      if (commits) await commitOffsetsIfNecessary(uncommittedOffsets());
      committed = rows.length;
    },
  });
  if (offset !== null) consumer.seek({ topic, partition: 0, offset: String(offset) });
  while (committed < count && Date.now() - receivedAt < IDLE_MAX_MS) await sleep(20);
  await consumer.disconnect();
  return rows.slice(0, count);
}

async function read(count, ...starts) {
  const one = async (start, index) => {
    const offset = await find(...start.split(":"));
    return [...(await consume(`read-${process.pid}-${index}`, Number(count), offset, false)), "--"];
  };
  for (const lines of await Promise.all(starts.map(one))) print(lines);
}

async function find(kind, value) {
  const admin = kafka.admin();
  await admin.connect();
  let offset = value;
  if (kind === "time") [{ offset }] = await admin.fetchTopicOffsetsByTimestamp(topic, Number(value));
  if (kind === "last") offset = BigInt((await admin.fetchTopicOffsets(topic))[0].high) - BigInt(value);
  await admin.disconnect();
  return offset;
}

if (verb === "produce") await produce(rest[0], rest[1]);
if (verb === "read") await read(...rest);
if (verb === "group") print(await consume(rest[0], Number(rest[1]), null, true));
