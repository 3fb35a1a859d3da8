import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.async.RedisAsyncCommands;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.IntegerOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.protocol.ProtocolVersion;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** Draws ids with Lettuce: DrawLettuce HOST PORT. Prints one "ok NAME VERSION PROTO" line a protocol. */
public final class DrawLettuce {
    private static final ProtocolKeyword IDGET = new ProtocolKeyword() {
        @Override
        public byte[] getBytes() {
            return "IDGET".getBytes(StandardCharsets.US_ASCII);
        }

        @Override
        public String toString() {
            return "IDGET";
        }
    };

    public static void main(String[] args) throws Exception {
        RedisClient client = RedisClient.create(RedisURI.create(args[0], Integer.parseInt(args[1])));
        try {
            all(client, "default");
            client.setOptions(ClientOptions.builder().protocolVersion(ProtocolVersion.RESP2).build());
            all(client, "resp2");
            client.setOptions(ClientOptions.builder().protocolVersion(ProtocolVersion.RESP3).build());
            all(client, "resp3");
        } finally {
            client.shutdown(0, 1, TimeUnit.SECONDS);
        }
    }

    private static RedisFuture<Long> ask(RedisAsyncCommands<String, String> to, boolean custom, String tag) {
        if (!custom) {
            return to.incr(tag);
        }
        var codec = StringCodec.UTF8;
        return to.dispatch(IDGET, new IntegerOutput<>(codec), new CommandArgs<>(codec).addKey(tag));
    }

    private static void all(RedisClient client, String proto) throws Exception {
        for (boolean custom : new boolean[] {true, false}) {
            String tag = "lettuce-" + proto + "-" + (custom ? "IDGET" : "INCR");
            try (StatefulRedisConnection<String, String> connection = client.connect()) {
                var commands = connection.async();
                List<Long> ids = new ArrayList<>();
                for (int i = 0; i < Ids.COUNT; i++) {
                    ids.add(ask(commands, custom, tag).get(10, TimeUnit.SECONDS));
                }
                List<RedisFuture<Long>> replies = new ArrayList<>();
                connection.setAutoFlushCommands(false);
                for (int i = 0; i < Ids.COUNT; i++) {
                    replies.add(ask(commands, custom, tag));
                }
                connection.flushCommands();
                connection.setAutoFlushCommands(true);
                commands.multi();
                for (int i = 0; i < Ids.COUNT; i++) {
                    replies.add(ask(commands, custom, tag));
                }
                commands.exec().get(10, TimeUnit.SECONDS);
                for (RedisFuture<Long> reply : replies) {
                    ids.add(reply.get(10, TimeUnit.SECONDS));
                }
                Ids.check(tag, ids);
            }
        }
        System.out.println("ok lettuce 7.7.0 " + proto);
    }
}
