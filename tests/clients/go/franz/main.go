// Command franz runs one task with franz-go: ADDRESS TASK ARGUMENTS, as ../../programs.py describes.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func main() {
	log.SetFlags(0)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	address, task, arguments := os.Args[1], os.Args[2], os.Args[3:]
	tasks := map[string]func(context.Context, string, []string) error{
		"produce": produce, "consume": consume, "transact": transact, "admin": admin,
	}
	if err := tasks[task](ctx, address, arguments); err != nil {
		log.Fatal(err)
	}
}

func record(topic string, number int) *kgo.Record {
	return &kgo.Record{
		Topic: topic, Key: fmt.Appendf(nil, "k%d", number), Value: fmt.Appendf(nil, "v%d", number),
		Headers: []kgo.RecordHeader{{Key: "number", Value: []byte(strconv.Itoa(number))}},
	}
}

func records(topic string, first, count int) []*kgo.Record {
	all := make([]*kgo.Record, count)
	for i := range all {
		all[i] = record(topic, first+i)
	}
	return all
}

func produce(ctx context.Context, address string, arguments []string) error {
	count, err := strconv.Atoi(arguments[2])
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.ProducerBatchCompression(codecs[arguments[1]]))
	if err != nil {
		return err
	}
	defer client.Close()
	return client.ProduceSync(ctx, records(arguments[0], 0, count)...).FirstErr()
}

func consume(ctx context.Context, address string, arguments []string) error {
	count, err := strconv.Atoi(arguments[2])
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(address), kgo.ConsumeTopics(arguments[0]), kgo.ConsumerGroup(arguments[1]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	for count > 0 {
		fetches := client.PollRecords(ctx, count)
		if err := fetches.Err(); err != nil {
			return err
		}
		read := fetches.Records()
		for _, r := range read {
			fmt.Printf("%s=%s\n", r.Key, r.Value)
		}
		if err := client.CommitRecords(ctx, read...); err != nil {
			return err
		}
		count -= len(read)
	}
	return nil
}

func transact(ctx context.Context, address string, arguments []string) error {
	topic, id := arguments[0], arguments[1]
	count, err := strconv.Atoi(arguments[2])
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.TransactionalID(id))
	if err != nil {
		return err
	}
	defer client.Close()
	for round, commits := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit} {
		if err := client.BeginTransaction(); err != nil {
			return err
		}
		if err := client.ProduceSync(ctx, records(topic, round*count, count)...).FirstErr(); err != nil {
			return err
		}
		if err := client.EndTransaction(ctx, commits); err != nil {
			return err
		}
	}
	return nil
}

func admin(ctx context.Context, address string, arguments []string) error {
	topic, group := arguments[0], arguments[1]
	client, err := kgo.NewClient(kgo.SeedBrokers(address))
	if err != nil {
		return err
	}
	admin := kadm.NewClient(client)
	defer admin.Close()
	retention := "5000"
	if _, err := admin.CreateTopic(ctx, 2, 1, map[string]*string{"retention.ms": &retention}, topic); err != nil {
		return err
	}
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return err
	}
	for _, config := range configs[0].Configs {
		if config.Key == "retention.ms" {
			fmt.Println("retention.ms", config.MaybeValue())
		}
	}
	if _, err := admin.UpdatePartitions(ctx, 3, topic); err != nil {
		return err
	}
	topics, err := admin.ListTopics(ctx, topic)
	if err != nil {
		return err
	}
	fmt.Println("partitions", len(topics[topic].Partitions))
	lags, err := admin.Lag(ctx, group)
	if err != nil {
		return err
	}
	fmt.Println("lag", lags[group].Lag.Total())
	if _, err := admin.DeleteTopic(ctx, topic); err != nil {
		return err
	}
	topics, err = admin.ListTopics(ctx)
	if err != nil {
		return err
	}
	fmt.Println("deleted", !topics.Has(topic))
	return nil
}
