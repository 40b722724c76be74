/* What rdkafka_bench's producer and consumer share: the options, the clock, the measured part and its report. */

#ifndef RDKAFKA_MEASURE_H
#define RDKAFKA_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#define SETTINGS_MAX 32
#define THREADS_MAX 128

struct options {
    const char *bootstrap;
    const char *topic;
    int first_partition;
    int partitions;
    int value_bytes;
    int batch; /* records in a batch; 0: librdkafka's defaults */
    const char *acks;
    double seconds;
    double warmup_s;
    int64_t records; /* 0: as many as fit into the seconds, or as the log holds */
    const char *settings[SETTINGS_MAX]; /* name=value, handed to librdkafka as they are */
    int settings_count;
};

struct thread_cpu {
    int id;
    double cpu_s;
};

/* The measured part of a run: what had been used at its begin. */
struct measured_part {
    bool began;
    double begin_s;
    double begin_cpu_s;
    int64_t begin_records;
    struct thread_cpu threads[THREADS_MAX];
    int threads_count;
};

/* Prints "rdkafka_bench: " and the message to stderr, and ends the process with 1. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

double clock_s(void);

/* Prints the line `begin`; `records` is the number of records that were done before it. */
void begin(struct measured_part *part, int64_t records);

/* Prints the JSON line. `extra` is text for its end, such as `, "rounds": 3`, or empty. */
void report(const struct measured_part *part, int64_t records, int value_bytes, const char *extra);

#endif
