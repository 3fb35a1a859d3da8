import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import redis.clients.jedis.AbstractPipeline;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.Response;
import redis.clients.jedis.commands.ProtocolCommand;

/** Draws ids with Jedis: DrawJedis HOST PORT. Prints one "ok NAME VERSION PROTO" line a protocol. */
public final class DrawJedis {
    private static final ProtocolCommand IDGET = () -> "IDGET".getBytes(StandardCharsets.US_ASCII);

    public static void main(String[] args) {
        String host = args[0];
        int port = Integer.parseInt(args[1]);
        try (JedisPooled jedis = new JedisPooled(host, port)) {
            all(jedis, "default");
        }
        var resp3 = DefaultJedisClientConfig.builder().resp3().build();
        try (JedisPooled jedis = new JedisPooled(new HostAndPort(host, port), resp3)) {
            all(jedis, "resp3");
        }
    }

    private static void all(JedisPooled jedis, String proto) {
        for (boolean custom : new boolean[] {true, false}) {
            String tag = "jedis-" + proto + "-" + (custom ? "IDGET" : "INCR");
            List<Long> ids = new ArrayList<>();
            for (int i = 0; i < Ids.COUNT; i++) {
                ids.add(custom ? (Long) jedis.sendCommand(IDGET, tag) : (Long) jedis.incr(tag));
            }
            List<Response<?>> replies = new ArrayList<>();
            try (AbstractPipeline pipeline = jedis.pipelined()) {
                for (int i = 0; i < Ids.COUNT; i++) {
                    replies.add(custom ? pipeline.sendCommand(IDGET, tag) : pipeline.incr(tag));
                }
                pipeline.sync();
            }
            try (AbstractTransaction transaction = jedis.multi()) {
                for (int i = 0; i < Ids.COUNT; i++) {
                    replies.add(custom ? transaction.sendCommand(IDGET, tag) : transaction.incr(tag));
                }
                transaction.exec();
            }
            replies.forEach(reply -> ids.add((Long) reply.get()));
            Ids.check(tag, ids);
        }
        System.out.println("ok jedis 7.5.3 " + proto);
    }
}
