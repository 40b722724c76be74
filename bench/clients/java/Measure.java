import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;

/**
 * The measured part of a run: what was confirmed or consumed in it, and what the client itself used.
 *
 * <p>The warm-up begins with the first record; then `begin` is printed and the measured part starts. The options state
 * the end: after so many seconds, or after so many records in all (0: no such end).
 */
final class Measure {
  private final long warmupNanos;
  private final long measuredNanos;
  private final long recordsMax;
  private final int valueBytes;
  private long firstNanos;
  private long beginNanos;
  private long beginCount;
  private long beginCpuNanos;
  private boolean hasBegun;

  Measure(Options options) {
    warmupNanos = (long) (options.seconds("warmup") * 1e9);
    measuredNanos = (long) (options.seconds("seconds") * 1e9);
    recordsMax = options.countOrZero("records");
    valueBytes = options.count("value-bytes");
  }

  /** To be called with the number of records confirmed so far, at least every few milliseconds. */
  void tell(long count) {
    long now = System.nanoTime();
    if (firstNanos == 0) {
      firstNanos = now;
    }
    if (!hasBegun && now - firstNanos >= warmupNanos) {
      hasBegun = true;
      beginNanos = now;
      beginCount = count;
      beginCpuNanos = cpuNanos();
      System.out.println("begin");
      System.out.flush();
    }
  }

  /** Whether no more records are to be sent; `sent` counts those sent so far. */
  boolean isOver(long sent) {
    return (recordsMax > 0 && sent >= recordsMax)
        || (measuredNanos > 0 && hasBegun && System.nanoTime() - beginNanos >= measuredNanos);
  }

  /** Prints the outcome: `count` records in all, the last of them at `lastNanos`. */
  void finish(long count, long lastNanos) throws IOException {
    if (!hasBegun) {
      throw new IllegalStateException("the records ended during the warm-up, after " + count);
    }
    long records = count - beginCount;
    System.out.printf(
        Locale.ROOT,
        "{\"records\": %d, \"size_bytes\": %d, \"seconds\": %.6f, \"cpu_s\": %.3f, \"memory_bytes\": %d, "
            + "\"all_records\": %d}%n",
        records,
        records * valueBytes,
        (lastNanos - beginNanos) / 1e9,
        (cpuNanos() - beginCpuNanos) / 1e9,
        peakMemoryBytes(),
        count);
    System.out.flush();
  }

  /** A value of the wanted size, which does not compress to nothing. */
  static byte[] value(int bytes) {
    byte[] value = new byte[bytes];
    new java.util.Random(1).nextBytes(value);
    return value;
  }

  private static long cpuNanos() {
    return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
        .getProcessCpuTime();
  }

  private static long peakMemoryBytes() throws IOException {
    for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
      if (line.startsWith("VmHWM:")) {
        return Long.parseLong(line.replaceAll("[^0-9]", "")) * 1024;
      }
    }
    return 0;
  }
}
