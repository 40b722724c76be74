// Publishes events, and reports how many: reporting BALANCER http://AUDITOR/counts TOPIC COUNT.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	count, err := strconv.Atoi(os.Args[4])
	if err != nil {
		log.Fatal(err)
	}
	r := startReporting(os.Args[2], 0)
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]), kgo.RecordDeliveryTimeout(deliveryMax))
	if err != nil {
		log.Fatal(err)
	}
	for n := range count {
		event := &kgo.Record{Topic: os.Args[3], Timestamp: time.Now(), Value: fmt.Appendf(nil, "event %d", n)}
		r.count(event.Topic, event.Timestamp) // before the event is sent: what the client drops is then missed
		client.Produce(context.Background(), event, func(_ *kgo.Record, err error) {
			if err != nil {
				log.Print("not published: ", err)
			}
		})
	}
	client.Flush(context.Background()) // returns once every event is delivered or has failed
	if err := r.report(true); err != nil {
		log.Fatal(err)
	}
}
