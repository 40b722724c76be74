/* The clock, the CPU time and the memory of a run of rdkafka_bench, and its report. */

#define _GNU_SOURCE
#include "rdkafka_measure.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 1024

void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("rdkafka_bench: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    /* Not exit(): librdkafka's threads still run and must not outlive what exit() would free. */
    _exit(1);
}

double clock_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double process_cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static bool read_first_line(const char *path, char *line) {
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return false;
    bool is_read = fgets(line, LINE_MAX_BYTES, file) != NULL;
    fclose(file);
    return is_read;
}

/* The CPU time of each thread; returns how many there are. */
static int read_threads(struct thread_cpu *threads) {
    DIR *folder = opendir("/proc/self/task");
    int count = 0;
    for (struct dirent *entry; folder != NULL && count < THREADS_MAX && (entry = readdir(folder)) != NULL;) {
        char path[300], line[LINE_MAX_BYTES];
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", entry->d_name);
        if (entry->d_name[0] == '.' || !read_first_line(path, line))
            continue;
        /* The name of the thread, in brackets, may hold spaces; user and system time are fields 14 and 15. */
        const char *rest = strrchr(line, ')');
        uint64_t user, system;
        if (rest == NULL || sscanf(rest + 1,
                                   " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64,
                                   &user, &system) != 2)
            continue;
        threads[count].id = atoi(entry->d_name);
        threads[count++].cpu_s = (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
    }
    if (folder != NULL)
        closedir(folder);
    return count;
}

static double busiest_thread_s(const struct measured_part *part) {
    struct thread_cpu now[THREADS_MAX];
    int count = read_threads(now);
    double most_s = 0;
    for (int i = 0; i < count; i++) {
        double used_s = now[i].cpu_s;
        for (int j = 0; j < part->threads_count; j++)
            if (part->threads[j].id == now[i].id)
                used_s -= part->threads[j].cpu_s;
        if (used_s > most_s)
            most_s = used_s;
    }
    return most_s;
}

static int64_t memory_max_bytes(void) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[LINE_MAX_BYTES];
    int64_t kilobytes = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "VmHWM: %" SCNd64, &kilobytes) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return kilobytes * 1024;
}

void begin(struct measured_part *part, int64_t records) {
    puts("begin");
    fflush(stdout);
    part->began = true;
    part->begin_records = records;
    part->threads_count = read_threads(part->threads);
    part->begin_cpu_s = process_cpu_s();
    part->begin_s = clock_s();
}

void report(const struct measured_part *part, int64_t records, int value_bytes, const char *extra) {
    double seconds = clock_s() - part->begin_s;
    double cpu_s = process_cpu_s() - part->begin_cpu_s;
    int64_t measured = records - part->begin_records;
    printf("{\"records\": %" PRId64 ", \"size_bytes\": %" PRId64 ", \"seconds\": %.6f, \"cpu_s\": %.6f, "
           "\"memory_bytes\": %" PRId64 ", \"busiest_thread_cpu_s\": %.2f%s}\n",
           measured, measured * value_bytes, seconds, cpu_s, memory_max_bytes(), busiest_thread_s(part), extra);
    fflush(stdout);
}
