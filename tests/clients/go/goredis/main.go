// Draws ids with go-redis: goredis HOST PORT. Prints one "ok NAME VERSION PROTO" line a protocol.
package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"github.com/redis/go-redis/v9"
)

const count = 1000

func ask(ctx context.Context, to redis.Cmdable, name, tag string) redis.Cmder {
	if name == "INCR" {
		return to.Incr(ctx, tag)
	}
	return to.(interface {
		Do(ctx context.Context, args ...interface{}) *redis.Cmd
	}).Do(ctx, name, tag)
}

func id(cmd redis.Cmder) (int64, error) {
	switch c := cmd.(type) {
	case *redis.IntCmd:
		return c.Result()
	case *redis.Cmd:
		return c.Int64()
	}
	return 0, fmt.Errorf("unexpected command type %T", cmd)
}

func draw(ctx context.Context, client *redis.Client, name, tag string) ([]redis.Cmder, error) {
	var cmds []redis.Cmder
	for i := 0; i < count; i++ {
		cmds = append(cmds, ask(ctx, client, name, tag))
	}
	for _, pipe := range []redis.Pipeliner{client.Pipeline(), client.TxPipeline()} {
		for i := 0; i < count; i++ {
			cmds = append(cmds, ask(ctx, pipe, name, tag))
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return nil, err
		}
	}
	return cmds, nil
}

func run(host, port string) error {
	ctx := context.Background()
	// Protocol 0 is what a newcomer gets: no option at all.
	for _, row := range []struct {
		proto string
		value int
	}{{"default", 0}, {"resp2", 2}, {"resp3", 3}} {
		client := redis.NewClient(&redis.Options{Addr: net.JoinHostPort(host, port), Protocol: row.value})
		for _, name := range []string{"IDGET", "INCR"} {
			cmds, err := draw(ctx, client, name, "goredis-"+row.proto+"-"+name)
			if err != nil {
				return fmt.Errorf("%s %s: %w", row.proto, name, err)
			}
			// A fresh tag of one node counts without a gap, so this is count, order and uniqueness in one.
			for i, cmd := range cmds {
				if got, err := id(cmd); err != nil || got != int64(i+1) {
					return fmt.Errorf("%s %s: id %d is %d (%v)", row.proto, name, i+1, got, err)
				}
			}
			if len(cmds) != 3*count {
				return fmt.Errorf("%s %s: %d ids", row.proto, name, len(cmds))
			}
		}
		if err := client.Close(); err != nil {
			return err
		}
		fmt.Println("ok go-redis 9.23.0", row.proto)
	}
	return nil
}

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "go-redis:", err)
		os.Exit(1)
	}
}
