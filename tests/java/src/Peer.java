import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java client as a servant of the tests: one JVM, one command a line on stdin, one answer a line on stdout.
 *
 * <p>A command is tab-separated: the verb, then name=value arguments; arguments with a dot in their name are
 * the client's own configuration. An answer is "ok" or "error", then tab-separated name=value.
 * Records travel through files, one a line: offset, timestamp, key, value (the last two in hexadecimal, "-" for null).
 * It judges nothing: the test that reads the file does, with the same check for every client.
 */
public final class Peer {
  private static final Duration POLL = Duration.ofMillis(200);
  private static final Map<String, KafkaConsumer<byte[], byte[]>> MEMBERS = new HashMap<>();
  private static final Map<String, CompletableFuture<String>> UNDER_WAY = new HashMap<>();
  private static final Set<String> ENDING = ConcurrentHashMap.newKeySet();

  public static void main(String[] unused) throws Exception {
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = commands.readLine(); line != null; line = commands.readLine()) {
      String answer;
      try {
        String[] words = line.split("\t");
        Map<String, String> arguments = new HashMap<>();
        for (int i = 1; i < words.length; i++) {
          int equals = words[i].indexOf('=');
          arguments.put(words[i].substring(0, equals), words[i].substring(equals + 1));
        }
        answer = "ok" + perform(words[0], arguments);
      } catch (Exception error) {
        answer = "error\tmessage=" + String.valueOf(error).replaceAll("[\t\n]", " ");
      }
      System.out.println(answer);
      System.out.flush();
    }
  }

  private static String perform(String verb, Map<String, String> arguments) throws Exception {
    switch (verb) {
      case "produce":
        return produce(arguments);
      case "begin":
        ENDING.remove(arguments.get("name"));
        UNDER_WAY.put(
            arguments.get("name"),
            CompletableFuture.supplyAsync(() -> produced(arguments), task -> new Thread(task).start()));
        return "";
      case "finish":
        ENDING.add(arguments.get("name"));
        return UNDER_WAY.remove(arguments.get("name")).get();
      case "consume":
        return consume(arguments);
      case "join":
        return join(arguments);
      case "poll":
        return poll(arguments);
      case "commit":
        MEMBERS.get(arguments.get("member")).commitSync();
        return "";
      case "leave":
        MEMBERS.remove(arguments.get("member")).close();
        return "";
      default:
        throw new IllegalArgumentException("no such verb: " + verb);
    }
  }

  private static Properties configuration(Map<String, String> arguments) {
    Properties configuration = new Properties();
    arguments.forEach((name, value) -> {
      if (name.contains(".")) {
        configuration.put(name, value);
      }
    });
    return configuration;
  }

  /** "begin" produces in a thread of its own, under a `name`; "finish" ends that and answers as "produce" does. */
  private static String produced(Map<String, String> arguments) {
    try {
      return produce(arguments);
    } catch (Exception error) {
      throw new CompletionException(error);
    }
  }

  /**
   * Sends each line of the file `records` to `topic` and `partition`, `pause_ms` before each; answers with the first
   * and last offset, and how many were acknowledged.
   */
  private static String produce(Map<String, String> arguments) throws Exception {
    AtomicReference<Exception> failure = new AtomicReference<>();
    long[] offsets = {Long.MAX_VALUE, -1, 0};
    try (KafkaProducer<byte[], byte[]> producer =
            new KafkaProducer<>(configuration(arguments), new ByteArraySerializer(), new ByteArraySerializer());
        BufferedReader lines = Files.newBufferedReader(Path.of(arguments.get("records")))) {
      String topic = arguments.get("topic");
      Integer partition = arguments.containsKey("partition") ? Integer.valueOf(arguments.get("partition")) : null;
      long pauseMs = Long.parseLong(arguments.getOrDefault("pause_ms", "0"));
      String name = arguments.getOrDefault("name", "");
      for (String line = lines.readLine(); line != null && !ENDING.contains(name); line = lines.readLine()) {
        Thread.sleep(pauseMs);
        String[] words = line.split(" ");
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
            topic, partition, Long.valueOf(words[1]), unhex(words[2]), unhex(words[3]));
        producer.send(record, (metadata, error) -> {
          if (error != null) {
            failure.compareAndSet(null, error);
          } else {
            offsets[0] = Math.min(offsets[0], metadata.offset());
            offsets[1] = Math.max(offsets[1], metadata.offset());
            offsets[2]++;
          }
        });
      }
      producer.flush();
    }
    if (failure.get() != null) {
      throw failure.get();
    }
    return "\tfirst=" + offsets[0] + "\tlast=" + offsets[1] + "\tcount=" + offsets[2];
  }

  /**
   * Reads `count` records, or until `idle_ms` pass with none, into the file `records`. Starts at `offset`, or at the
   * first record at or after `timestamp_ms`. Answers with the position and the lag.
   */
  private static String consume(Map<String, String> arguments) throws Exception {
    long wanted = Long.parseLong(arguments.get("count"));
    long idleMs = Long.parseLong(arguments.getOrDefault("idle_ms", "5000"));
    TopicPartition partition =
        new TopicPartition(arguments.get("topic"), Integer.parseInt(arguments.getOrDefault("partition", "0")));
    try (KafkaConsumer<byte[], byte[]> consumer =
            new KafkaConsumer<>(configuration(arguments), new ByteArrayDeserializer(), new ByteArrayDeserializer());
        PrintWriter lines = new PrintWriter(Files.newBufferedWriter(Path.of(arguments.get("records"))))) {
      consumer.assign(List.of(partition));
      if (arguments.containsKey("timestamp_ms")) {
        consumer.seek(partition, found(consumer, partition, Long.parseLong(arguments.get("timestamp_ms"))));
      } else {
        consumer.seek(partition, Long.parseLong(arguments.getOrDefault("offset", "0")));
      }
      long read = 0;
      long lastSeen = System.nanoTime();
      while (read < wanted && System.nanoTime() - lastSeen < idleMs * 1_000_000) {
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
          lines.println(line(record));
          lastSeen = System.nanoTime();
          read++;
        }
      }
      return "\tcount=" + read
          + "\tposition=" + consumer.position(partition)
          + "\tend=" + consumer.endOffsets(List.of(partition)).get(partition)
          + "\tlag=" + consumer.currentLag(partition).orElse(-1);
    }
  }

  /** Subscribes a consumer called `member` to `topic`; "poll", "commit" and "leave" then say which member they mean. */
  private static String join(Map<String, String> arguments) {
    KafkaConsumer<byte[], byte[]> consumer =
        new KafkaConsumer<>(configuration(arguments), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    consumer.subscribe(List.of(arguments.get("topic")));
    MEMBERS.put(arguments.get("member"), consumer);
    return "";
  }

  /** One poll of `wait_ms`; what came is written to the file `records`, the partition before each. */
  private static String poll(Map<String, String> arguments) throws Exception {
    KafkaConsumer<byte[], byte[]> consumer = MEMBERS.get(arguments.get("member"));
    try (PrintWriter lines = new PrintWriter(Files.newBufferedWriter(Path.of(arguments.get("records"))))) {
      Duration wait = Duration.ofMillis(Long.parseLong(arguments.get("wait_ms")));
      for (ConsumerRecord<byte[], byte[]> record : consumer.poll(wait)) {
        lines.println(record.partition() + " " + line(record));
      }
    }
    String assigned = consumer.assignment().stream()
        .map(partition -> String.valueOf(partition.partition()))
        .collect(Collectors.joining(","));
    return "\tassigned=" + assigned;
  }

  private static long found(KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition, long timestampMs) {
    OffsetAndTimestamp answer = consumer.offsetsForTimes(Map.of(partition, timestampMs)).get(partition);
    return answer == null ? -1 : answer.offset();
  }

  private static String line(ConsumerRecord<byte[], byte[]> record) {
    return record.offset() + " " + record.timestamp() + " " + hex(record.key()) + " " + hex(record.value());
  }

  private static String hex(byte[] bytes) {
    return bytes == null ? "-" : "x" + HexFormat.of().formatHex(bytes);
  }

  private static byte[] unhex(String word) {
    return word.equals("-") ? null : HexFormat.of().parseHex(word.substring(1));
  }
}
