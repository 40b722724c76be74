/* rdkafka_bench: a producer and a consumer on librdkafka that measure how much a Kafka broker moves.
 *
 * It prints the line `begin` when the warm-up is over, and one JSON line when the measured part is over; after
 * that line a producer still waits for what is in flight. It ends with 1 and a message on stderr if any record
 * fails, and with 0 otherwise. rdkafka.py builds and starts it; `rdkafka_bench` alone shows its options. */

#define _GNU_SOURCE
#include "rdkafka_measure.h"

#include <getopt.h>
#include <inttypes.h>
#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ERROR_MAX_BYTES 512
#define METADATA_WAIT_MAX_MS 30000
#define DRAIN_MAX_S 300.0
#define STALL_MAX_S 60.0
#define PARTITIONS_MAX 10000
#define VALUE_MAX_BYTES (1 << 20)
#define POOL_MAX_BYTES (64 << 20)
#define POOL_MAX_COUNT 4096
#define CHUNK_MAX 500   /* records that one call hands to librdkafka */
#define FULL_SLEEP_US 500
#define CONSUME_CHUNK 1000
#define CONSUME_WAIT_MS 10
#define FETCH_WAIT_MS "10"

static const char USAGE[] =
    "rdkafka_bench produce|consume --bootstrap HOST:PORT --topic NAME, and\n"
    "  --first-partition F --partitions P  partitions F to F+P-1 (0 and 1); a producer takes turns among them\n"
    "  --value-bytes N                     the size of each value (200); a consumer verifies it\n"
    "  --seconds S [--warmup W]            measure for S seconds after W seconds; a consumer that reaches the\n"
    "                                      end of all partitions starts again at their beginning\n"
    "  --records N                         instead: exactly N records (a consumer without it and without\n"
    "                                      --seconds reads to the end)\n"
    "  --batch N                           produce: batch.num.messages=N (0: librdkafka's default batches)\n"
    "  --acks all|1|0                      produce: what an acknowledgement means (all)\n"
    "  --set name=value                    any setting of librdkafka; may be repeated\n";

/* --- options --- */

static int64_t number(const char *name, const char *text, int64_t least, int64_t most) {
    char *end;
    long long value = strtoll(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < least || value > most)
        fail("--%s is %s: it must be a whole number from %" PRId64 " to %" PRId64, name, text, least, most);
    return value;
}

static double duration_s(const char *name, const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (*text == '\0' || *end != '\0' || !(value >= 0 && value <= 86400))
        fail("--%s is %s: it must be a number of seconds from 0 to 86400", name, text);
    return value;
}

static struct options parse(int count, char **words) {
    static const struct option known[] = {
        {"bootstrap", required_argument, NULL, 'b'}, {"topic", required_argument, NULL, 't'},
        {"first-partition", required_argument, NULL, 'f'}, {"partitions", required_argument, NULL, 'p'},
        {"value-bytes", required_argument, NULL, 'v'}, {"batch", required_argument, NULL, 'n'},
        {"acks", required_argument, NULL, 'a'}, {"seconds", required_argument, NULL, 's'},
        {"warmup", required_argument, NULL, 'w'}, {"records", required_argument, NULL, 'r'},
        {"set", required_argument, NULL, 'x'}, {NULL, 0, NULL, 0}};
    struct options options = {.partitions = 1, .value_bytes = 200, .acks = "all"};
    for (int letter, at = 0; (letter = getopt_long(count, words, "", known, &at)) != -1;) {
        const char *name = letter == '?' ? "" : known[at].name;
        switch (letter) {
        case 'b': options.bootstrap = optarg; break;
        case 't': options.topic = optarg; break;
        case 'f': options.first_partition = (int)number(name, optarg, 0, PARTITIONS_MAX - 1); break;
        case 'p': options.partitions = (int)number(name, optarg, 1, PARTITIONS_MAX); break;
        case 'v': options.value_bytes = (int)number(name, optarg, 1, VALUE_MAX_BYTES); break;
        case 'n': options.batch = (int)number(name, optarg, 0, 1000000); break;
        case 'a': options.acks = optarg; break;
        case 's': options.seconds = duration_s(name, optarg); break;
        case 'w': options.warmup_s = duration_s(name, optarg); break;
        case 'r': options.records = number(name, optarg, 1, INT64_MAX); break;
        case 'x':
            if (options.settings_count == SETTINGS_MAX)
                fail("more than %d --set", SETTINGS_MAX);
            options.settings[options.settings_count++] = optarg;
            break;
        default: fail("unknown option; the options are:\n%s", USAGE);
        }
    }
    if (options.bootstrap == NULL || options.topic == NULL)
        fail("--bootstrap and --topic are needed");
    if (options.records > 0 && (options.seconds > 0 || options.warmup_s > 0))
        fail("--records %" PRId64 " leaves no place for --seconds and --warmup: give one or the other",
             options.records);
    return options;
}

/* --- librdkafka --- */

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char error[ERROR_MAX_BYTES];
    if (rd_kafka_conf_set(conf, name, value, error, sizeof error) != RD_KAFKA_CONF_OK)
        fail("%s=%s: %s", name, value, error);
}

static rd_kafka_conf_t *configuration(rd_kafka_type_t kind, const struct options *options) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", options->bootstrap);
    if (kind == RD_KAFKA_CONSUMER) {
        set(conf, "enable.partition.eof", "true");
        /* A Fetch waits so long only at the end of a log, where nothing is measured but the wait. */
        set(conf, "fetch.wait.max.ms", FETCH_WAIT_MS);
    }
    for (int i = 0; i < options->settings_count; i++) {
        char name[ERROR_MAX_BYTES];
        const char *equals = strchr(options->settings[i], '=');
        if (equals == NULL || (size_t)(equals - options->settings[i]) >= sizeof name)
            fail("--set %s: it must be name=value", options->settings[i]);
        snprintf(name, sizeof name, "%.*s", (int)(equals - options->settings[i]), options->settings[i]);
        set(conf, name, equals + 1);
    }
    return conf;
}

static rd_kafka_t *start(rd_kafka_type_t kind, rd_kafka_conf_t *conf) {
    char error[ERROR_MAX_BYTES];
    rd_kafka_t *client = rd_kafka_new(kind, conf, error, sizeof error);
    if (client == NULL)
        fail("librdkafka cannot start: %s", error);
    return client;
}

/* Connects and fails unless the topic has the partitions. */
static rd_kafka_topic_t *open_topic(rd_kafka_t *client, const struct options *options) {
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, options->topic, NULL);
    const struct rd_kafka_metadata *metadata;
    rd_kafka_resp_err_t error = rd_kafka_metadata(client, 0, topic, &metadata, METADATA_WAIT_MAX_MS);
    if (error)
        fail("no metadata of topic %s from %s: %s", options->topic, options->bootstrap, rd_kafka_err2str(error));
    if (metadata->topics[0].err)
        fail("topic %s: %s", options->topic, rd_kafka_err2str(metadata->topics[0].err));
    if (metadata->topics[0].partition_cnt < options->first_partition + options->partitions)
        fail("topic %s has %d partitions, and partition %d is asked for", options->topic,
             metadata->topics[0].partition_cnt, options->first_partition + options->partitions - 1);
    rd_kafka_metadata_destroy(metadata);
    return topic;
}

/* --- produce --- */

struct deliveries {
    int64_t acknowledged;
    rd_kafka_resp_err_t error;
};

static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client;
    struct deliveries *deliveries = opaque;
    if (message->err)
        deliveries->error = message->err;
    else
        deliveries->acknowledged++;
}

/* A pool of random values, so that no compression or cache sees the same one soon. librdkafka does not copy
 * them: the pool lives as long as the process. */
static rd_kafka_message_t *make_pool(int value_bytes, int *count) {
    *count = POOL_MAX_BYTES / value_bytes < POOL_MAX_COUNT ? POOL_MAX_BYTES / value_bytes : POOL_MAX_COUNT;
    rd_kafka_message_t *pool = calloc((size_t)*count, sizeof *pool);
    size_t size = (size_t)*count * (size_t)value_bytes;
    unsigned char *bytes = malloc(size);
    if (pool == NULL || bytes == NULL)
        fail("no memory for %zu bytes of values", size);
    uint64_t state = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < size; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes[i] = (unsigned char)(state >> 32);
    }
    for (int i = 0; i < *count; i++) {
        pool[i].payload = bytes + (size_t)i * (size_t)value_bytes;
        pool[i].len = (size_t)value_bytes;
    }
    return pool;
}

static void poll_deliveries(rd_kafka_t *client, const struct deliveries *deliveries, int wait_ms) {
    rd_kafka_poll(client, wait_ms);
    if (deliveries->error)
        fail("a record was not acknowledged, after %" PRId64 " that were: %s", deliveries->acknowledged,
             rd_kafka_err2str(deliveries->error));
}

static void drain(rd_kafka_t *client, const struct deliveries *deliveries, int64_t sent) {
    double deadline_s = clock_s() + DRAIN_MAX_S;
    while (deliveries->acknowledged < sent) {
        if (clock_s() > deadline_s)
            fail("%" PRId64 " records are not acknowledged after %.0f s", sent - deliveries->acknowledged,
                 DRAIN_MAX_S);
        poll_deliveries(client, deliveries, 10);
    }
}

static int64_t queue_max(rd_kafka_t *client) {
    char text[64];
    size_t size = sizeof text;
    if (rd_kafka_conf_get(rd_kafka_conf(client), "queue.buffering.max.messages", text, &size))
        fail("librdkafka does not say its queue.buffering.max.messages");
    return atoll(text);
}

/* Sends until the time is over or all records are sent; returns how many were. */
static int64_t send_all(rd_kafka_t *client, rd_kafka_topic_t *topic, const struct options *options,
                        const struct deliveries *deliveries, struct measured_part *part) {
    int pool_count, turn = 0, at = 0;
    rd_kafka_message_t *pool = make_pool(options->value_bytes, &pool_count);
    int64_t room_max = queue_max(client), sent = 0;
    int chunk_max = room_max < CHUNK_MAX ? (int)room_max : CHUNK_MAX;
    chunk_max = pool_count < chunk_max ? pool_count : chunk_max;
    double start_s = clock_s();
    while (options->records == 0 || sent < options->records) {
        double now_s = clock_s();
        if (!part->began && now_s >= start_s + options->warmup_s)
            begin(part, deliveries->acknowledged);
        if (part->began && options->records == 0 && now_s >= part->begin_s + options->seconds)
            break;
        int64_t left = options->records == 0 ? chunk_max : options->records - sent;
        int chunk = left < chunk_max ? (int)left : chunk_max;
        if (room_max - (sent - deliveries->acknowledged) < chunk) {
            /* The queue is full. Sleeping wakes this thread less often than waiting for each response. */
            usleep(FULL_SLEEP_US);
            poll_deliveries(client, deliveries, 0);
            continue;
        }
        at = at + chunk > pool_count ? 0 : at;
        int partition = options->first_partition + turn++ % options->partitions;
        int taken = rd_kafka_produce_batch(topic, partition, 0, pool + at, chunk);
        for (int i = taken == chunk ? chunk : 0; i < chunk; i++)
            if (pool[at + i].err && pool[at + i].err != RD_KAFKA_RESP_ERR__QUEUE_FULL)
                fail("librdkafka does not take a record: %s", rd_kafka_err2str(pool[at + i].err));
        sent += taken;
        at += chunk;
        poll_deliveries(client, deliveries, 0);
    }
    return sent;
}

static void produce(const struct options *options) {
    if (options->records == 0 && options->seconds == 0)
        fail("produce needs --seconds or --records");
    struct deliveries deliveries = {0, RD_KAFKA_RESP_ERR_NO_ERROR};
    rd_kafka_conf_t *conf = configuration(RD_KAFKA_PRODUCER, options);
    set(conf, "acks", options->acks);
    if (options->batch > 0) {
        char batch[32];
        snprintf(batch, sizeof batch, "%d", options->batch);
        set(conf, "batch.num.messages", batch);
    }
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    rd_kafka_conf_set_opaque(conf, &deliveries);
    rd_kafka_t *client = start(RD_KAFKA_PRODUCER, conf);
    rd_kafka_topic_t *topic = open_topic(client, options);
    struct measured_part part = {.began = false};
    int64_t sent = send_all(client, topic, options, &deliveries, &part);
    if (options->records > 0)
        drain(client, &deliveries, sent);
    report(&part, deliveries.acknowledged, options->value_bytes, "");
    drain(client, &deliveries, sent);
    rd_kafka_topic_destroy(topic);
    rd_kafka_destroy(client);
}

/* --- consume --- */

struct reading {
    rd_kafka_topic_t *topic;
    bool *at_end;
    int at_end_count;
    int64_t records;
    int64_t rounds;
};

/* Counts a record, or notes that a partition has been read to its end. Fails on any other message. */
static void take(struct reading *reading, const struct options *options, const rd_kafka_message_t *message) {
    if (message->err == RD_KAFKA_RESP_ERR_NO_ERROR) {
        if (message->len != (size_t)options->value_bytes)
            fail("the value at offset %" PRId64 " of partition %d has %zu bytes, and %d are expected",
                 message->offset, message->partition, message->len, options->value_bytes);
        reading->records++;
    } else if (message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF) {
        bool *at_end = reading->at_end + (message->partition - options->first_partition);
        reading->at_end_count += !*at_end;
        *at_end = true;
    } else {
        fail("partition %d: %s", message->partition, rd_kafka_message_errstr(message));
    }
}

static void read_again(struct reading *reading, const struct options *options) {
    memset(reading->at_end, 0, (size_t)options->partitions * sizeof *reading->at_end);
    reading->at_end_count = 0;
    reading->rounds++;
    for (int i = 0; i < options->partitions; i++)
        if (rd_kafka_seek(reading->topic, options->first_partition + i, RD_KAFKA_OFFSET_BEGINNING, 0))
            fail("partition %d cannot be read again from its beginning", options->first_partition + i);
}

/* Reads until the time is over, all records are read, or the end is reached. */
static void read_all(rd_kafka_queue_t *queue, struct reading *reading, const struct options *options,
                     struct measured_part *part) {
    rd_kafka_message_t *messages[CONSUME_CHUNK];
    double first_s = 0, last_s = clock_s();
    if (options->warmup_s == 0)
        begin(part, 0);
    for (;;) {
        int64_t wanted = options->records > 0 ? options->records - reading->records : CONSUME_CHUNK;
        size_t chunk = (size_t)(wanted < CONSUME_CHUNK ? wanted : CONSUME_CHUNK);
        int64_t before = reading->records;
        ssize_t count = rd_kafka_consume_batch_queue(queue, CONSUME_WAIT_MS, messages, chunk);
        for (ssize_t i = 0; i < count; i++) {
            take(reading, options, messages[i]);
            rd_kafka_message_destroy(messages[i]);
        }
        double now_s = clock_s();
        if (reading->records > before)
            last_s = now_s;
        else if (now_s - last_s > STALL_MAX_S)
            fail("no record for %.0f s, after %" PRId64, STALL_MAX_S, reading->records);
        if (first_s == 0 && reading->records > 0)
            first_s = now_s;
        if (!part->began && first_s > 0 && now_s >= first_s + options->warmup_s)
            begin(part, reading->records);
        if (options->records > 0 && reading->records == options->records)
            return;
        if (options->seconds > 0 && part->began && now_s >= part->begin_s + options->seconds)
            return;
        if (reading->at_end_count == options->partitions && options->seconds > 0)
            read_again(reading, options);
        else if (reading->at_end_count == options->partitions && options->records == 0)
            return;
    }
}

static void consume(const struct options *options) {
    rd_kafka_t *client = start(RD_KAFKA_CONSUMER, configuration(RD_KAFKA_CONSUMER, options));
    struct reading reading = {.topic = open_topic(client, options), .rounds = 1};
    reading.at_end = calloc((size_t)options->partitions, sizeof *reading.at_end);
    if (reading.at_end == NULL)
        fail("no memory for %d partitions", options->partitions);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(client);
    for (int i = options->first_partition; i < options->first_partition + options->partitions; i++)
        if (rd_kafka_consume_start_queue(reading.topic, i, RD_KAFKA_OFFSET_BEGINNING, queue))
            fail("partition %d: %s", i, rd_kafka_err2str(rd_kafka_last_error()));
    struct measured_part part = {.began = false};
    read_all(queue, &reading, options, &part);
    char extra[64];
    snprintf(extra, sizeof extra, ", \"rounds\": %" PRId64, reading.rounds);
    report(&part, reading.records, options->value_bytes, extra);
    /* Closing would wait for a Fetch in flight; the kernel frees all. */
    fflush(stdout);
    _exit(0);
}

int main(int count, char **words) {
    if (count < 2)
        fail("produce or consume is missing\n%s", USAGE);
    struct options options = parse(count - 1, words + 1);
    if (strcmp(words[1], "produce") == 0)
        produce(&options);
    else if (strcmp(words[1], "consume") == 0)
        consume(&options);
    else
        fail("%s: it must be produce or consume", words[1]);
    return 0;
}
