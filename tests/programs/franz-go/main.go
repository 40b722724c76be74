// franz-go as one of the real clients of the tests: produces, reads from a place, reads as a group.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const idleWait = 30 * time.Second

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func unhex(word string) []byte {
	if word == "-" {
		return nil
	}
	data, err := hex.DecodeString(word[1:])
	if err != nil {
		fail(err)
	}
	if data == nil {
		data = []byte{}
	}
	return data
}

func tohex(data []byte) string {
	if data == nil {
		return "-"
	}
	return "x" + hex.EncodeToString(data)
}

func client(bootstrap string, options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append(options, kgo.SeedBrokers(strings.Split(bootstrap, ",")...))...)
	if err != nil {
		fail(err)
	}
	return made
}

func codec(name string) kgo.CompressionCodec {
	switch name {
	case "gzip":
		return kgo.GzipCompression()
	case "snappy":
		return kgo.SnappyCompression()
	case "lz4":
		return kgo.Lz4Compression()
	case "zstd":
		return kgo.ZstdCompression()
	}
	return kgo.NoCompression()
}

func produce(bootstrap, topic, codecName, file string, batchBytes int, linger time.Duration) {
	c := client(bootstrap,
		kgo.ProducerBatchCompression(codec(codecName)),
		kgo.ProducerBatchMaxBytes(int32(batchBytes)),
		kgo.ProducerLinger(linger),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer c.Close()
	input, err := os.Open(file)
	if err != nil {
		fail(err)
	}
	scanner := bufio.NewScanner(input)
	var records []*kgo.Record
	for scanner.Scan() {
		words := strings.Split(scanner.Text(), " ")
		ms, _ := strconv.ParseInt(words[0], 10, 64)
		records = append(records, &kgo.Record{Topic: topic, Timestamp: time.UnixMilli(ms), Key: unhex(words[1]), Value: unhex(words[2])})
	}
	results := c.ProduceSync(context.Background(), records...)
	offsets := map[*kgo.Record]int64{}
	for _, result := range results {
		if result.Err != nil {
			fail(result.Err)
		}
		offsets[result.Record] = result.Record.Offset
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for _, record := range records {
		fmt.Fprintln(out, offsets[record])
	}
}

func poll(c *kgo.Client, count int, commit bool) {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for got := 0; got < count; {
		ctx, cancel := context.WithTimeout(context.Background(), idleWait)
		fetches := c.PollRecords(ctx, count-got)
		cancel()
		if ctx.Err() == context.DeadlineExceeded && fetches.NumRecords() == 0 {
			return
		}
		for _, problem := range fetches.Errors() {
			fail(problem.Err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			fmt.Fprintln(out, r.Offset, r.Timestamp.UnixMilli(), tohex(r.Key), tohex(r.Value))
			got++
		})
		if commit {
			if err := c.CommitUncommittedOffsets(context.Background()); err != nil {
				fail(err)
			}
		}
	}
}

// Reads by a client of its own. The start is offset:N, time:MS, or last:N before the end.
func read(bootstrap, topic string, count int, word string) {
	kind, text, _ := strings.Cut(word, ":")
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		fail(err)
	}
	start := kgo.NewOffset()
	switch kind {
	case "offset":
		start = start.At(value)
	case "time":
		start = start.AfterMilli(value)
	case "last":
		start = start.AtEnd().Relative(-value)
	}
	c := client(bootstrap, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: start}}))
	defer c.Close()
	poll(c, count, false)
}

func main() {
	args := os.Args[2:]
	number := func(at int) int64 {
		value, err := strconv.ParseInt(args[at], 10, 64)
		if err != nil {
			fail(err)
		}
		return value
	}
	switch os.Args[1] {
	case "produce":
		produce(args[0], args[1], args[2], args[3], int(number(4)), time.Duration(number(5))*time.Millisecond)
	case "read":
		for _, word := range args[3:] {
			read(args[0], args[1], int(number(2)), word)
			fmt.Println("--")
		}
	case "group":
		c := client(args[0], kgo.MetadataMaxAge(time.Second), kgo.MetadataMinAge(100*time.Millisecond), kgo.ConsumerGroup(args[2]), kgo.ConsumeTopics(args[1]), kgo.DisableAutoCommit(),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		defer c.Close()
		poll(c, int(number(3)), true)
		if err := c.CommitUncommittedOffsets(context.Background()); err != nil {
			fail(err)
		}
	}
}
