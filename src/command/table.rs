//! The command table: every command as one row of data, in groups. The rows that draw ids stand first.

use std::fmt::Write as _;

use super::idtag::Change;
use super::spec::{
    ADMIN, Argument, FAST, IN_MULTI, Kind, LOADING, NO_AUTH, NO_MULTI, PUBSUB, READONLY, SUBSCRIBED, Spec, WRITE, spec,
};
use super::{
    acl, auth, client, cluster, config, hello, idnode, info, introspect, keyspace, latency, ping, pubsub, server,
    slowlog, transaction,
};

/// The place of `IDGET` in the table.
pub(super) const IDGET: usize = 0;

/// The place of `INCR` in the table.
pub(super) const INCR: usize = 3;

const OURS: &str = "0.1.0";
const TAG: Argument = Argument::TAG;
const STR: Argument = Argument::flag("STR");
const TRACEPARENT: Argument = Argument::text("value").after("TRACEPARENT");
const COUNT: Argument = Argument::number("n");
const CHANGING: &[&str] = &["nondeterministic_output"];

const DEFINITION: &[Argument] = &[
    TAG,
    Argument::number("step").after("STEP"),
    Argument::number("step").after("MINSTEP"),
    Argument::number("step").after("MAXSTEP"),
    Argument::number("id").after("MAX"),
    Argument::number("ids").after("QPS"),
    Argument::number("ids").after("BURST"),
    Argument::text("yes|no").after("CRITICAL"),
    Argument::text("text").after("DESC"),
];

const CREATION: &[Argument] = &[
    TAG,
    Argument::text("segment|snowflake").after("ENGINE"),
    Argument::text("node|strict").after("ORDER"),
    Argument::number("step").after("STEP"),
    Argument::number("step").after("MINSTEP"),
    Argument::number("step").after("MAXSTEP"),
    Argument::number("first").after("START"),
    Argument::number("id").after("MAX"),
    Argument::number("ids").after("QPS"),
    Argument::number("ids").after("BURST"),
    Argument::text("yes|no").after("CRITICAL"),
    Argument::text("text").after("DESC"),
];

#[rustfmt::skip] // one row a command, as a table
const IDS: &[Spec] = &[
    spec("idget", -2, WRITE | FAST, "idgen", OURS, "Gives one id of a tag.", Kind::IdGet).tag(1).args(&[TAG, STR, TRACEPARENT]).tips(CHANGING),
    spec("idmget", -3, WRITE | FAST, "idgen", OURS, "Gives n ids of a tag, increasing; all of them or an error.", Kind::IdMget).tag(1).args(&[TAG, COUNT, STR, TRACEPARENT]).tips(CHANGING).complexity("O(N) with N the number of ids"),
    spec("idrange", -3, WRITE | FAST, "idgen", OURS, "Gives n ids of a tag as runs: first and last of each, inclusive.", Kind::IdRange).tag(1).args(&[TAG, COUNT, STR, TRACEPARENT]).tips(CHANGING),
    spec("incr", 2, WRITE | FAST, "string", "1.0.0", "Gives one id of a tag, as IDGET does.", Kind::Incr).tag(1).args(&[TAG]).tips(CHANGING),
    spec("incrby", 3, WRITE | FAST, "string", "1.0.0", "Gives n consecutive ids of a tag: the reply is the last of them.", Kind::IncrBy).tag(1).args(&[TAG, COUNT]).tips(CHANGING),
    spec("iddecode", -2, READONLY | FAST, "idgen", OURS, "Tells the parts of a Snowflake id.", Kind::IdDecode).tag(2).args(&[Argument::number("id"), TAG.optional()]),
    spec("idinfo", 2, READONLY | FAST, "idgen", OURS, "Tells everything that is known of a tag.", Kind::IdInfo).tag(1).args(&[TAG]).tips(CHANGING),
    spec("idtag", -2, 0, "", OURS, "Creates and changes tags.", Kind::Container),
    spec("idtag|create", -3, WRITE | ADMIN, "idgen", OURS, "Creates a tag; again with the same options is fine.", Kind::IdTag(Change::Create)).tag(2).args(CREATION),
    spec("idtag|alter", -5, WRITE | ADMIN, "idgen", OURS, "Changes a tag; its engine, order and start stay.", Kind::IdTag(Change::Alter)).tag(2).args(DEFINITION),
    spec("idtag|floor", -4, WRITE | ADMIN, "idgen", OURS, "Makes later ids of a tag larger than n.", Kind::IdTag(Change::Floor)).tag(2).args(&[TAG, COUNT, Argument::flag("FORCE")]),
    spec("idtag|retire", 3, WRITE | ADMIN, "idgen", OURS, "Ends a tag for ever.", Kind::IdTag(Change::Retire)).tag(2).args(&[TAG]),
    spec("idtag|list", -2, READONLY, "idgen", OURS, "Lists the tags, as SCAN does.", Kind::Plain(keyspace::idtag_list)).args(&[Argument::text("pattern").after("MATCH"), Argument::number("count").after("COUNT"), Argument::number("cursor").after("CURSOR")]).tips(CHANGING).complexity("O(1) for each call, O(N) for all tags"),
    spec("idtag|help", 2, LOADING, "idgen", OURS, "Lists the subcommands.", Kind::Plain(introspect::help)),
    spec("idworkers", 1, READONLY | ADMIN, "idgen", OURS, "Lists the worker ids, their owners and bounds.", Kind::IdWorkers).tips(CHANGING).complexity("O(N) with N the number of worker ids"),
    spec("idnode", 1, READONLY | ADMIN | LOADING, "idgen", OURS, "Tells the state of this node.", Kind::Plain(idnode::idnode)).tips(CHANGING),
];

#[rustfmt::skip] // one row a command, as a table
const KEYSPACE: &[Spec] = &[
    spec("get", 2, READONLY | FAST, "string", "1.0.0", "Tells the last id that this node has given for a tag.", Kind::Plain(keyspace::get)).tag(1).args(&[TAG]),
    spec("mget", -2, READONLY | FAST, "string", "1.0.0", "Tells the last ids that this node has given for tags.", Kind::Plain(keyspace::mget)).all_tags().args(&[TAG.repeated()]).complexity("O(N) with N the number of tags"),
    spec("strlen", 2, READONLY | FAST, "string", "2.2.0", "Tells how many digits the last id of a tag has.", Kind::Plain(keyspace::strlen)).tag(1).args(&[TAG]),
    spec("exists", -2, READONLY | FAST, "keyspace", "1.0.0", "Counts which of these tags this node knows.", Kind::Plain(keyspace::exists)).all_tags().args(&[TAG.repeated()]).complexity("O(N) with N the number of tags"),
    spec("type", 2, READONLY | FAST, "keyspace", "1.0.0", "Says string for a tag that this node knows.", Kind::Plain(keyspace::kind)).tag(1).args(&[TAG]),
    spec("ttl", 2, READONLY | FAST, "keyspace", "1.0.0", "Says -1 for a tag that this node knows: tags never expire.", Kind::Plain(keyspace::ttl)).tag(1).args(&[TAG]),
    spec("pttl", 2, READONLY | FAST, "keyspace", "2.6.0", "Says -1 for a tag that this node knows: tags never expire.", Kind::Plain(keyspace::ttl)).tag(1).args(&[TAG]),
    spec("scan", -2, READONLY, "keyspace", "2.8.0", "Lists the tags, some at a time.", Kind::Plain(keyspace::scan)).args(&[Argument::number("cursor"), Argument::text("pattern").after("MATCH"), Argument::number("count").after("COUNT"), Argument::text("type").after("TYPE")]).tips(&["nondeterministic_output", "request_policy:special"]).complexity("O(1) for each call, O(N) for all tags"),
    spec("keys", 2, READONLY, "dangerous", "1.0.0", "Lists all tags that match a pattern.", Kind::Plain(keyspace::keys)).args(&[Argument::text("pattern")]).tips(&["nondeterministic_output_order"]).complexity("O(N) with N the number of tags"),
    spec("dbsize", 1, READONLY | FAST, "keyspace", "1.0.0", "Counts the tags that this node knows.", Kind::Plain(keyspace::dbsize)),
];

#[rustfmt::skip] // one row a command, as a table
const CONNECTION: &[Spec] = &[
    spec("ping", -1, FAST | SUBSCRIBED, "connection", "1.0.0", "Answers PONG, or the message.", Kind::Plain(ping::ping)).args(&[Argument::text("message").optional()]),
    spec("echo", 2, LOADING | FAST, "connection", "1.0.0", "Answers the message.", Kind::Plain(ping::echo)).args(&[Argument::text("message")]),
    spec("hello", -1, LOADING | FAST | NO_AUTH, "connection", "6.0.0", "Chooses the version of the protocol, and logs in.", Kind::Plain(hello::hello)).args(&[Argument::number("protover").optional(), Argument::text("username password").after("AUTH"), Argument::text("clientname").after("SETNAME")]),
    spec("auth", -2, LOADING | FAST | NO_AUTH, "connection", "1.0.0", "Logs in.", Kind::Plain(auth::auth)).args(&[Argument::text("username").optional(), Argument::text("password")]).complexity("O(N) with N the number of users"),
    spec("select", 2, LOADING | FAST, "connection", "1.0.0", "Accepts 0 to 15; all of them are the same tags.", Kind::Plain(ping::select)).args(&[Argument::number("index")]),
    spec("quit", -1, LOADING | FAST | NO_AUTH | IN_MULTI | SUBSCRIBED, "connection", "1.0.0", "Closes the connection.", Kind::Plain(ping::quit)),
    spec("reset", 1, LOADING | FAST | NO_AUTH | IN_MULTI | SUBSCRIBED, "connection", "6.2.0", "Puts the connection back to how it was opened.", Kind::Plain(ping::reset)),
    spec("client", -2, 0, "", "2.4.0", "Tells about connections.", Kind::Container),
    spec("client|id", 2, LOADING, "connection", "5.0.0", "Tells the number of this connection.", Kind::Plain(client::id)),
    spec("client|setname", 3, LOADING, "connection", "2.6.9", "Names this connection.", Kind::Plain(client::setname)).args(&[Argument::text("name")]),
    spec("client|getname", 2, LOADING, "connection", "2.6.9", "Tells the name of this connection.", Kind::Plain(client::getname)),
    spec("client|setinfo", 4, LOADING, "connection", "7.2.0", "Tells the server the client's library and its version.", Kind::Plain(client::setinfo)).args(&[Argument::text("LIB-NAME|LIB-VER"), Argument::text("value")]),
    spec("client|info", 2, LOADING, "connection", "6.2.0", "Tells about this connection.", Kind::Plain(client::info)).tips(CHANGING),
    spec("client|list", -2, ADMIN | LOADING, "connection", "2.4.0", "Lists the connections.", Kind::Plain(client::list)).args(&[Argument::text("type").after("TYPE"), Argument::number("id").after("ID").repeated()]).tips(CHANGING).complexity("O(N) with N the number of connections"),
    spec("client|kill", -3, ADMIN | LOADING, "connection", "2.4.0", "Closes connections.", Kind::Plain(client::kill)).args(&[Argument::number("id").after("ID"), Argument::text("type").after("TYPE"), Argument::text("username").after("USER"), Argument::text("ip:port").after("ADDR"), Argument::text("ip:port").after("LADDR"), Argument::text("yes|no").after("SKIPME"), Argument::number("seconds").after("MAXAGE")]).complexity("O(N) with N the number of connections"),
    spec("client|reply", 3, LOADING | NO_MULTI, "connection", "3.2.0", "Switches replies on and off.", Kind::Plain(client::reply)).args(&[Argument::text("ON|OFF|SKIP")]),
    spec("client|unblock", -3, ADMIN | LOADING, "connection", "5.0.0", "Answers 0: no command here blocks a connection.", Kind::Plain(client::unblock)).args(&[Argument::number("id")]),
    spec("client|no-evict", 3, ADMIN | LOADING, "connection", "7.0.0", "Accepted: no connection is ever evicted.", Kind::Plain(client::on_or_off)).args(&[Argument::text("ON|OFF")]),
    spec("client|no-touch", 3, LOADING, "connection", "7.2.0", "Accepted: tags have no time of last use.", Kind::Plain(client::on_or_off)).args(&[Argument::text("ON|OFF")]),
    spec("client|tracking", -3, LOADING, "connection", "6.0.0", "Accepts ON OPTIN and OFF; nothing is ever cached, since tags change with every id.", Kind::Plain(client::tracking)).args(&[Argument::text("ON|OFF"), Argument::flag("OPTIN"), Argument::flag("NOLOOP")]),
    spec("client|trackinginfo", 2, LOADING, "connection", "6.2.0", "Tells the state of tracking.", Kind::Plain(client::trackinginfo)),
    spec("client|getredir", 2, LOADING, "connection", "6.0.0", "Tells where invalidations go.", Kind::Plain(client::getredir)),
    spec("client|caching", 3, LOADING, "connection", "6.0.0", "Refuses YES.", Kind::Plain(client::caching)).args(&[Argument::text("YES|NO")]),
    spec("client|capa", -3, LOADING, "connection", "8.0.0", "Accepts what a client can do; nothing of it is used.", Kind::Plain(client::capa)).args(&[Argument::text("capability").repeated()]),
    spec("client|help", 2, LOADING, "connection", "5.0.0", "Lists the subcommands.", Kind::Plain(introspect::help)),
];

#[rustfmt::skip] // one row a command, as a table
const TRANSACTIONS: &[Spec] = &[
    spec("multi", 1, LOADING | FAST | IN_MULTI, "transaction", "1.2.0", "Begins a transaction.", Kind::Plain(transaction::multi)),
    spec("exec", 1, LOADING | IN_MULTI, "transaction", "1.2.0", "Carries out the queued commands; ids are drawn now.", Kind::Exec).complexity("O(N) with N the number of commands"),
    spec("discard", 1, LOADING | FAST | IN_MULTI, "transaction", "2.0.0", "Gives the transaction up.", Kind::Plain(transaction::discard)),
    spec("watch", -2, LOADING | FAST | IN_MULTI, "transaction", "2.2.0", "Gives the next transaction up when a tag has given ids before it.", Kind::Plain(transaction::watch)).all_tags().args(&[TAG.repeated()]),
    spec("unwatch", 1, LOADING | FAST, "transaction", "2.2.0", "Watches no tag.", Kind::Plain(transaction::unwatch)),
];

#[rustfmt::skip] // one row a command, as a table
const PUBLISHING: &[Spec] = &[
    spec("subscribe", -2, PUBSUB | LOADING | NO_MULTI | SUBSCRIBED, "", "2.0.0", "Accepted; nothing is ever published.", Kind::Messages(pubsub::subscribe)).args(&[Argument::text("channel").repeated()]),
    spec("unsubscribe", -1, PUBSUB | LOADING | NO_MULTI | SUBSCRIBED, "", "2.0.0", "Ends subscriptions.", Kind::Messages(pubsub::unsubscribe)).args(&[Argument::text("channel").optional().repeated()]),
    spec("psubscribe", -2, PUBSUB | LOADING | NO_MULTI | SUBSCRIBED, "", "2.0.0", "Accepted; nothing is ever published.", Kind::Messages(pubsub::psubscribe)).args(&[Argument::text("pattern").repeated()]),
    spec("punsubscribe", -1, PUBSUB | LOADING | NO_MULTI | SUBSCRIBED, "", "2.0.0", "Ends subscriptions.", Kind::Messages(pubsub::punsubscribe)).args(&[Argument::text("pattern").optional().repeated()]),
    spec("publish", 3, PUBSUB | LOADING | FAST, "", "2.0.0", "Answers 0: messages reach nobody.", Kind::Plain(pubsub::publish)).args(&[Argument::text("channel"), Argument::text("message")]),
    spec("pubsub", -2, 0, "", "2.8.0", "Tells about subscriptions.", Kind::Container),
    spec("pubsub|channels", -2, PUBSUB | LOADING, "", "2.8.0", "Lists channels with subscribers that messages reach: none.", Kind::Plain(pubsub::channels)).args(&[Argument::text("pattern").optional()]),
    spec("pubsub|numsub", -2, PUBSUB | LOADING, "", "2.8.0", "Counts the subscribers that messages reach: none.", Kind::Plain(pubsub::numsub)).args(&[Argument::text("channel").optional().repeated()]),
    spec("pubsub|numpat", 2, PUBSUB | LOADING, "", "2.8.0", "Counts the patterns that messages reach: none.", Kind::Plain(pubsub::numpat)),
    spec("pubsub|help", 2, LOADING, "", "6.2.0", "Lists the subcommands.", Kind::Plain(introspect::help)),
];

#[rustfmt::skip] // one row a command, as a table
const SERVER: &[Spec] = &[
    spec("command", -1, LOADING, "connection", "2.8.13", "Tells about all commands.", Kind::Plain(introspect::command)).tips(&["nondeterministic_output_order"]).complexity("O(N) with N the number of commands"),
    spec("command|count", 2, LOADING, "connection", "2.8.13", "Counts the commands.", Kind::Plain(introspect::count)),
    spec("command|info", -2, LOADING, "connection", "2.8.13", "Tells about some commands.", Kind::Plain(introspect::info)).args(&[Argument::text("command").optional().repeated()]),
    spec("command|docs", -2, LOADING, "connection", "7.0.0", "Tells what commands are for.", Kind::Plain(introspect::docs)).args(&[Argument::text("command").optional().repeated()]),
    spec("command|list", -2, LOADING, "connection", "7.0.0", "Lists the names of commands.", Kind::Plain(introspect::list)).args(&[Argument::text("ACLCAT|PATTERN|MODULE value").after("FILTERBY")]),
    spec("command|getkeys", -4, LOADING, "connection", "2.8.13", "Tells which arguments of a command are tags.", Kind::Plain(introspect::getkeys)).args(&[Argument::text("command"), Argument::text("arg").repeated()]),
    spec("command|help", 2, LOADING, "connection", "5.0.0", "Lists the subcommands.", Kind::Plain(introspect::help)),
    spec("info", -1, LOADING, "dangerous", "1.0.0", "Tells the state of the server.", Kind::Plain(info::info)).args(&[Argument::text("section").optional().repeated()]).tips(CHANGING),
    spec("time", 1, LOADING | FAST, "", "2.6.0", "Tells the time: seconds and microseconds.", Kind::Plain(server::time)).tips(CHANGING),
    spec("role", 1, LOADING | FAST, "admin", "2.8.12", "Says master: every node answers for all tags.", Kind::Plain(server::role)),
    spec("wait", 3, 0, "connection", "3.0.0", "Answers 0: ids need no replicas.", Kind::Plain(server::wait)).args(&[Argument::number("replicas"), Argument::number("timeout")]),
    spec("lolwut", -1, READONLY | FAST, "", "5.0.0", "Says what this is.", Kind::Plain(server::lolwut)),
    spec("config", -2, 0, "", "2.0.0", "Tells the settings.", Kind::Container),
    spec("config|get", -3, ADMIN | LOADING, "", "2.0.0", "Tells settings whose names match.", Kind::Plain(config::get)).args(&[Argument::text("pattern").repeated()]).complexity("O(N) with N the number of settings"),
    spec("config|set", -4, ADMIN | LOADING, "", "2.0.0", "Refused: settings come from the configuration at start.", Kind::Plain(config::set)).args(&[Argument::text("name"), Argument::text("value")]),
    spec("config|resetstat", 2, ADMIN | LOADING, "", "2.0.0", "Forgets what INFO counts about commands and errors.", Kind::Plain(config::resetstat)),
    spec("config|help", 2, LOADING, "", "5.0.0", "Lists the subcommands.", Kind::Plain(introspect::help)),
    spec("slowlog", -2, 0, "", "2.2.12", "Tells about slow commands.", Kind::Container),
    spec("slowlog|get", -2, ADMIN | LOADING, "", "2.2.12", "Lists nothing: slow commands are not logged.", Kind::Plain(slowlog::get)).args(&[Argument::number("count").optional()]),
    spec("slowlog|len", 2, ADMIN | LOADING, "", "2.2.12", "Answers 0: slow commands are not logged.", Kind::Plain(slowlog::len)),
    spec("slowlog|reset", 2, ADMIN | LOADING, "", "2.2.12", "Accepted: there is nothing to forget.", Kind::Plain(slowlog::reset)),
    spec("slowlog|help", 2, LOADING, "", "6.2.0", "Lists the subcommands.", Kind::Plain(introspect::help)),
    spec("latency", -2, 0, "", "2.8.13", "Tells how long commands take.", Kind::Container),
    spec("latency|histogram", -2, ADMIN | LOADING, "", "7.0.0", "Tells how often commands took how long.", Kind::Plain(latency::histogram)).args(&[Argument::text("command").optional().repeated()]).tips(CHANGING),
    spec("latency|latest", 2, ADMIN | LOADING, "", "2.8.13", "Lists nothing: latency events are not monitored.", Kind::Plain(latency::none)),
    spec("latency|history", 3, ADMIN | LOADING, "", "2.8.13", "Lists nothing: latency events are not monitored.", Kind::Plain(latency::none)).args(&[Argument::text("event")]),
    spec("latency|reset", -2, ADMIN | LOADING, "", "2.8.13", "Answers 0, the number of events forgotten: none are monitored.", Kind::Plain(latency::reset)).args(&[Argument::text("event").optional().repeated()]),
    spec("latency|help", 2, LOADING, "", "2.8.13", "Lists the subcommands.", Kind::Plain(introspect::help)),
    spec("acl", -2, 0, "", "6.0.0", "Tells about users and rights.", Kind::Container),
    spec("acl|whoami", 2, LOADING, "", "6.0.0", "Tells the user of this connection.", Kind::Plain(acl::whoami)),
    spec("acl|users", 2, ADMIN | LOADING, "", "6.0.0", "Lists the names of the users.", Kind::Plain(acl::users)).complexity("O(N) with N the number of users"),
    spec("acl|list", 2, ADMIN | LOADING, "", "6.0.0", "Lists the users and their rules.", Kind::Plain(acl::list)).complexity("O(N) with N the number of users"),
    spec("acl|getuser", 3, ADMIN | LOADING, "", "6.0.0", "Tells the rules of a user.", Kind::Plain(acl::getuser)).args(&[Argument::text("username")]),
    spec("acl|cat", -2, LOADING, "", "6.0.0", "Lists the categories, or the commands of one.", Kind::Plain(acl::cat)).args(&[Argument::text("category").optional()]),
    spec("acl|dryrun", -4, ADMIN | LOADING, "", "7.0.0", "Tells whether a user may use a command.", Kind::Plain(acl::dryrun)).args(&[Argument::text("username"), Argument::text("command"), Argument::text("arg").optional().repeated()]),
    spec("acl|genpass", -2, LOADING, "", "6.0.0", "Gives a random token.", Kind::Plain(acl::genpass)).args(&[Argument::number("bits").optional()]),
    spec("acl|help", 2, LOADING, "", "6.0.0", "Lists the subcommands.", Kind::Plain(introspect::help)),
    spec("memory", -2, 0, "", "4.0.0", "Tells about memory.", Kind::Container),
    spec("memory|stats", 2, LOADING, "", "4.0.0", "Tells how much memory the process has.", Kind::Plain(server::memory_stats)).tips(CHANGING),
    spec("memory|help", 2, LOADING, "", "4.0.0", "Lists the subcommands.", Kind::Plain(introspect::help)),
    spec("module", -2, 0, "", "4.0.0", "Tells about modules.", Kind::Container),
    spec("module|list", 2, ADMIN | LOADING, "", "4.0.0", "Lists nothing: there are no modules.", Kind::Plain(server::module_list)),
    spec("module|help", 2, LOADING, "", "5.0.0", "Lists the subcommands.", Kind::Plain(introspect::help)),
];

#[rustfmt::skip] // one row a command, as a table
const CLUSTER: &[Spec] = &[
    spec("cluster", -2, 0, "", "3.0.0", "Refused: every node answers for all tags.", Kind::Container),
    spec("cluster|info", 2, LOADING, "", "3.0.0", "Refused: this is no Redis Cluster.", Kind::Plain(cluster::off)),
    spec("cluster|nodes", 2, LOADING, "", "3.0.0", "Refused: this is no Redis Cluster.", Kind::Plain(cluster::off)),
    spec("cluster|slots", 2, LOADING, "", "3.0.0", "Refused: this is no Redis Cluster.", Kind::Plain(cluster::off)),
    spec("cluster|shards", 2, LOADING, "", "7.0.0", "Refused: this is no Redis Cluster.", Kind::Plain(cluster::off)),
    spec("cluster|myid", 2, LOADING, "", "3.0.0", "Refused: this is no Redis Cluster.", Kind::Plain(cluster::off)),
    spec("cluster|keyslot", 3, LOADING, "", "3.0.0", "Refused: this is no Redis Cluster.", Kind::Plain(cluster::off)).args(&[Argument::text("key")]),
    spec("cluster|countkeysinslot", 3, LOADING, "", "3.0.0", "Refused: this is no Redis Cluster.", Kind::Plain(cluster::off)).args(&[Argument::number("slot")]),
    spec("cluster|help", 2, LOADING, "", "5.0.0", "Lists the subcommands.", Kind::Plain(introspect::help)),
    spec("readonly", 1, LOADING | FAST, "connection", "3.0.0", "Refused: this is no Redis Cluster.", Kind::Plain(cluster::off)),
    spec("readwrite", 1, LOADING | FAST, "connection", "3.0.0", "Refused: this is no Redis Cluster.", Kind::Plain(cluster::off)),
    spec("asking", 1, LOADING | FAST, "connection", "3.0.0", "Refused: this is no Redis Cluster.", Kind::Plain(cluster::off)),
];

const GROUPS: [(&str, &[Spec]); 7] = [
    ("idgen", IDS),
    ("generic", KEYSPACE),
    ("connection", CONNECTION),
    ("transactions", TRANSACTIONS),
    ("pubsub", PUBLISHING),
    ("server", SERVER),
    ("cluster", CLUSTER),
];

const COUNT_OF_ROWS: usize = {
    let (mut count, mut group) = (0, 0);
    while group < GROUPS.len() {
        count += GROUPS[group].1.len();
        group += 1;
    }
    count
};

/// All commands and subcommands; each row knows its place.
pub(super) static TABLE: [Spec; COUNT_OF_ROWS] = {
    let mut table = [IDS[0]; COUNT_OF_ROWS];
    let (mut place, mut group) = (0, 0);
    while group < GROUPS.len() {
        let (name, rows) = GROUPS[group];
        let mut row = 0;
        while row < rows.len() {
            table[place] = rows[row].placed(name, place);
            place += 1;
            row += 1;
        }
        group += 1;
    }
    table
};

const NEW_TAG: &str = "use IDTAG CREATE for a tag, IDTAG FLOOR to raise its ids";
const NO_END: &str = "a tag is ended for ever with IDTAG RETIRE";
const NO_EXPIRY: &str = "tags never expire; one is ended with IDTAG RETIRE";
const ONLY_UP: &str = "use IDGET, INCR or INCRBY with a positive number";

/// Commands of Redis that would take ids back or erase them, and what to use instead. They are no rows of the table, so
/// `COMMAND` does not list them; they are told apart from unknown ones because somebody has meant something by them.
pub(super) static REFUSED: [(&str, &str); 33] = [
    ("append", NEW_TAG),
    ("bitfield", NEW_TAG),
    ("bitop", NEW_TAG),
    ("copy", NEW_TAG),
    ("decr", ONLY_UP),
    ("decrby", ONLY_UP),
    ("del", NO_END),
    ("expire", NO_EXPIRY),
    ("expireat", NO_EXPIRY),
    ("flushall", NO_END),
    ("flushdb", NO_END),
    ("getdel", "use GET to read the last id"),
    ("getex", "use GET to read the last id"),
    ("getset", "use GET to read the last id, IDTAG FLOOR to raise the next ones"),
    ("incrbyfloat", ONLY_UP),
    ("migrate", NO_END),
    ("move", "all database numbers are the same tags"),
    ("mset", NEW_TAG),
    ("msetnx", NEW_TAG),
    ("persist", NO_EXPIRY),
    ("pexpire", NO_EXPIRY),
    ("pexpireat", NO_EXPIRY),
    ("psetex", NEW_TAG),
    ("rename", "make another tag with IDTAG CREATE and end this one with IDTAG RETIRE"),
    ("renamenx", "make another tag with IDTAG CREATE and end this one with IDTAG RETIRE"),
    ("restore", NEW_TAG),
    ("set", NEW_TAG),
    ("setbit", NEW_TAG),
    ("setex", NEW_TAG),
    ("setnx", NEW_TAG),
    ("setrange", NEW_TAG),
    ("swapdb", "all database numbers are the same tags"),
    ("unlink", NO_END),
];

/// The refused command that `name` is, in any case, and what to use instead.
pub(super) fn refusal(name: &[u8]) -> Option<(&'static str, &'static str)> {
    REFUSED.iter().find(|(command, _)| name.eq_ignore_ascii_case(command.as_bytes())).copied()
}

/// The table of commands as the README shows it: one line a command or subcommand, containers and `HELP` left out.
#[must_use]
pub fn table_markdown() -> String {
    let mut text = String::from("| command | what it does |\n|---|---|\n");
    for row in &TABLE {
        if !matches!(row.kind, Kind::Container) && !row.name.ends_with("|help") {
            let usage = row.usage().replace('|', "\\|");
            let _ = writeln!(text, "| `{usage}` | {} |", row.summary);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::spec::{MAX_NAME_LEN, find, rows};
    use super::*;

    #[test]
    fn the_readme_shows_this_table() {
        let readme = include_str!("../../README.md");
        let expected = table_markdown();
        let shown =
            readme.split_once("<!-- commands -->\n").and_then(|(_, rest)| rest.split_once("<!-- /commands -->"));
        let shown = shown.map(|(table, _)| table.trim());
        assert!(shown == Some(expected.trim()), "put this between the marks of README.md:\n{expected}");
    }

    #[test]
    fn every_row_stands_once_and_is_found_by_its_name() {
        let names: BTreeSet<&str> = TABLE.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), TABLE.len());
        for (place, row) in TABLE.iter().enumerate() {
            assert_eq!(row.index(), place);
            assert!(row.name.len() <= MAX_NAME_LEN);
            assert_eq!(find(row.name.as_bytes()).map(Spec::index), Some(place), "{}", row.name);
            assert_eq!(find(row.name.to_ascii_uppercase().as_bytes()).map(Spec::index), Some(place), "{}", row.name);
            assert_eq!(refusal(row.name.as_bytes()), None, "{} is refused as well", row.name);
        }
        assert_eq!((TABLE[IDGET].name, TABLE[INCR].name), ("idget", "incr"));
    }

    #[test]
    fn the_rows_that_draw_ids_stand_first() {
        let first = rows().iter().take_while(|row| row.draws_ids()).count();
        assert_eq!(first, rows().iter().filter(|row| row.draws_ids()).count());
        assert_eq!(first, 5);
    }

    #[test]
    fn arity_keys_and_arguments_agree() {
        for row in &TABLE {
            let words = i32::try_from(row.name.split('|').count()).expect("a word or two");
            assert!(row.arity.abs() >= words, "{}", row.name);
            if row.arity > 0 && row.name != "auth" {
                assert!(row.arguments.iter().all(|argument| !argument.optional && !argument.multiple), "{}", row.name);
                let told = i32::try_from(row.arguments.len()).expect("few");
                assert_eq!(row.arity, words + told, "{}", row.name);
            }
            let tag = row.arguments.iter().position(|argument| argument.kind == "key");
            let first = row.keys.map(|keys| keys.first);
            assert_eq!(first, tag.map(|place| words + i32::try_from(place).expect("few")), "{}", row.name);
        }
    }

    #[test]
    fn rows_are_documented() {
        for row in &TABLE {
            assert!(row.summary.ends_with('.') && !row.summary.contains('\n'), "{}", row.name);
            assert!(!row.since.is_empty() && !row.group.is_empty() && !row.complexity.is_empty(), "{}", row.name);
            assert!(!(row.has(WRITE) && row.has(READONLY)), "{}", row.name);
        }
    }

    #[test]
    fn subcommands_have_a_container_with_help() {
        for row in &TABLE {
            if let (container, Some(_)) = row.parts() {
                assert!(find(container.as_bytes()).is_some(), "{}", row.name);
                assert!(find(format!("{container}|help").as_bytes()).is_some(), "{container}");
            }
        }
    }
}
