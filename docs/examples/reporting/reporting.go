// Counts events, and reports the counts to a datacenter's auditor.
package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"sync"
	"time"
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
	startedMs              int64
	number, arrived        int64         // of the last report, and of the last one that arrived
	late                   time.Duration // how old an event may be when it is published
	closed                 bool
	counts                 map[tally]int64 // by topic and bucket: events handed over
}

// startReporting reports every ten seconds from now on; the last report is the caller's report(true).
func startReporting(url string, late time.Duration) *reporting {
	random := make([]byte, 16)
	rand.Read(random)
	server, _ := os.Hostname()
	r := &reporting{url: url, publisher: fmt.Sprintf("%x", random), server: server, late: late,
		startedMs: time.Now().UnixMilli(), counts: map[tally]int64{}}
	go func() {
		for ; ; time.Sleep(10 * time.Second) {
			if err := r.report(false); err != nil {
				log.Print("not reported: ", err)
			}
		}
	}()
	return r
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
	ended := time.Now().Add(-r.late-2*deliveryMax).UnixMilli() - bucketMs
	tallies := []tally{}
	for key, count := range r.counts {
		final := closed || key.BucketStartMs < ended
		tallies = append(tallies, tally{key.Topic, key.BucketStartMs, count, final})
	}
	r.number++
	body, _ := json.Marshal(map[string]any{"publisher": r.publisher, "service": "checkout", "server": r.server,
		"started_ms": r.startedMs, "report_number": r.number, "arrived_number": r.arrived,
		"reported_until_ms": time.Now().UnixMilli(), "closed": closed, "tallies": tallies})
	response, err := (&http.Client{Timeout: 30 * time.Second}).Post(r.url, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if answer, _ := io.ReadAll(response.Body); response.StatusCode != 200 {
		return fmt.Errorf("%s: %s", response.Status, answer)
	}
	r.closed, r.arrived = closed, r.number
	for key := range r.counts {
		if key.BucketStartMs < ended { // final, and arrived
			delete(r.counts, key)
		}
	}
	return nil
}
