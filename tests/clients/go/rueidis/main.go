// Draws ids with rueidis: rueidis HOST PORT. Prints one "ok NAME VERSION PROTO" line a protocol.
package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"github.com/redis/rueidis"
)

const count = 1000

func ask(to rueidis.Client, name, tag string) rueidis.Completed {
	if name == "INCR" {
		return to.B().Incr().Key(tag).Build()
	}
	return to.B().Arbitrary(name).Keys(tag).Build()
}

func draw(ctx context.Context, client rueidis.Client, name, tag string) ([]int64, error) {
	var ids []int64
	for i := 0; i < count; i++ {
		id, err := client.Do(ctx, ask(client, name, tag)).AsInt64()
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	var pipeline rueidis.Commands
	for i := 0; i < count; i++ {
		pipeline = append(pipeline, ask(client, name, tag))
	}
	for _, reply := range client.DoMulti(ctx, pipeline...) {
		id, err := reply.AsInt64()
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	err := client.Dedicated(func(dedicated rueidis.DedicatedClient) error {
		transaction := rueidis.Commands{dedicated.B().Multi().Build()}
		for i := 0; i < count; i++ {
			transaction = append(transaction, ask(client, name, tag))
		}
		transaction = append(transaction, dedicated.B().Exec().Build())
		replies := dedicated.DoMulti(ctx, transaction...)
		drawn, err := replies[len(replies)-1].AsIntSlice()
		ids = append(ids, drawn...)
		return err
	})
	return ids, err
}

func run(host, port string) error {
	ctx := context.Background()
	address := []string{net.JoinHostPort(host, port)}
	for _, row := range []struct {
		proto  string
		option rueidis.ClientOption
	}{
		{"resp3", rueidis.ClientOption{InitAddress: address}},
		{"resp2", rueidis.ClientOption{InitAddress: address, AlwaysRESP2: true, DisableCache: true}},
	} {
		client, err := rueidis.NewClient(row.option)
		if err != nil {
			return fmt.Errorf("%s: %w", row.proto, err)
		}
		for _, name := range []string{"IDGET", "INCR"} {
			ids, err := draw(ctx, client, name, "rueidis-"+row.proto+"-"+name)
			if err != nil {
				return fmt.Errorf("%s %s: %w", row.proto, name, err)
			}
			if len(ids) != 3*count {
				return fmt.Errorf("%s %s: %d ids", row.proto, name, len(ids))
			}
			// A fresh tag of one node counts without a gap, so this is count, order and uniqueness in one.
			for i, got := range ids {
				if got != int64(i+1) {
					return fmt.Errorf("%s %s: id %d is %d", row.proto, name, i+1, got)
				}
			}
		}
		client.Close()
		fmt.Println("ok rueidis 1.0.79", row.proto)
	}
	return nil
}

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "rueidis:", err)
		os.Exit(1)
	}
}
