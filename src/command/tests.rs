//! The commands as a client sees them: bytes in, bytes out, through the loop that a connection runs.

#[allow(clippy::duplicate_mod, reason = "rooms share no modules of tests, and this one is pure")]
#[path = "../resp/tests/inputs.rs"]
mod inputs;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::acl::{self, UserConfig};
use crate::clock::{ManualClock, SystemClock};
use crate::health::Phase;
use crate::limit::Rate;
use crate::resp::{Limits, Scan, Scanner};
use crate::router::testing::Bench;
use crate::router::{self, Alteration, Rule, Unknown};
use crate::store::EngineKind;
use crate::store::memory::{Fault, Memory};

/// Long enough that a machine under load does not make one wait look like two.
const WAIT_MAX: Duration = Duration::from_secs(1);

// sha256 of "secret"
const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

/// A node and what a test moves on it.
struct Node {
    context: Context,
    clock: ManualClock,
    store: Arc<Memory>,
}

impl Node {
    fn new() -> Self {
        Self::with(Vec::new(), router::Config::default())
    }

    fn with_users(users: Vec<UserConfig>) -> Self {
        Self::with(users, router::Config::default())
    }

    fn with(users: Vec<UserConfig>, tags: router::Config) -> Self {
        Self::limited(users, tags, Rate::default())
    }

    fn limited(users: Vec<UserConfig>, tags: router::Config, limit: Rate) -> Self {
        let Bench { router, store, clock, health, metrics } = Router::in_memory(tags);
        health.enter(Phase::Serving);
        let settings = Settings {
            max_count: 10_000,
            max_clients: 100,
            idle_timeout: Duration::ZERO,
            tcp_port: 6390,
            bind: "127.0.0.1".into(),
            unix_socket: String::new(),
            config_file: String::new(),
            run_id: "0123456789".repeat(4),
            started: clock.boot(),
            shown: BTreeMap::from([("server.max_count".into(), "10000".into())]),
        };
        clock.advance(Duration::from_secs(5));
        let stats = Arc::new(Stats::default());
        let context = Context {
            router,
            clock: Arc::new(clock.clone()),
            health,
            metrics,
            limit: Limit::new(limit, clock.boot()),
            users: Users::new(&acl::Config { users }).expect("valid users"),
            clients: Clients::default(),
            stats,
            settings,
        };
        Self { context, clock, store }
    }

    fn connect(&self) -> Connection<'_> {
        let number = self.context.clients.opened();
        let peer = Peer { addr: format!("127.0.0.1:{}", 40_000 + number), local: "127.0.0.1:6390".into(), unix: false };
        let client = self.context.clients.enter(peer, self.clock.boot(), 100).expect("room");
        Connection { node: self, session: Session::new(&self.context, &client), client, open: true, requests: 0 }
    }

    async fn ask(&self, requests: &str) -> String {
        self.connect().send(requests).await
    }
}

struct Connection<'n> {
    node: &'n Node,
    session: Session,
    client: Arc<Client>,
    open: bool,
    /// How many requests were taken, the one that closed the connection among them.
    requests: usize,
}

impl Connection<'_> {
    /// Sends these lines in one read and gives the replies, each line end shown as a space.
    async fn send(&mut self, lines: &str) -> String {
        let bytes = lines.lines().fold(String::new(), |all, line| all + line + "\r\n");
        let out = self.send_bytes(bytes.as_bytes()).await;
        String::from_utf8_lossy(&out).replace("\r\n", " ").trim_end_matches(' ').to_owned()
    }

    /// What a connection's task does with one read.
    async fn send_bytes(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        assert!(self.open, "the connection is closed");
        let context = &self.node.context;
        let now = self.node.clock.boot();
        let batch = Batch::new(now, WAIT_MAX);
        let mut scanner = Scanner::new();
        let mut out = Vec::new();
        while let Ok(Scan::Request(request)) = scanner.next(bytes, &Limits::AFTER_LOGIN) {
            self.requests += 1;
            if !self.session.joins(&request)
                && self.session.execute(&request, context, &batch, &mut out).await == Flow::Close
            {
                self.open = false;
                break;
            }
            while self.session.has_queued() {
                self.session.execute_queued(context, &batch, &mut out).await;
            }
            let used = scanner.consumed();
            bytes = &bytes[used..];
        }
        self.session.settle(context, &batch, &mut out).await;
        self.session.finish(context, &self.client, now, Duration::from_micros(10));
        out
    }
}

fn user(name: &str, acl: &str) -> UserConfig {
    UserConfig { name: name.into(), token_sha256: vec![SECRET.into()], acl: acl.into(), ..UserConfig::default() }
}

fn repeated(line: &str, times: usize) -> String {
    (0..times).fold(String::new(), |mut all, _| {
        let _ = writeln!(all, "{line}");
        all
    })
}

#[tokio::test]
async fn ids_come_in_every_form() {
    let node = Node::new();
    let mut connection = node.connect();
    assert_eq!(connection.send("IDGET order\nidget order STR\nINCR order").await, ":1 $1 2 :3");
    assert_eq!(connection.send("IDMGET order 3\nIDMGET order 2 str").await, "*3 :4 :5 :6 *2 $1 7 $1 8");
    assert_eq!(connection.send("IDRANGE order 5000\nIDRANGE order 2 STR").await, "*2 :9 :5008 *2 $4 5009 $4 5010");
    assert_eq!(connection.send("INCRBY order 10\nINCRBY order 1").await, ":5020 :5021");
    assert_eq!(connection.send("GET order\nGET other\nSTRLEN order").await, "$4 5021 $-1 :4");
    let trace = "TRACEPARENT 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let traced =
        connection.send(&format!("IDGET order {trace}\nIDGET order STR {trace}\nIDMGET order 1 {trace}")).await;
    assert_eq!(traced, ":5022 $4 5023 *1 :5024");
}

#[tokio::test]
async fn a_run_is_answered_in_order_and_apart_from_what_stands_between() {
    let node = Node::new();
    let mut connection = node.connect();
    let requests = "IDGET a\nIDGET a\nIDGET b\nIDGET a\nPING\nINCR a\nINCR a\nIDGET a STR\nIDGET a STR\nGET a\nIDGET a";
    assert_eq!(connection.send(requests).await, ":1 :2 :1 :3 +PONG :4 :5 $1 6 $1 7 $1 7 :8");
    let many = connection.send(&repeated("IDGET a", 1000)).await;
    let expected: Vec<String> = (9..1009).map(|id| format!(":{id}")).collect();
    assert_eq!(many, expected.join(" "));
    let entry = node.context.router.find(b"a").expect("known");
    assert_eq!((entry.metrics().requests_ok.get(), entry.metrics().issued.get()), (1008, 1008));
    let calls = |name: &[u8]| {
        let index = spec::find(name).expect("a command").index();
        node.context.stats.command(index).expect("counted").durations.count()
    };
    assert_eq!((calls(b"idget"), calls(b"incr"), calls(b"ping"), calls(b"get")), (1007, 2, 1, 1));
}

/// From here on no grant of the store ends.
fn hold(node: &Node) {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    for _ in 0..100 {
        node.store.plan(Fault::Held(Arc::clone(&gate)));
    }
}

const SMALL: &str = "IDTAG CREATE starved STEP 10 MINSTEP 10 MAXSTEP 10";

#[tokio::test]
async fn a_starved_run_hands_out_what_there_is_and_waits_once() {
    let node = Node::new();
    assert_eq!(node.ask(&format!("IDGET other\n{SMALL}\nIDGET starved")).await, ":1 +OK :1");
    hold(&node);
    let started = SystemClock.boot();
    let requests = repeated("IDGET starved", 50) + "IDGET other\nIDGET starved\nIDMGET starved 2\nIDGET new\n";
    let answers = node.ask(&requests).await;
    let waited = SystemClock.boot().since(started);
    assert!(waited >= WAIT_MAX && waited < 2 * WAIT_MAX, "{waited:?}");

    // What was there: the rest of one segment of ten, and the next one if it had come already.
    let served = answers.split(' ').take_while(|word| word.starts_with(':')).count();
    assert!(served == 9 || served == 19, "{answers}");
    let ids: Vec<String> = (2..).take(served).map(|id| format!(":{id}")).collect();
    let late = "-TRYAGAIN tag 'starved' had no id within 1000 ms: ask again";
    let expected = [
        ids.join(" "),
        vec![late; 50 - served].join(" "),
        ":2".into(),
        late.into(),
        late.into(),
        late.replace("starved", "new"),
    ];
    assert_eq!(answers, expected.join(" "));
    let entry = node.context.router.find(b"starved").expect("known");
    let ok = served as u64 + 1;
    assert_eq!((entry.metrics().requests_ok.get(), entry.metrics().issued.get()), (ok, ok));
    assert_eq!(entry.metrics().requests_failed.get(), [("tryagain", 52 - served as u64)]);
}

#[tokio::test]
async fn a_new_read_may_wait_again() {
    let node = Node::new();
    let mut connection = node.connect();
    assert_eq!(connection.send(SMALL).await, "+OK");
    hold(&node);
    for _ in 0..2 {
        node.clock.advance(Duration::from_millis(1));
        let started = SystemClock.boot();
        assert!(connection.send("INCRBY starved 2").await.starts_with("-TRYAGAIN "));
        let waited = SystemClock.boot().since(started);
        assert!(waited >= WAIT_MAX && waited < 2 * WAIT_MAX, "{waited:?}");
    }
}

#[tokio::test]
async fn the_end_of_the_ids_is_an_error_for_each_request_of_its_own() {
    let node = Node::new();
    let mut connection = node.connect();
    assert_eq!(connection.send("IDTAG CREATE end MAX 77\nINCRBY end 75").await, "+OK :75");
    let end = connection.send("IDMGET end 3").await;
    let few = "-IDEXHAUSTED tag 'end' has only 2 ids left for one request up to MAX 77: ask for fewer, or raise it with IDTAG \
               ALTER end MAX n";
    assert_eq!(end, few);
    assert_eq!(connection.send("INCRBY end 3").await, few);
    let end =
        "-IDEXHAUSTED tag 'end' has no ids left up to MAX 77: use another tag, or raise it with IDTAG ALTER end MAX n";
    assert_eq!(connection.send(&repeated("INCR end", 4)).await, format!(":76 :77 {end} {end}"));
    assert_eq!(connection.send("IDTAG ALTER end MAX 78\nIDGET end").await, "+OK :78");
}

#[tokio::test]
async fn requests_that_cannot_be_right_are_told_so() {
    let node = Node::new();
    let mut connection = node.connect();
    let count = "-IDCOUNT the number of ids must be an integer from 1 to 10000";
    for bad in ["0", "-1", "9223372036854775808", "abc"] {
        assert_eq!(connection.send(&format!("IDMGET order {bad}")).await, count, "{bad}");
        assert_eq!(connection.send(&format!("IDRANGE order {bad}")).await, count, "{bad}");
    }
    assert_eq!(connection.send("INCRBY order 0\nINCRBY order -1").await, format!("{count} {count}"));
    let many = "-IDCOUNT the number of ids must be at most 10000: ask several times";
    assert_eq!(
        connection.send("IDMGET order 10001\nIDRANGE order 10001\nINCRBY order 10001").await,
        [many; 3].join(" ")
    );
    for bad in ["abc", "01", "+1", "1.0", "9223372036854775808"] {
        let text = "-ERR value is not an integer or out of range";
        assert_eq!(connection.send(&format!("INCRBY order {bad}")).await, text, "{bad}");
    }
    let tag = "-IDTAG a tag is 1 to 128 bytes of printable ASCII without space, quotes and backslash: use another name";
    for bad in ["\"a b\"", "\"a\\n\"", "\"\"", &"x".repeat(129), "\"it's\""] {
        assert_eq!(connection.send(&format!("IDGET {bad}")).await, tag, "{bad}");
    }
    assert_eq!(
        connection.send("IDGET order STRING\nIDMGET order 2 STR STR\nIDDECODE 5 a b\nSCAN 0 COUNT 0").await,
        "-ERR syntax error near 'STRING': use IDGET tag [STR] [TRACEPARENT value] \
         -ERR syntax error near 'STR': use IDMGET tag n [STR] [TRACEPARENT value] \
         -ERR syntax error near 'b': use IDDECODE id [tag] -ERR syntax error"
    );
    let traceparent = connection.send("IDGET order TRACEPARENT x").await;
    assert!(traceparent.starts_with("-ERR syntax error near 'x': TRACEPARENT takes "), "{traceparent}");
    let list = "IDTAG LIST [MATCH pattern] [COUNT count] [CURSOR cursor]";
    assert_eq!(
        connection.send("IDTAG LIST COUNT 0\nIDTAG LIST TYPE string\nIDTAG LIST MATCH").await,
        format!(
            "-ERR COUNT must be 1 or more -ERR syntax error near 'TYPE': use {list} -ERR syntax error near 'MATCH': use {list}"
        )
    );
    assert_eq!(connection.send("IDGET order").await, ":1", "the connection goes on");
}

#[tokio::test]
async fn tags_that_cannot_be_served_are_told_so() {
    let rules = vec![Rule { pattern: "snow*".into(), engine: EngineKind::Snowflake }];
    let node = Node::with(Vec::new(), router::Config { unknown: Unknown::Refuse, rules, ..router::Config::default() });
    let mut connection = node.connect();
    let unknown = "-IDNOTAG tag 'order' does not exist: create it with IDTAG CREATE order";
    assert_eq!(connection.send("IDGET order\nIDMGET order 2\nINCR order").await, [unknown; 3].join(" "));
    assert!(connection.send("IDINFO order").await.starts_with("-IDNOTAG tag 'order' does not exist"));
    assert_eq!(connection.send("IDTAG CREATE snow").await, "+OK");
    let id = connection.send("IDGET snow").await;
    let id = id.strip_prefix(':').expect("an id");
    let parts = connection.send(&format!("IDDECODE {id} snow")).await;
    assert!(parts.starts_with("*10 $12 timestamp_ms :18000000"), "{parts}");
    let segment = "-IDTYPE tag 'plain' is a segment tag: its ids are counted and hold nothing to decode";
    assert_eq!(connection.send("IDTAG CREATE plain ENGINE segment\nIDDECODE 5 plain").await, format!("+OK {segment}"));
    assert!(connection.send("IDDECODE 0").await.starts_with("-IDCOUNT an id is an integer from 1 to "));
    assert_eq!(connection.send("IDTAG CREATE old ENGINE segment\nIDGET old\nIDTAG RETIRE old").await, "+OK :1 +OK");
    let retired = "-IDRETIRED tag 'old' is retired for ever: use another tag";
    assert_eq!(connection.send("IDGET old\nIDTAG CREATE old\nEXISTS old").await, format!("{retired} {retired} :0"));
}

#[tokio::test]
async fn the_catalogue_is_changed_by_commands() {
    let node = Node::new();
    let mut connection = node.connect();
    let create = "IDTAG CREATE order STEP 50 MINSTEP 10 MAXSTEP 100 START 1000 MAX 5000 CRITICAL yes DESC 'the orders'";
    assert_eq!(connection.send(&format!("{create}\n{create}\nIDGET order")).await, "+OK +OK :1000");
    assert!(connection.send("IDTAG CREATE order STEP 51").await.starts_with("-IDCONFLICT "));
    assert_eq!(
        connection.send("idtag alter order max 6000 desc ''\nIDTAG FLOOR order 2000\nIDGET order").await,
        "+OK +OK :2001"
    );
    assert!(connection.send("IDTAG FLOOR order 9000000000000").await.starts_with("-IDCONFLICT "));
    for (bad, expected) in [
        ("CREATE x STEP", "'STEP': use IDTAG CREATE tag [ENGINE segment|snowflake] [ORDER node|strict] "),
        ("CREATE x FOO 1", "'FOO': use IDTAG CREATE tag "),
        ("CREATE x STEP 1 STEP 2", "'STEP': an option may stand there once"),
        ("ALTER order START 5", "'START': ENGINE, ORDER and START are fixed when a tag is created"),
        ("ALTER order engine segment", "'engine': ENGINE, ORDER and START are fixed when a tag is created"),
        ("ALTER order FOO 5", "'FOO': use IDTAG ALTER tag [STEP step] "),
        ("FLOOR order 5 NOW", "'NOW': use IDTAG FLOOR tag n [FORCE]"),
        ("FLOOR order 5 FORCE NOW", "'NOW': use IDTAG FLOOR tag n [FORCE]"),
    ] {
        let answer = connection.send(&format!("IDTAG {bad}")).await;
        assert!(answer.starts_with(&format!("-ERR syntax error near {expected}")), "{bad}: {answer}");
    }
    for sent in ["IDTAG FLOOR nobody 5", "IDTAG ALTER nobody STEP 5", "IDTAG RETIRE nobody", "IDINFO nobody"] {
        let unknown = "-IDNOTAG tag 'nobody' does not exist: create it with IDTAG CREATE nobody";
        assert_eq!(connection.send(sent).await, unknown, "{sent}");
    }
    for (bad, expected) in [
        ("STEP 0", "STEP must be an integer from 1 to 9223372036854775807"),
        ("START abc", "START must be an integer from 1 to 9223372036854775807"),
        ("QPS -1", "QPS must be an integer from 0 to 10000000"),
        ("ENGINE fast", "ENGINE must be segment or snowflake"),
        ("ORDER loose", "ORDER must be node or strict"),
        ("CRITICAL maybe", "CRITICAL must be yes or no"),
        ("DESC \"a\\nb\"", "DESC must be one line of UTF-8 text of at most 255 bytes"),
    ] {
        assert_eq!(connection.send(&format!("IDTAG CREATE x {bad}")).await, format!("-ERR {expected}"), "{bad}");
    }
    assert!(connection.send("IDTAG CREATE \"a b\"").await.starts_with("-IDTAG "));
    let info = connection.send("IDINFO order").await;
    assert!(
        info.starts_with("*40 $3 tag $5 order $6 engine $7 segment $5 order $4 node $9 guarantee $6 unique $4 step "),
        "{info}"
    );
    assert!(
        info.contains("$3 max :6000 ") && info.contains("$5 floor :2000 ") && info.contains("$6 issued :2"),
        "{info}"
    );
    connection.send("HELLO 3").await;
    assert!(connection.send("IDINFO order").await.starts_with("%20 $3 tag $5 order"));
    assert!(connection.send("IDWORKERS").await.starts_with("*32 %5 $6 worker :0 $5 owner "));
    assert!(connection.send("IDNODE").await.contains("$5 phase $7 serving $5 ready #t $7 reasons *0"));
}

#[tokio::test]
async fn commands_that_would_take_ids_back_say_what_to_use() {
    let node = Node::new();
    let expected =
        "-IDTYPE DECR is not for an id server, where ids only go up: use IDGET, INCR or INCRBY with a positive number";
    assert_eq!(node.ask("decr order").await, expected);
    for (command, _) in table::REFUSED {
        assert!(node.ask(command).await.starts_with("-IDTYPE "), "{command}");
    }
    for unknown in ["SHUTDOWN", "MONITOR", "DEBUG", "EVAL"] {
        let expected = format!("-ERR unknown command '{unknown}', with args beginning with:");
        assert_eq!(node.ask(unknown).await, expected);
    }
}

#[tokio::test]
async fn texts_of_the_protocol_are_those_of_redis() {
    let node = Node::new();
    for (sent, expected) in [
        ("FOO a 'b '", "-ERR unknown command 'FOO', with args beginning with: 'a' 'b '"),
        ("CLIENT FOO", "-ERR unknown subcommand 'FOO'. Try CLIENT HELP."),
        ("COMMAND foo", "-ERR unknown subcommand 'foo'. Try COMMAND HELP."),
        ("CLIENT", "-ERR wrong number of arguments for 'client' command"),
        ("GET", "-ERR wrong number of arguments for 'get' command"),
        ("CLIENT SETNAME", "-ERR wrong number of arguments for 'client|setname' command"),
        ("SELECT 16", "-ERR DB index is out of range"),
        ("SELECT x", "-ERR value is not an integer or out of range"),
        ("SELECT 15", "+OK"),
        ("EXEC", "-ERR EXEC without MULTI"),
        ("DISCARD", "-ERR DISCARD without MULTI"),
        ("CONFIG SET foo bar", "-ERR Unknown option or number of arguments for CONFIG SET - 'foo'"),
        ("CONFIG GET nothing", "*0"),
        ("CONFIG GET databases server.*", "*4 $9 databases $2 16 $16 server.max_count $5 10000"),
        ("CLIENT KILL 1.2.3.4:5", "-ERR No such client"),
        ("CLIENT KILL ID 999", ":0"),
        ("CLIENT KILL ID x", "-ERR client-id should be greater than 0"),
        ("CLIENT KILL TYPE foo", "-ERR Unknown client type 'foo'"),
        ("CLIENT LIST ID a", "-ERR Invalid client ID"),
        ("CLIENT SETNAME 'a b'", "-ERR Client names cannot contain spaces, newlines or special characters."),
        ("CLIENT SETINFO foo bar", "-ERR Unrecognized option 'foo'"),
        ("CLIENT SETINFO LIB-NAME redis-py", "+OK"),
        ("CLIENT GETNAME", "$-1"),
        ("CLIENT REPLY foo", "-ERR syntax error"),
        ("CLIENT TRACKING ON OPTIN", "+OK"),
        ("CLIENT TRACKING OFF", "+OK"),
        ("CLIENT MAINT_NOTIFICATIONS ON", "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP."),
        ("CLUSTER SLOTS", "-ERR This instance has cluster support disabled"),
        ("READONLY", "-ERR This instance has cluster support disabled"),
        ("CLUSTER FOO", "-ERR unknown subcommand 'FOO'. Try CLUSTER HELP."),
        ("HELLO 4", "-NOPROTO unsupported protocol version"),
        ("HELLO x", "-ERR Protocol version is not an integer or out of range"),
        ("HELLO 3 FOO", "-ERR Syntax error in HELLO option 'FOO'"),
        ("HELLO 3 AUTH a", "-ERR Syntax error in HELLO option 'AUTH'"),
        ("AUTH a b", "-WRONGPASS invalid username-password pair or user is disabled."),
        ("AUTH default anything", "+OK"),
        ("AUTH a b c", "-ERR syntax error"),
        (
            "AUTH x",
            "-ERR AUTH <password> called without any password configured for the default user. Are you sure your \
             configuration is correct?",
        ),
        ("PING a b", "-ERR wrong number of arguments for 'ping' command"),
        ("PING hi", "$2 hi"),
        ("ECHO hi", "$2 hi"),
        ("TIME", "*2 $10 1800000005 $1 0"),
        ("ROLE", "*3 $6 master :0 *0"),
        ("WAIT 0 0", ":0"),
        ("TYPE order", "+none"),
        ("TTL order", ":-2"),
        ("EXISTS order", ":0"),
        ("SCAN x", "-ERR invalid cursor"),
        ("SCAN 0 COUNT 0", "-ERR syntax error"),
        ("SCAN 0 MATCH", "-ERR syntax error"),
        ("SCAN 0", "*2 $1 0 *0"),
        ("SLOWLOG GET 1", "*0"),
        ("SLOWLOG GET -2", "-ERR count should be greater than or equal to -1"),
        ("LATENCY LATEST", "*0"),
        ("MODULE LIST", "*0"),
        ("PUBLISH a b", ":0"),
        ("PUBSUB NUMSUB a", "*2 $1 a :0"),
        ("INFO nothing", "$0"),
        ("COMMAND INFO nothing", "*1 $-1"),
        ("COMMAND DOCS nothing", "*0"),
        ("COMMAND GETKEYS IDMGET order 5", "*1 $5 order"),
        ("COMMAND GETKEYS IDTAG CREATE order", "*1 $5 order"),
        ("COMMAND GETKEYS FOO a", "-ERR Invalid command specified"),
        ("ACL WHOAMI", "$7 default"),
        ("ACL LIST", "*1 $34 user default on nopass ~* &* +@all"),
        ("ACL GETUSER nobody", "$-1"),
        ("ACL CAT foo", "-ERR Unknown category 'foo'"),
        ("ACL DRYRUN default IDGET order", "+OK"),
        ("RESET", "+RESET"),
    ] {
        assert_eq!(node.ask(sent).await, expected, "{sent}");
    }
}

#[tokio::test]
async fn known_tags_are_seen_by_tools() {
    let node = Node::new();
    let mut connection = node.connect();
    connection.send("IDGET order\nIDGET bill").await;
    assert_eq!(connection.send("EXISTS order bill none\nTYPE order\nTTL order\nDBSIZE").await, ":2 +string :-1 :2");
    assert_eq!(connection.send("SCAN 0 MATCH o*").await, "*2 $1 0 *1 $5 order");
    assert_eq!(connection.send("SCAN 0 TYPE hash").await, "*2 $1 0 *0");
    assert_eq!(
        connection.send("IDTAG LIST MATCH b* COUNT 5 CURSOR 0\nKEYS *r*").await,
        "*2 $1 0 *1 $4 bill *1 $5 order"
    );
    assert_eq!(connection.send("MGET order none").await, "*2 $1 1 $-1");
    assert!(connection.send("INFO keyspace").await.ends_with("# Keyspace db0:keys=2,expires=0,avg_ttl=0"));
}

#[tokio::test]
async fn hello_changes_the_protocol_for_everything_behind_it() {
    let node = Node::new();
    let mut connection = node.connect();
    let hello = |kind: &str, version| {
        format!(
            "{kind} $6 server $5 redis $7 version $5 7.4.2 $5 proto :{version} $2 id :1 $4 mode $10 standalone $4 role $6 \
             master $7 modules *0"
        )
    };
    let sent = "GET none\nHELLO 3 SETNAME app\nGET none\nCLIENT GETNAME\nHELLO\nHELLO 2\nGET none";
    let expected = ["$-1", &hello("%7", 3), "_", "$3 app", &hello("%7", 3), &hello("*14", 2), "$-1"].join(" ");
    assert_eq!(connection.send(sent).await, expected);
    assert_eq!(
        connection.send("HELLO 3 AUTH bob x\nGET none").await,
        "-WRONGPASS invalid username-password pair or user is disabled. $-1"
    );
}

#[tokio::test]
async fn a_transaction_draws_its_ids_at_exec() {
    let node = Node::new();
    let (mut one, mut other) = (node.connect(), node.connect());
    let queued = one.send("MULTI\nIDGET a\nIDGET a\nINCRBY a x\nIDMGET a 2\nPING\nidget a").await;
    assert_eq!(queued, "+OK +QUEUED +QUEUED +QUEUED +QUEUED +QUEUED +QUEUED");
    assert_eq!(other.send("IDGET a").await, ":1");
    let expected = "*6 :2 :3 -ERR value is not an integer or out of range *2 :4 :5 +PONG :6 +PONG";
    assert_eq!(one.send("EXEC\nPING").await, expected);
    assert_eq!(one.send("MULTI\nEXEC\nIDGET a").await, "+OK *0 :7");
    assert_eq!(one.send("MULTI\nIDGET a\nDISCARD\nIDGET a").await, "+OK +QUEUED +OK :8");
    let run = one.send("MULTI\nIDGET a\nIDGET a\nEXEC\nIDGET a\nIDGET a").await;
    assert_eq!(run, "+OK +QUEUED +QUEUED *2 :9 :10 :11 :12");
}

#[tokio::test]
async fn a_transaction_with_a_wrong_request_is_given_up() {
    let node = Node::new();
    let mut connection = node.connect();
    let abort = "-EXECABORT Transaction discarded because of previous errors.";
    let arity = "-ERR wrong number of arguments for 'get' command";
    assert_eq!(connection.send("MULTI\nGET\nIDGET a\nEXEC").await, format!("+OK {arity} +QUEUED {abort}"));
    let nested = "-ERR MULTI calls can not be nested";
    let watch = "-ERR WATCH inside MULTI is not allowed";
    assert_eq!(connection.send("MULTI\nMULTI\nWATCH a\nEXEC").await, format!("+OK {nested} {watch} *0"));
    let refused = "-ERR Command not allowed inside a transaction";
    assert_eq!(connection.send("MULTI\nCLIENT REPLY OFF\nEXEC\nPING").await, format!("+OK {refused} {abort} +PONG"));
    assert_eq!(connection.send("MULTI\nRESET\nEXEC").await, "+OK +RESET -ERR EXEC without MULTI");
    let wrong = "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command";
    let ended = "-ERR EXEC without MULTI";
    assert_eq!(
        connection.send("MULTI\nPING\nEXEC x\nEXEC\nEXEC x").await,
        format!("+OK +QUEUED {wrong} {ended} {wrong}")
    );
    assert_eq!(connection.send("IDGET a").await, ":1");
}

#[tokio::test]
async fn a_transaction_is_bounded() {
    let node = Node::new();
    let mut connection = node.connect();
    let half = format!("ECHO {}", "x".repeat(60_000));
    assert_eq!(connection.send("MULTI").await, "+OK");
    let answers = connection.send(&repeated(&half, 5)).await;
    let refusal =
        "-IDCOUNT a transaction holds at most 65536 commands and 262144 bytes: use smaller ones or a pipeline";
    assert_eq!(answers, format!("+QUEUED +QUEUED +QUEUED +QUEUED {refusal}"));
    assert!(connection.send("EXEC").await.starts_with("-EXECABORT "));
}

#[tokio::test]
async fn a_watched_tag_that_gives_an_id_ends_the_transaction() {
    let node = Node::new();
    let (mut one, mut other) = (node.connect(), node.connect());
    assert_eq!(one.send("IDGET a\nWATCH a b\nMULTI\nIDGET a").await, ":1 +OK +OK +QUEUED");
    assert_eq!(one.send("EXEC").await, "*1 :2");
    assert_eq!(one.send("WATCH a b\nMULTI\nIDGET a").await, "+OK +OK +QUEUED");
    other.send("IDGET b").await;
    assert_eq!(one.send("EXEC\nGET a").await, "*-1 $1 2");
    one.send("HELLO 3\nWATCH a").await;
    other.send("IDGET a").await;
    assert_eq!(one.send("MULTI\nEXEC\nMULTI\nEXEC").await, "+OK _ +OK *0");
    one.send("WATCH a\nUNWATCH").await;
    other.send("IDGET a").await;
    assert_eq!(one.send("MULTI\nPING\nEXEC").await, "+OK +QUEUED *1 +PONG");
}

#[tokio::test]
async fn replies_can_be_switched_off() {
    let node = Node::new();
    let mut connection = node.connect();
    assert_eq!(connection.send("CLIENT REPLY SKIP\nPING\nPING").await, "+PONG");
    assert_eq!(connection.send("CLIENT REPLY OFF\nPING\nIDGET a\nIDGET a\nFOO\nGET").await, "");
    assert_eq!(connection.send("IDGET a\nCLIENT REPLY SKIP\nCLIENT REPLY ON\nIDGET a").await, "+OK :4");
    assert_eq!(connection.send("CLIENT REPLY SKIP\nIDGET a\nIDGET a\nIDGET a").await, ":6 :7");
    let silent = "MULTI\nIDGET a\nIDGET a\nCLIENT GETNAME\nPING";
    assert_eq!(connection.send(silent).await, "+OK +QUEUED +QUEUED +QUEUED +QUEUED");
    assert_eq!(connection.send("DISCARD\nCLIENT REPLY SKIP\nMULTI\nPING\nDISCARD").await, "+OK +QUEUED +OK");
}

#[tokio::test]
async fn a_subscribed_resp2_connection_allows_little_else() {
    let node = Node::new();
    let mut connection = node.connect();
    let sent =
        "UNSUBSCRIBE\nSUBSCRIBE a b\nPING\nPING hi\nUNSUBSCRIBE a\nUNSUBSCRIBE zz\nGET a\nfoo\nget\nUNSUBSCRIBE\nPING";
    let expected = "*3 $11 unsubscribe $-1 :0 *3 $9 subscribe $1 a :1 *3 $9 subscribe $1 b :2 *2 $4 pong $0  *2 $4 pong $2 hi \
         *3 $11 unsubscribe $1 a :1 *3 $11 unsubscribe $2 zz :1 -ERR Can't execute 'get': only (P|S)SUBSCRIBE / \
         (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context -ERR unknown command 'foo', with args beginning \
         with:  -ERR wrong number of arguments for 'get' command *3 $11 unsubscribe $1 b :0 +PONG";
    assert_eq!(connection.send(sent).await, expected);
    assert_eq!(connection.send("PSUBSCRIBE a*\nQUIT").await, "*3 $10 psubscribe $2 a* :1 +OK");
    assert!(!connection.open);
    let mut modern = node.connect();
    modern.send("HELLO 3").await;
    let sent = "SUBSCRIBE a\nPING\nIDGET order\nUNSUBSCRIBE\nUNSUBSCRIBE";
    let expected = ">3 $9 subscribe $1 a :1 +PONG :1 >3 $11 unsubscribe $1 a :0 >3 $11 unsubscribe _ :0";
    assert_eq!(modern.send(sent).await, expected);
}

#[tokio::test]
async fn a_login_is_needed_where_there_are_users() {
    let node = Node::with_users(vec![user("bob", "~order* +@read +idget"), user("default", "~* +@all")]);
    let mut connection = node.connect();
    let need = "-NOAUTH Authentication required.";
    assert_eq!(connection.send("FOO").await, "-ERR unknown command 'FOO', with args beginning with:");
    assert_eq!(connection.send("GET").await, "-ERR wrong number of arguments for 'get' command");
    for sent in ["GET a", "PING", "IDGET a", "CLIENT SETNAME x", "MULTI", "FLUSHALL", "COMMAND"] {
        assert_eq!(connection.send(sent).await, need, "{sent}");
    }
    let hello = "-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> \
         <pass> option can be used to authenticate the client and select the RESP protocol version at the same time";
    assert_eq!(connection.send("HELLO 3").await, hello);
    assert!(!connection.session.authenticated());
    assert_eq!(
        connection.send("AUTH bob secret\nACL WHOAMI").await,
        "+OK -NOPERM User bob has no permissions to run the 'acl|whoami' command"
    );
    assert_eq!(connection.send("IDGET order\nIDGET order\nGET order").await, ":1 :2 $1 2");
    assert_eq!(connection.send("INCR order").await, "-NOPERM User bob has no permissions to run the 'incr' command");
    assert_eq!(
        connection.send("IDGET bill\nMGET order bill").await,
        "-NOPERM No permissions to access a key -NOPERM No permissions to access a key"
    );
    assert_eq!(connection.send("RESET\nGET order").await, format!("+RESET {need}"));
    assert_eq!(connection.send("AUTH secret\nACL WHOAMI").await, "+OK $7 default");
    assert_eq!(connection.send("HELLO 3 AUTH bob secret\nGET bill").await.split(' ').next(), Some("%7"));
}

#[tokio::test]
async fn a_fifth_failed_login_closes_the_connection() {
    let node = Node::with_users(vec![user("bob", "")]);
    let mut connection = node.connect();
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
    assert_eq!(connection.send("AUTH bob x\nHELLO 3 AUTH bob x\nAUTH x\nAUTH eve secret").await, [wrong; 4].join(" "));
    assert!(connection.open);
    assert_eq!(connection.send("AUTH bob x\nPING").await, wrong);
    assert!(!connection.open);
}

#[tokio::test]
async fn a_loading_node_answers_what_clients_need_to_wait() {
    let mut node = Node::new();
    let health = Arc::new(Health::default());
    health.set(crate::health::Part::Store, crate::health::State::Down("no answer".into()));
    node.context.health = health;
    let mut connection = node.connect();
    let loading = "-LOADING idgen is not ready, try again in a second: store: no answer";
    for sent in ["PING", "IDGET a", "IDMGET a 1", "INCR a", "INCRBY a 1", "GET a"] {
        assert_eq!(connection.send(sent).await, loading, "{sent}");
    }
    for sent in ["AUTH default x", "SELECT 1", "CLIENT SETNAME a", "MULTI", "DISCARD", "RESET"] {
        assert!(connection.send(sent).await.starts_with('+'), "{sent}");
    }
    assert!(connection.send("HELLO 3").await.starts_with('%'));
    assert!(connection.send("INFO").await.contains(" loading:1 loading_eta_seconds:1 "));
    node.context.health.enter(Phase::Serving);
    assert_eq!(node.ask("PING\nIDGET a").await, "+PONG :1");
    node.context.health.enter(Phase::Draining);
    assert_eq!(node.ask("PING\nIDGET a").await, "-LOADING idgen is stopping: connect to another node :2");
    let state = node.ask("IDNODE").await;
    assert!(state.contains("ready :0 $7 reasons *2 $21 this node is stopping $"), "{state}");
}

#[tokio::test]
async fn connections_see_and_kill_each_other() {
    let node = Node::new();
    let (mut one, mut other) = (node.connect(), node.connect());
    one.send("CLIENT SETNAME first\nCLIENT SETINFO LIB-NAME lib\nCLIENT SETINFO LIB-VER 1.0").await;
    other.send("HELLO 3\nMULTI\nPING").await;
    let list = one.send("CLIENT LIST").await;
    assert!(list.contains("id=1 addr=127.0.0.1:40000 laddr=127.0.0.1:6390 fd=-1 name=first age=0"), "{list}");
    assert!(list.contains("cmd=client|list user=default redir=-1 resp=2 lib-name=lib lib-ver=1.0"), "{list}");
    assert!(list.contains("flags=x db=0 sub=0 psub=0 ssub=0 multi=1") && list.contains("resp=3"), "{list}");
    assert_eq!(one.send("CLIENT LIST ID 2").await.matches("id=").count(), 1);
    assert_eq!(one.send("CLIENT KILL TYPE normal").await, ":1");
    assert!(other.client.kill.is_cancelled() && !one.client.kill.is_cancelled());
    assert_eq!(one.send("CLIENT KILL ID 1 SKIPME no").await, ":1");
    assert!(!one.open);
}

#[tokio::test]
async fn info_has_the_fields_that_tools_read() {
    let node = Node::new();
    let mut connection = node.connect();
    connection.send("IDGET a\nIDGET a\nFOO\nGET").await;
    let all = connection.send("INFO everything").await;
    for field in [
        "# Server redis_version:7.4.2 idgen_version:",
        "redis_mode:standalone",
        "tcp_port:6390",
        "uptime_in_seconds:5",
        "connected_clients:1",
        "blocked_clients:0",
        "maxclients:100",
        "used_memory:",
        "loading:0",
        "rdb_bgsave_in_progress:0",
        "aof_rewrite_in_progress:0",
        "total_connections_received:1",
        "total_commands_processed:2",
        "rejected_connections:0",
        "role:master",
        "used_cpu_user:",
        "cmdstat_idget:calls=2,usec=10,usec_per_call=5.00,rejected_calls=0,failed_calls=0",
        "cmdstat_get:calls=0,usec=0,usec_per_call=0.00,rejected_calls=1,failed_calls=0",
        "errorstat_ERR:count=2",
        "latency_percentiles_usec_idget:p50=8.000,p99=8.000,p99.9=8.000",
        "# Cluster cluster_enabled:0",
        "db0:keys=1,expires=0,avg_ttl=0",
    ] {
        assert!(all.contains(field), "{field} in {all}");
    }
    assert!(!connection.send("INFO").await.contains("# Commandstats"));
    let some = connection.send("INFO replication keyspace").await;
    assert!(some.contains("# Replication") && some.contains("# Keyspace") && !some.contains("# Server"), "{some}");
    connection.send("CONFIG RESETSTAT").await;
    let after = connection.send("INFO errorstats commandstats").await;
    assert!(!after.contains("errorstat_") && !after.contains("cmdstat_idget"), "{after}");
}

#[tokio::test]
async fn the_table_is_told_in_the_shapes_of_redis() {
    let node = Node::new();
    let mut connection = node.connect();
    let expected = "*1 *10 $5 idget :-2 *2 +write +fast :1 :1 :1 *3 +@write +@fast +@idgen *1 $23 nondeterministic_output *1 *6 \
         $5 flags *3 +RW +access +update $12 begin_search *4 $4 type $5 index $4 spec *2 $5 index :1 $9 find_keys *4 $4 type \
         $5 range $4 spec *6 $7 lastkey :0 $7 keystep :1 $5 limit :0 *0";
    assert_eq!(connection.send("COMMAND INFO idget").await, expected);
    assert!(
        connection
            .send("COMMAND")
            .await
            .starts_with(&format!("*{} *10 $5 idget", connection.send("COMMAND COUNT").await.trim_start_matches(':')))
    );
    connection.send("HELLO 3").await;
    let docs = connection.send("COMMAND DOCS idmget").await;
    let expected = "%1 $6 idmget %5 $7 summary $";
    assert!(docs.starts_with(expected), "{docs}");
    assert!(
        docs.contains(
            "$9 arguments *4 %3 $4 name $3 tag $4 type $3 key $14 key_spec_index :0 %2 $4 name $1 n $4 type $7 integer"
        ),
        "{docs}"
    );
    assert!(connection.send("COMMAND INFO client").await.contains("$14 client|setname :3"));
    let help = connection.send("CLIENT HELP").await;
    assert!(help.contains("+CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are: +ID "), "{help}");
    assert!(connection.send("COMMAND LIST FILTERBY ACLCAT idgen").await.contains("$5 idget"));
    assert_eq!(connection.send("COMMAND LIST FILTERBY PATTERN idm*").await, "*1 $6 idmget");
}

#[tokio::test]
async fn every_error_is_one_line_with_a_prefix() {
    let node = Node::new();
    let mut connection = node.connect();
    let mut hostile = vec![String::from("\"\\r\\n+OK\""), "READONLY".into(), "\"\\xff\\x00\"".into(), "x".repeat(400)];
    hostile.extend(["-1", "abc", "READONLY\\r"].map(String::from));
    for row in spec::rows() {
        if matches!(row.name, "quit" | "client|reply" | "subscribe" | "psubscribe" | "multi" | "hello" | "auth") {
            continue;
        }
        for argument in &hostile {
            for count in 0..5 {
                let request =
                    format!("{} {}\r\n", row.name.replace('|', " "), vec![argument.as_str(); count].join(" "));
                let out = connection.send_bytes(request.as_bytes()).await;
                if out.first() != Some(&b'-') {
                    continue;
                }
                let line = std::str::from_utf8(&out).expect("errors are text").strip_suffix("\r\n").expect("whole");
                let (prefix, text) = line[1..].split_once(' ').expect("a prefix and a text");
                assert!(
                    !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
                );
                assert!(!text.is_empty() && !text.contains(['\r', '\n']), "{request}: {line}");
                assert!(prefix == "READONLY" || !line.contains("READONLY"), "{request}: {line}");
                assert!(text.len() <= 512, "{request}: {line}");
            }
        }
    }
}

#[tokio::test]
async fn what_client_reply_chooses_holds_for_its_own_reply_and_a_mistake_chooses_nothing() {
    let node = Node::new();
    assert_eq!(node.ask("CLIENT REPLY OFF\nPING\nCLIENT REPLY ON\nPING").await, "+OK +PONG");
    assert_eq!(node.ask("CLIENT REPLY SKIP\nCLIENT REPLY BAD\nPING").await, "+PONG");
    assert_eq!(node.ask("CLIENT REPLY OFF\nCLIENT REPLY BAD\nRESET\nPING").await, "+RESET +PONG");
    assert_eq!(node.ask("CLIENT REPLY SKIP\nRESET\nPING").await, "+RESET +PONG");
}

#[tokio::test]
async fn what_a_connection_keeps_is_bounded() {
    let node = Node::new();
    let long = "x".repeat(129);
    assert!(node.ask(&format!("WATCH {long}")).await.starts_with("-IDTAG "));
    let channel = "c".repeat(40_000);
    let mut connection = node.connect();
    assert!(connection.send(&format!("SUBSCRIBE {channel}")).await.starts_with("*3 $9 subscribe"));
    assert!(connection.send(&format!("SUBSCRIBE {channel}2")).await.starts_with("-IDCOUNT "));
}

#[tokio::test]
async fn one_request_gets_one_reply() {
    let node = Node::new();
    let mut sum = 0;
    let mut connection = node.connect();
    for row in spec::rows().iter().filter(|row| !matches!(row.kind, spec::Kind::Messages(_)) && row.name != "quit") {
        let request = format!("{} a 1\r\nECHO end-of-{}\r\n", row.name.replace('|', " "), row.index());
        if row.name == "client|reply" || row.name == "multi" {
            continue;
        }
        let out = connection.send_bytes(request.as_bytes()).await;
        let end = format!("end-of-{}", row.index());
        let tail = format!("${}\r\n{end}\r\n", end.len());
        let head = out.strip_suffix(tail.as_bytes()).expect("the reply behind it is whole");
        assert!(!head.is_empty(), "{}", row.name);
        sum += 1;
    }
    assert!(sum > 100);
}

#[test]
fn the_readme_table_has_every_command() {
    let table = table_markdown();
    for name in
        ["IDGET tag [STR] [TRACEPARENT value]", "INCRBY tag n", "IDTAG FLOOR tag n [FORCE]", "CLIENT SETNAME name"]
    {
        assert!(table.contains(&format!("| `{name}` | ")), "{name} in {table}");
    }
    assert!(table.lines().all(|line| line.matches(" | ").count() == 1 || line == "|---|---|"), "{table}");
}

/// Arguments of any command: tags, numbers, options and nonsense.
const ARGUMENTS: [&str; 40] = [
    "order",
    "order",
    "a",
    "b",
    "new",
    "0",
    "1",
    "2",
    "3",
    "-1",
    "100",
    "9223372036854775808",
    "STR",
    "TRACEPARENT",
    "MATCH",
    "*",
    "COUNT",
    "CURSOR",
    "TYPE",
    "string",
    "STEP",
    "MAX",
    "ENGINE",
    "segment",
    "ORDER",
    "strict",
    "FORCE",
    "ON",
    "OFF",
    "OPTIN",
    "yes",
    "no",
    "AUTH",
    "SETNAME",
    "default",
    "ID",
    "SKIPME",
    "server.*",
    "\"\"",
    "\"a b\"",
];

/// Lines of commands of the table with arguments that may be right: transactions, subscriptions, changes of tags.
fn commands(input: &mut Vec<u8>, random: &mut inputs::Random) {
    input.clear();
    for _ in 0..=random.below(8) {
        let spec = &table::TABLE[random.below(table::TABLE.len())];
        input.extend_from_slice(spec.name.replace('|', " ").as_bytes());
        // Mostly as many as its arity asks for.
        let asked = usize::try_from(spec.arity.unsigned_abs()).expect("a small number") - spec.name.split('|').count();
        for _ in 0..(asked + random.below(5)).saturating_sub(random.below(3)) {
            input.push(b' ');
            input.extend_from_slice(ARGUMENTS[random.below(ARGUMENTS.len())].as_bytes());
        }
        input.extend_from_slice(b"\r\n");
    }
}

/// The requests in `input`, in words of upper case.
fn words(mut input: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let (mut scanner, mut requests) = (Scanner::new(), Vec::new());
    while let Ok(Scan::Request(request)) = scanner.next(input, &Limits::AFTER_LOGIN) {
        requests.push(request.args().map(<[u8]>::to_ascii_uppercase).collect());
        input = &input[scanner.consumed()..];
    }
    requests
}

/// Whether a request is meant to have another number of replies than one: those that turn replies off, and subscriptions,
/// which confirm each channel, unless there is exactly one.
fn is_exception(words: &[Vec<u8>]) -> bool {
    match words[0].as_slice() {
        b"CLIENT" => words.get(1).is_some_and(|word| word == b"REPLY"),
        b"SUBSCRIBE" | b"PSUBSCRIBE" | b"UNSUBSCRIBE" | b"PUNSUBSCRIBE" => words.len() != 2,
        _ => false,
    }
}

/// The length of the reply that `bytes` begins with, whole with its elements.
fn reply_len(bytes: &[u8]) -> usize {
    let shown = || bytes[..bytes.len().min(200)].escape_ascii().to_string();
    let end = bytes.windows(2).position(|pair| pair == b"\r\n").unwrap_or_else(|| panic!("no line: {}", shown())) + 2;
    let number = || std::str::from_utf8(&bytes[1..end - 2]).ok().and_then(|text| text.parse::<i64>().ok());
    let count = || usize::try_from(number().unwrap_or_else(|| panic!("no length: {}", shown())).max(0)).expect("small");
    let elements = |count: usize| (0..count).fold(end, |at, _| at + reply_len(&bytes[at..]));
    match bytes[0] {
        b'+' | b'-' | b':' | b',' | b'#' | b'_' | b'(' => end,
        b'$' | b'=' if number() == Some(-1) => end,
        b'$' | b'=' => {
            let whole = end + count() + 2;
            assert_eq!(&bytes[whole - 2..whole], b"\r\n", "{}", shown());
            whole
        }
        b'*' | b'~' | b'>' => elements(count()),
        b'%' => elements(2 * count()),
        _ => panic!("not a reply: {}", shown()),
    }
}

/// Half of the inputs are those of the protocol's own tests, half are made of the table of commands.
#[tokio::test]
async fn every_request_of_random_inputs_has_exactly_one_reply() {
    const INPUTS: usize = 20_000;
    let mut random = inputs::Random(0x1d6e_2027);
    let (mut node, mut input) = (Node::new(), Vec::new());
    let (mut requests, mut left_out, mut errors) = (0_usize, 0_usize, 0_usize);
    for number in 0..INPUTS {
        if number % 500 == 0 {
            node = Node::new();
        }
        let make = if number % 2 == 0 { inputs::fill } else { commands };
        make(&mut input, &mut random);
        if words(&input).iter().any(|words| is_exception(words)) {
            left_out += 1;
            continue;
        }
        let mut connection = node.connect();
        let out = connection.send_bytes(&input).await;
        let (mut replies, mut at) = (0, 0);
        while at < out.len() {
            errors += usize::from(out[at] == b'-');
            at += reply_len(&out[at..]);
            replies += 1;
        }
        let shown = || format!("input {number}: {} gave {}", input.escape_ascii(), out.escape_ascii());
        assert_eq!(replies, connection.requests, "{}", shown());
        requests += replies;
        node.context.clients.leave(&connection.client);
    }
    println!("{requests} requests, {errors} of them refused, {left_out} inputs left out");
    // The inputs reach both answers often enough to mean something, and few are left out.
    assert!(
        errors > INPUTS / 4 && requests - errors > INPUTS / 4 && left_out < INPUTS / 10,
        "{errors} of {requests}, {left_out}"
    );
}

#[tokio::test]
async fn pipelined_requests_get_what_the_limit_has_and_the_rest_the_time_to_wait() {
    let node = Node::new();
    let mut connection = node.connect();
    for engine in ["segment", "snowflake"] {
        let created = connection.send(&format!("IDTAG CREATE {engine} ENGINE {engine} QPS 1000 BURST 3")).await;
        assert_eq!(created, "+OK");
    }
    let refused = "-IDLIMIT tag 'segment' may give 1000 ids per second on this node: retry after 1 ms";
    let answer = connection.send(&"IDGET segment\n".repeat(5)).await;
    assert_eq!(answer, format!(":1 :2 :3 {refused} {refused}"));
    assert_eq!(connection.send("INCR segment\nINCRBY segment 1\nIDRANGE segment 1").await, [refused; 3].join(" "));
    node.clock.advance(Duration::from_millis(2));
    let answer = connection.send("IDGET segment\nMULTI\nIDGET segment\nIDGET segment\nEXEC").await;
    assert_eq!(answer, format!(":4 +OK +QUEUED +QUEUED *2 :5 {refused}"));
    assert_eq!(connection.send("IDGET order").await, ":1", "another tag");
    let metrics = node.context.router.find(b"segment").expect("known");
    let metrics = metrics.metrics();
    assert_eq!((metrics.requests_ok.get(), metrics.issued.get()), (5, 5));
    assert_eq!(metrics.requests_failed.get(), [("idlimit", 6)]);
    assert_eq!(metrics.rate_limited.get(), [("tag", 6)]);
}

#[tokio::test]
async fn a_batch_passes_whole_or_not_and_above_the_burst_never() {
    let node = Node::new();
    let mut connection = node.connect();
    assert_eq!(connection.send("IDTAG CREATE order QPS 1000 BURST 30").await, "+OK");
    let never = "-IDCOUNT tag 'order' may give at most 30 ids at once on this node: ask for fewer, or raise it with \
                 IDTAG ALTER order BURST n";
    assert_eq!(connection.send("IDMGET order 31\nINCRBY order 31\nIDRANGE order 31").await, [never; 3].join(" "));
    assert_eq!(connection.send("INCRBY order 20").await, ":20");
    let later = "-IDLIMIT tag 'order' may give 1000 ids per second on this node: retry after 5 ms";
    assert_eq!(connection.send("INCRBY order 15\nINCRBY order 10").await, format!("{later} :30"));
    node.clock.advance(Duration::from_millis(5));
    assert_eq!(connection.send("INCRBY order 5").await, ":35");
    let free = connection.send("IDTAG ALTER order QPS 0\nINCRBY order 5000").await;
    assert!(free.starts_with("+OK :"), "{free}");
}

#[tokio::test]
async fn what_one_limit_refuses_costs_the_others_nothing() {
    let bob = UserConfig { qps: 1000, burst: 40, ..user("bob", "~* +@all") };
    let node = Node::limited(vec![bob, user("eve", "~* +@all")], router::Config::default(), Rate::new(1000, 100));
    let (mut bob, mut eve) = (node.connect(), node.connect());
    assert_eq!(
        bob.send("AUTH bob secret\nIDTAG CREATE few QPS 100 BURST 10\nIDTAG CREATE end MAX 5").await,
        "+OK +OK +OK"
    );
    assert_eq!(eve.send("AUTH eve secret").await, "+OK");
    let answer = bob.send(&"IDGET few\n".repeat(1000)).await;
    assert_eq!(
        (answer.matches(':').count() - 990, answer.matches("-IDLIMIT tag 'few' may give 100 ").count()),
        (10, 990)
    );
    assert!(answer.ends_with("retry after 10 ms"), "{answer}");
    // Ids that the engine has not are given back: five of these end the tag.
    assert!(bob.send(&"IDGET end\n".repeat(30)).await.contains(":5 -IDEXHAUSTED "));
    // The burst of bob had 40, less the 15 that he got.
    assert_eq!(bob.send("INCRBY order 25").await, ":25");
    let limited = "-IDLIMIT user 'bob' may draw 1000 ids per second on this node: retry after 7 ms";
    assert_eq!(bob.send("INCRBY order 7").await, limited);
    let never = "-IDCOUNT user 'bob' may draw at most 40 ids at once on this node: ask for fewer";
    assert_eq!(bob.send("INCRBY order 41").await, never);
    // And the node's 100, less the 40 that anybody got.
    assert_eq!(eve.send("INCRBY order 60").await, ":85");
    let limited = "-IDLIMIT this node may give 1000 ids per second: retry after 1 ms";
    assert_eq!(eve.send("IDGET order").await, limited);
    // Who waits for several limits is told the longest.
    assert!(
        bob.send("IDGET few").await.ends_with("tag 'few' may give 100 ids per second on this node: retry after 10 ms")
    );
}

#[tokio::test]
async fn strangers_take_nothing_from_a_tag() {
    let node = Node::with_users(vec![user("bob", "~order +idget"), user("eve", "~other +idget +idtag|create")]);
    let (mut nobody, mut bob, mut eve) = (node.connect(), node.connect(), node.connect());
    bob.send("AUTH bob secret").await;
    assert_eq!(eve.send("AUTH eve secret\nIDTAG CREATE other QPS 1 BURST 2").await, "+OK +OK");
    let own = Alteration { qps: Some(1), burst: Some(2), ..Alteration::default() };
    let order = crate::ids::TagName::new(b"order").expect("a tag");
    node.context.router.create(&order, &router::Wanted { fields: own, ..Default::default() }).await.expect("created");
    for stranger in [&mut nobody, &mut eve] {
        let answer = stranger.send(&"IDGET order\n".repeat(50)).await;
        assert_eq!(answer.matches("-NO").count(), 50, "{answer}");
    }
    assert_eq!(bob.send("IDGET\nIDGET order STR x\nIDGET order x").await.matches("-ERR").count(), 3);
    assert_eq!(bob.send("IDGET order\nIDGET order").await, ":1 :2");
}

#[tokio::test]
async fn idinfo_tells_the_limit_in_force() {
    let node = Node::new();
    let mut connection = node.connect();
    assert_eq!(connection.send("IDTAG CREATE order QPS 500").await, "+OK");
    assert!(connection.send("IDINFO order").await.contains("$3 qps :500 $5 burst :500 "));
    assert_eq!(connection.send("IDTAG ALTER order BURST 40").await, "+OK");
    assert!(connection.send("IDINFO order").await.contains("$3 qps :500 $5 burst :40 "));
    assert_eq!(connection.send("IDTAG ALTER order QPS 0").await, "+OK");
    assert!(connection.send("IDINFO order").await.contains("$3 qps :0 $5 burst :0 "));
    let alone = "-IDCONFLICT BURST is 9 without QPS, so it limits nothing: set both or none";
    assert_eq!(connection.send("IDTAG ALTER order BURST 9\nIDTAG CREATE x BURST 9").await, [alone; 2].join(" "));
}
