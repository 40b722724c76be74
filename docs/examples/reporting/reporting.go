// Publishes events, and reports how many: reporting BALANCER http://AUDITOR/counts TOPIC COUNT.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const bucketMs, deliveryMax = 600_000, 2 * time.Minute

type tally struct {
	Topic         string `json:"topic"`
	BucketStartMs int64  `json:"bucket_start_ms"`
	HandedOver    int64  `json:"handed_over_count"`
	Final         bool   `json:"final"`
}

type reporting struct {
	sync.Mutex
	url, publisher, server string
	startedMs, number      int64
	closed                 bool
	counts                 map[tally]int64 // by topic and bucket: events handed over
}

func (r *reporting) count(topic string, at time.Time) {
	r.Lock()
	defer r.Unlock()
	r.counts[tally{Topic: topic, BucketStartMs: at.UnixMilli() / bucketMs * bucketMs}]++
}

// report costs nothing when it fails: the next one has the same counts, or newer ones.
func (r *reporting) report(closed bool) error {
	r.Lock()
	defer r.Unlock()
	if r.closed {
		return nil
	}
	ended := time.Now().Add(-2*deliveryMax).UnixMilli() - bucketMs
	tallies := []tally{}
	for key, count := range r.counts {
		final := closed || key.BucketStartMs < ended
		tallies = append(tallies, tally{key.Topic, key.BucketStartMs, count, final})
	}
	r.number++
	body, _ := json.Marshal(map[string]any{"publisher": r.publisher, "service": "checkout", "server": r.server,
		"started_ms": r.startedMs, "report_number": r.number, "reported_until_ms": time.Now().UnixMilli(),
		"closed": closed, "tallies": tallies})
	response, err := (&http.Client{Timeout: 30 * time.Second}).Post(r.url, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if answer, _ := io.ReadAll(response.Body); response.StatusCode != 200 {
		return fmt.Errorf("%s: %s", response.Status, answer)
	}
	r.closed = closed
	for key := range r.counts {
		if key.BucketStartMs < ended { // final, and arrived
			delete(r.counts, key)
		}
	}
	return nil
}

func main() {
	random, server := make([]byte, 16), ""
	rand.Read(random)
	server, _ = os.Hostname()
	r := &reporting{url: os.Args[2], publisher: fmt.Sprintf("%x", random), server: server,
		startedMs: time.Now().UnixMilli(), counts: map[tally]int64{}}
	go func() {
		for ; ; time.Sleep(10 * time.Second) {
			if err := r.report(false); err != nil {
				log.Print("not reported: ", err)
			}
		}
	}()
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]), kgo.RecordDeliveryTimeout(deliveryMax))
	if err != nil {
		log.Fatal(err)
	}
	for n, end := 0, must(strconv.Atoi(os.Args[4])); n < end; n++ {
		event := &kgo.Record{Topic: os.Args[3], Timestamp: time.Now(), Value: fmt.Appendf(nil, "event %d", n)}
		r.count(event.Topic, event.Timestamp) // before the event is sent: what the client drops is then missed
		client.Produce(context.Background(), event, nil)
	}
	client.Flush(context.Background()) // returns once every event is delivered or has failed
	if err := r.report(true); err != nil {
		log.Fatal(err)
	}
}

func must(number int, err error) int {
	if err != nil {
		log.Fatal(err)
	}
	return number
}
