/* Loaded before the C library into a broker (LD_PRELOAD): its disk and clock fail on command.

   HEADRACE_FAULTS_CONTROL names a file of four 64-bit numbers that the judge changes while the broker runs:
   the errno of every fsync below the data directory (0: they work), the errno of every write there, the
   nanoseconds that the time of day is ahead, and the microseconds that every fsync takes longer.
   HEADRACE_FAULTS_DATA is the data directory. HEADRACE_FAULTS_NOTES gets a line for every file that became
   durable, "S <bytes> <path>", with the size that the file had before its fsync began, and for every file
   that was cut, "T <bytes> <path>". So after a SIGKILL it is known which bytes a power cut would have left. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { FSYNC_ERRNO, WRITE_ERRNO, AHEAD_NS, FSYNC_DELAY_US, NUMBERS };

static volatile int64_t nothing[NUMBERS];
static volatile int64_t *control = nothing;
static const char *data_dir;
static size_t data_dir_length;
static int notes = -1;

__attribute__((constructor)) static void begin(void) {
  const char *control_path = getenv("HEADRACE_FAULTS_CONTROL");
  const char *notes_path = getenv("HEADRACE_FAULTS_NOTES");
  data_dir = getenv("HEADRACE_FAULTS_DATA");
  if (!control_path || !notes_path || !data_dir) return;
  data_dir_length = strlen(data_dir);
  int fd = open(control_path, O_RDWR | O_CLOEXEC);
  if (fd >= 0) {
    void *mapped = mmap(NULL, sizeof nothing, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) control = mapped;
    close(fd);
  }
  notes = open(notes_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
}

/* Writes the file's path; returns whether it lies below the data directory. */
static int is_data(int fd, char path[PATH_MAX]) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, PATH_MAX - 1);
  if (length < 0 || !data_dir) return 0;
  path[length] = 0;
  return !strncmp(path, data_dir, data_dir_length) && path[data_dir_length] == '/';
}

static void note(char what, int64_t bytes, const char *path) {
  char line[PATH_MAX + 64];
  int length = snprintf(line, sizeof line, "%c %lld %s\n", what, (long long)bytes, path);
  if (notes >= 0 && length > 0 && write(notes, line, (size_t)length) < 0) notes = -1;
}

static void wait_us(int64_t us) {
  struct timespec left = {us / 1000000, us % 1000000 * 1000};
  while (nanosleep(&left, &left) && errno == EINTR) {}
}

static int synced(int fd, int (*real)(int)) {
  char path[PATH_MAX];
  struct stat before;
  if (!is_data(fd, path) || fstat(fd, &before)) return real(fd);
  if (control[FSYNC_DELAY_US]) wait_us(control[FSYNC_DELAY_US]);
  if (control[FSYNC_ERRNO]) {
    errno = (int)control[FSYNC_ERRNO];
    return -1;
  }
  int result = real(fd);
  if (!result && S_ISREG(before.st_mode)) note('S', before.st_size, path);
  return result;
}

/* Returns whether a write to this file fails now; sets errno then. */
static int write_fails(int fd) {
  char path[PATH_MAX];
  if (!control[WRITE_ERRNO] || !is_data(fd, path)) return 0;
  errno = (int)control[WRITE_ERRNO];
  return 1;
}

#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

int fsync(int fd) {
  REAL(int, "fsync", int);
  return synced(fd, real);
}

int fdatasync(int fd) {
  REAL(int, "fdatasync", int);
  return synced(fd, real);
}

static int cut(int fd, off_t size, int (*real)(int, off_t)) {
  char path[PATH_MAX];
  int result = real(fd, size);
  if (!result && is_data(fd, path)) note('T', size, path);
  return result;
}

int ftruncate(int fd, off_t size) {
  REAL(int, "ftruncate", int, off_t);
  return cut(fd, size, real);
}

int ftruncate64(int fd, off_t size) {
  REAL(int, "ftruncate64", int, off_t);
  return cut(fd, size, real);
}

ssize_t write(int fd, const void *bytes, size_t count) {
  REAL(ssize_t, "write", int, const void *, size_t);
  return write_fails(fd) ? -1 : real(fd, bytes, count);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
  REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
  return write_fails(fd) ? -1 : real(fd, bytes, count, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off_t at) {
  REAL(ssize_t, "pwrite64", int, const void *, size_t, off_t);
  return write_fails(fd) ? -1 : real(fd, bytes, count, at);
}

ssize_t pwritev(int fd, const struct iovec *buffers, int count, off_t at) {
  REAL(ssize_t, "pwritev", int, const struct iovec *, int, off_t);
  return write_fails(fd) ? -1 : real(fd, buffers, count, at);
}

ssize_t pwritev64(int fd, const struct iovec *buffers, int count, off_t at) {
  REAL(ssize_t, "pwritev64", int, const struct iovec *, int, off_t);
  return write_fails(fd) ? -1 : real(fd, buffers, count, at);
}

/* Python calls these two. */
ssize_t pwritev2(int fd, const struct iovec *buffers, int count, off_t at, int flags) {
  REAL(ssize_t, "pwritev2", int, const struct iovec *, int, off_t, int);
  return write_fails(fd) ? -1 : real(fd, buffers, count, at, flags);
}

ssize_t pwritev64v2(int fd, const struct iovec *buffers, int count, off_t at, int flags) {
  REAL(ssize_t, "pwritev64v2", int, const struct iovec *, int, off_t, int);
  return write_fails(fd) ? -1 : real(fd, buffers, count, at, flags);
}

/* Only the time of day jumps; the monotonic clock, by which programs wait, does not. */
int clock_gettime(clockid_t clock, struct timespec *now) {
  REAL(int, "clock_gettime", clockid_t, struct timespec *);
  int result = real(clock, now);
  if (!result && clock == CLOCK_REALTIME && control[AHEAD_NS]) {
    int64_t ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + control[AHEAD_NS];
    now->tv_sec = ns / 1000000000;
    now->tv_nsec = ns % 1000000000;
  }
  return result;
}
