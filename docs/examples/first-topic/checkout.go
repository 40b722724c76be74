// Publishes orders of two hours ago: checkout DATACENTER BALANCER REGISTRY http://AUDITOR/counts COUNT.
package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log"
	"math"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const topic, age = "order-placed", 2 * time.Hour // so that their hour is over, and can be sealed

// schemaID is the id of the subject's newest version, with which each value begins. The path is Confluent's.
func schemaID(registry string) (id uint32) {
	response, err := http.Get(registry + "/subjects/" + topic + "-value/versions/latest")
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	var answer struct {
		ID      uint32 `json:"id"`
		Message string `json:"message"`
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || response.StatusCode != 200 {
		log.Fatal(response.Status, " ", answer.Message, err)
	}
	return answer.ID
}

// Avro's binary: a long is what Go calls a varint, a string its length and its bytes, a record its fields in their
// order. A service with many schemas takes a library instead, such as hamba/avro.
func text(to []byte, value string) []byte {
	return append(binary.AppendVarint(to, int64(len(value))), value...)
}

func order(id uint32, datacenter, server, orderID string, customer int, total float64, at time.Time) []byte {
	guid := make([]byte, 16)
	rand.Read(guid)
	value := binary.BigEndian.AppendUint32([]byte{0}, id)
	value = binary.AppendVarint(value, at.UnixMilli()) // header.time
	for _, field := range []string{datacenter, server, "checkout-go", fmt.Sprintf("%x", guid), orderID} {
		value = text(value, field)
	}
	value = binary.AppendVarint(value, int64(customer))
	value = binary.LittleEndian.AppendUint64(value, math.Float64bits(total))
	value = text(value, "EUR")
	return binary.AppendVarint(value, 0) // coupon: the union's branch 0, null
}

func main() {
	datacenter, balancer, registry := os.Args[1], os.Args[2], os.Args[3]
	count, err := strconv.Atoi(os.Args[5])
	if err != nil {
		log.Fatal(err)
	}
	id, r := schemaID(registry), startReporting(os.Args[4], age)
	// Not kgo.RecordDeliveryTimeout: franz-go counts that from the record's timestamp, which is two hours old.
	client, err := kgo.NewClient(kgo.SeedBrokers(balancer))
	if err != nil {
		log.Fatal(err)
	}
	first := time.Now().Add(-age)
	for n := range count {
		at, customer := first.Add(time.Duration(n)*time.Millisecond), n%50
		orderID := fmt.Sprintf("go-%d-%d", first.UnixMilli(), n)
		// The record's timestamp is the event's time: the audit counts by it, the load stores by it.
		event := &kgo.Record{Topic: topic, Timestamp: at, Key: []byte(strconv.Itoa(customer)),
			Value: order(id, datacenter, r.server, orderID, customer, 10+float64(n), at)}
		r.count(topic, at) // before the event is sent: what the client drops is then missed
		within, cancel := context.WithTimeout(context.Background(), deliveryMax)
		client.Produce(within, event, func(_ *kgo.Record, err error) {
			if cancel(); err != nil {
				log.Print("not published: ", err)
			}
		})
	}
	client.Flush(context.Background()) // returns once every event is delivered or has failed
	if err := r.report(true); err != nil {
		log.Fatal(err)
	}
}
