import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** How many records were sent, and how many of them were confirmed or consumed; shared by a client's threads. */
final class Progress {
  /** Sends one record and waits for the broker's response. */
  interface Sending {
    void send() throws Exception;
  }

  private static final long CONFIRM_WAIT_MAX_S = 60;
  private static final long FIRST_RECORD_WAIT_MAX_S = 30;
  private static final long IDLE_END_S = 3;
  private static final int TELL_EVERY = 16;

  private final Measure measure;
  private final Semaphore room;
  private final int outstandingMax;
  private final int valueBytes;
  private long sent;
  private volatile long done;
  private volatile long lastNanos;
  private volatile Throwable failure;

  /** `outstandingMax` bounds the records that are sent and not yet confirmed. */
  Progress(Options options, int outstandingMax) {
    measure = new Measure(options);
    valueBytes = options.count("value-bytes");
    this.outstandingMax = outstandingMax;
    room = new Semaphore(outstandingMax);
  }

  // --- of the producer's thread ---

  /** Waits for room for `count` further records; false once the run is over. */
  boolean maySend(int count) throws Exception {
    while (!room.tryAcquire(count, 1, TimeUnit.MILLISECONDS)) {
      check();
      measure.tell(done);
    }
    if (sent % TELL_EVERY == 0) {
      measure.tell(done);
    }
    if (measure.isOver(sent)) {
      room.release(count);
      return false;
    }
    sent += count;
    return true;
  }

  /** Sends a record whose response means that all before it are stored, too. */
  void sendLast(Sending sending) throws Exception {
    sending.send();
    sent++;
    done++;
    lastNanos = System.nanoTime();
  }

  /** Waits until all that was sent is confirmed, and prints the outcome. */
  void finishProducing() throws Exception {
    if (!room.tryAcquire(outstandingMax, CONFIRM_WAIT_MAX_S, TimeUnit.SECONDS)) {
      throw new TimeoutException((sent - done) + " records were not confirmed in " + CONFIRM_WAIT_MAX_S + " s");
    }
    check();
    if (done != sent) {
      throw new IllegalStateException(sent + " records were sent, and " + done + " confirmed");
    }
    measure.finish(done, lastNanos);
  }

  // --- of the thread that receives: only one ---

  void confirmed(int count) {
    done += count;
    lastNanos = System.nanoTime();
    room.release(count);
  }

  /** A record was consumed; returns how many so far. */
  long consumed(int bytes) {
    if (bytes != valueBytes) {
      failed(new IllegalStateException("a value of " + bytes + " bytes instead of " + valueBytes));
    }
    long count = done + 1;
    if (count % TELL_EVERY == 1) {
      measure.tell(count);
    }
    lastNanos = System.nanoTime();
    done = count;
    return count;
  }

  // --- of any thread ---

  void failed(Throwable error) {
    failure = error;
  }

  /** Waits until the consumer has read for the wanted time, or as many records as wanted, or all that there are. */
  void waitForConsumer() throws Exception {
    long started = System.nanoTime();
    while (!measure.isOver(done)) {
      Thread.sleep(5);
      check();
      long waitMaxS = done == 0 ? FIRST_RECORD_WAIT_MAX_S : IDLE_END_S;
      if (System.nanoTime() - (done == 0 ? started : lastNanos) > TimeUnit.SECONDS.toNanos(waitMaxS)) {
        break;
      }
    }
    measure.finish(done, lastNanos);
  }

  private void check() throws Exception {
    if (failure != null) {
      throw new Exception("the broker or the client has failed", failure);
    }
  }
}
