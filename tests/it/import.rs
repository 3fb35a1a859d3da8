//! `idgen import`: from real databases and a real redis-server to a running node, as an operator would do it.

use std::time::Instant;

use crate::errors::Redis;
use crate::node::{Node, Setup};
use crate::services::{MariaDb, Postgres};
use crate::wire::{Conn, Value};

/// Leaf's table, as its own script makes it.
const LEAF: &str = "CREATE TABLE leaf_alloc (biz_tag varchar(128) NOT NULL DEFAULT '', max_id bigint NOT NULL DEFAULT 1, \
                    step int NOT NULL, description varchar(256) DEFAULT NULL, \
                    update_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (biz_tag));";

/// Tinyid's, as far as it matters.
const TINYID: &str = "CREATE TABLE tiny_id_info (id bigint NOT NULL PRIMARY KEY, biz_type varchar(63) NOT NULL DEFAULT '', \
                      begin_id bigint NOT NULL DEFAULT 0, max_id bigint NOT NULL DEFAULT 0, step int DEFAULT 0, \
                      delta int NOT NULL DEFAULT 1, remainder int NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 0);";

fn import(setup: &Setup, words: &[&str]) -> (i32, String) {
    setup.run(&[&["import"], words].concat())
}

/// The import, which must go well; what it wrote.
fn imported(setup: &Setup, words: &[&str]) -> String {
    let (code, text) = import(setup, words);
    assert_eq!(code, 0, "{words:?}: {text}");
    text
}

/// All tags that the node has.
fn tags(node: &Node) -> Vec<String> {
    let mut tags: Vec<_> =
        node.connect().call(&["KEYS", "*"]).array().iter().map(|tag| tag.text().to_owned()).collect();
    tags.sort();
    tags
}

fn info(conn: &mut Conn, tag: &str) -> Value {
    conn.call(&["IDINFO", tag])
}

/// The columns of the line that begins with `name`.
fn line<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
    line.unwrap_or_else(|| panic!("no line {name} in\n{text}")).split_whitespace().collect()
}

#[test]
fn leafs_tags_go_on_above_their_last_ids() {
    let database = MariaDb::start(&[]);
    let source = database.dsn("leaf");
    let rows = "INSERT INTO leaf_alloc (biz_tag, max_id, step, description) VALUES ('order', 2001, 2000, 'all orders'), \
                ('pay', 501, 100, NULL), ('used', 701, 100, ''), ('new', 1, 9000000, 'a\\nb'), ('bad tag', 5, 1, ''), \
                ('low', -5, 1, ''), ('top', 9223372036854775807, 1, '');";
    database.sql_in("leaf", &format!("{LEAF} {rows}"));
    let setup = Setup::in_memory();
    let node = setup.start();
    let mut conn = node.connect();
    assert_eq!(conn.call(&["IDTAG", "CREATE", "pay", "START", "10001"]), Value::Simple("OK".into()));
    assert_eq!(conn.call(&["IDGET", "used"]), Value::Int(1));
    let before = (tags(&node), info(&mut conn, "used"));

    let words = ["leaf", "--source", &source];
    let (code, plan) = import(&setup, &words);
    assert_eq!(code, 1, "three are refused: {plan}");
    for text in [
        "create; first id 2002",
        "nothing to do",
        "raise the floor to 701",
        "ids 1 to 701 may have been given twice",
        "its step is not taken over",
        "its description is not taken over",
        "refused: not a tag",
        "refused: -5 is no id",
        "refused: no id would be left",
        "2 to create, 1 to raise, 1 with nothing to do, 3 refused or failed.",
        "an id is given twice at every Leaf grant that follows one of idgen's",
        "run again with --apply",
        "idgen: 3 of 7 counters were refused or failed",
    ] {
        assert!(plan.contains(text), "{text:?} is missing in\n{plan}");
    }
    assert_eq!((tags(&node), info(&mut conn, "used")), before, "a dry run changed something");

    let (code, text) = import(&setup, &[&words[..], &["--apply"]].concat());
    assert!(code == 1 && text.contains("2 created, 1 raised, 1 with nothing to do, 3 refused or failed."), "{text}");
    assert!(!text.contains("Nothing was changed"), "{text}");
    let order = info(&mut conn, "order");
    assert_eq!((order.field("step"), order.field("description").text()), (&Value::Int(2000), "all orders"));
    assert_eq!(tags(&node), ["new", "order", "pay", "used"]);
    // Leaf has given up to 2000, 500 and 700; the tag that was higher already was not lowered.
    for (tag, least) in [("order", 2001), ("used", 701), ("new", 1), ("pay", 10001)] {
        let id = conn.call(&["IDGET", tag]).int();
        assert!(id >= least && id <= least + 1, "{tag}: {id}");
    }

    let (_, text) = import(&setup, &[&words[..], &["--apply"]].concat());
    assert!(text.contains("0 created, 0 raised, 4 with nothing to do, 3 refused or failed."), "{text}");
    let text = imported(
        &setup,
        &[&words[..], &["--match", "o*", "--tag-prefix", "eu.", "--margin", "50", "--apply"]].concat(),
    );
    assert_eq!(line(&text, "order"), ["order", "2001", "eu.order", "-", "created;", "first", "id", "2052"]);
    assert_eq!(database.sql_in("leaf", "SELECT count(*), sum(max_id = 2001) FROM leaf_alloc"), "7\t1", "written");
}

#[test]
fn passwords_come_from_the_environment_and_stand_in_no_text() {
    let database = MariaDb::start(&[]);
    let source = database.dsn("leaf").replace("root@", "reader:geh%40im@");
    let grant = "CREATE USER reader@'%' IDENTIFIED BY 'geh@im'; GRANT SELECT ON leaf.* TO reader@'%';";
    database.sql_in("leaf", &format!("{LEAF} INSERT INTO leaf_alloc VALUES ('a', 5, 1, '', now()); {grant}"));
    let users = "auth:\n  users:\n    - name: mover\n      token_sha256: \
                 [\"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"]\n      acl: \"~* +idinfo +idtag\"\n";
    let setup = Setup::in_memory().config(users).env("IDGEN_IMPORT_SOURCE", &source);
    let node = setup.spawn();
    let ready = || (node.try_http("/readyz")?.0 == 200).then_some(());
    crate::node::eventually("the node is ready", crate::node::PATIENCE, ready);

    let (code, text) = import(&setup, &["leaf"]);
    assert!(code == 1 && text.contains("asks for a login: --user NAME"), "{text}");
    let (code, text) = import(&setup, &["leaf", "--source", &source]);
    assert!(code == 2 && text.contains("a password on the command line") && !text.contains("geh"), "{text}");
    let setup = setup.env("IDGEN_PASSWORD", "wrong");
    let (code, text) = import(&setup, &["leaf", "--user", "mover"]);
    assert!(code == 1 && text.contains("WRONGPASS") && !text.contains("wrong\""), "{text}");
    let setup = setup.env("IDGEN_PASSWORD", "test");
    let text = imported(&setup, &["leaf", "--user", "mover", "--apply"]);
    assert!(text.contains("created; first id 6") && !text.contains("geh") && !text.contains("reader"), "{text}");
    let setup = setup.env("IDGEN_IMPORT_SOURCE", &source.replace("geh", "other"));
    let (code, text) = import(&setup, &["leaf", "--user", "mover"]);
    assert!(code == 1 && text.contains("Access denied") && !text.contains("other"), "{text}");
}

#[test]
fn postgresql_is_read_as_mysql_is() {
    let database = Postgres::start(&[]);
    let source = database.dsn("old");
    for statement in [
        LEAF,
        "INSERT INTO leaf_alloc VALUES ('order', 2001, 2000, 'all orders', now())",
        TINYID,
        "INSERT INTO tiny_id_info VALUES (1, 'dense', 1, 3000, 500, 1, 0, 1), (2, 'odd', 1, 9000, 500, 2, 1, 1)",
        "CREATE TABLE \"Odd \"\"Names\" (\"I d\" numeric, other int)",
        "INSERT INTO \"Odd \"\"Names\" VALUES (41, 7), (42, 8)",
        "CREATE TABLE empty (id bigint)",
    ] {
        database.sql_in("old", statement);
    }
    let setup = Setup::in_memory();
    let node = setup.start();
    let text = imported(&setup, &["leaf", "--source", &source, "--apply"]);
    assert!(text.contains("created; first id 2002"), "{text}");

    let (code, text) = import(&setup, &["tinyid", "--source", &source, "--apply"]);
    assert!(code == 1 && text.contains("created; first id 3001") && text.contains("one of every 2 ids"), "{text}");
    assert_eq!(tags(&node), ["dense", "order"]);
    let text = imported(&setup, &["tinyid", "--source", &source, "--strided", "--apply"]);
    assert!(text.contains("created; first id 9001") && text.contains("import the other databases, too"), "{text}");

    let odd = ["max", "--source", &source, "--table", "public.Odd \"Names", "--column", "I d", "--tag", "row"];
    assert!(imported(&setup, &odd).contains("create; first id 43"));
    let text = imported(&setup, &[&odd[..], &["--apply"]].concat());
    assert!(text.contains("created; first id 43"), "{text}");
    let empty = ["max", "--source", &source, "--table", "empty", "--column", "id", "--tag", "none", "--apply"];
    assert!(imported(&setup, &empty).contains("created; first id 1"));
    let (code, text) = import(&setup, &["max", "--source", &source, "--table", "gone", "--column", "id", "--tag", "x"]);
    assert!(code == 1 && text.contains("does not exist"), "{text}");
    let mut conn = node.connect();
    for (tag, first) in [("order", 2002), ("dense", 3001), ("odd", 9001), ("row", 43), ("none", 1)] {
        assert_eq!(conn.call(&["IDGET", tag]), Value::Int(first), "{tag}");
    }
}

#[test]
fn counters_of_redis_become_tags_and_other_keys_are_passed_over() {
    let redis = Redis::start();
    let mut source = redis.connect();
    for words in [
        &["SET", "seq:order", "41"][..],
        &["SET", "seq:word", "hello"],
        &["SET", "seq:brief", "7", "EX", "1000"],
        &["LPUSH", "seq:list", "1"],
        &["SET", "seq:low", "-3"],
        &["SET", "other", "9"],
        &["INCR", "seq:order"],
    ] {
        assert!(!matches!(source.call(words), Value::Error(_)), "{words:?}");
    }
    let setup = Setup::in_memory();
    let node = setup.start();
    let dsn = format!("redis://{}", redis.addr());
    let words = ["redis", "--source", &dsn, "--match", "seq:*", "--strip-prefix", "seq:", "--apply"];
    let (code, text) = import(&setup, &words);
    assert_eq!(code, 1, "{text}");
    for passed in ["seq:word: not an integer", "seq:brief: it expires", "seq:list: not a string"] {
        assert!(text.contains(&format!("passed over {passed}")), "{passed} is missing in\n{text}");
    }
    assert!(text.contains("refused: -3 is no id"), "{text}");
    assert_eq!(tags(&node), ["order"]);
    assert_eq!(node.connect().call(&["INCR", "order"]), Value::Int(43));
    // The old writer went on, which must be seen.
    assert_eq!(source.call(&["INCRBY", "seq:order", "100"]), Value::Int(142));
    let (_, text) = import(&setup, &words);
    assert!(text.contains("floor raised to 142") && text.contains("ids 43 to 142 may have been given twice"), "{text}");
    assert_eq!(node.connect().call(&["INCR", "order"]), Value::Int(143));

    let far = 5_000_000_000_000_i64;
    source.call(&["SET", "far", &far.to_string()]);
    let (code, text) = import(&setup, &["redis", "--source", &dsn, "--match", "far", "--apply"]);
    assert!(code == 1 && text.contains("--force, if that is meant"), "{text}");
    imported(&setup, &["redis", "--source", &dsn, "--match", "far", "--apply", "--force"]);
    assert_eq!(node.connect().call(&["IDGET", "far"]), Value::Int(far + 1));
}

#[test]
fn only_an_idgen_server_is_written_to() {
    let redis = Redis::start();
    let dsn = format!("redis://{}", redis.addr());
    let setup = Setup::in_memory();
    let (code, text) = import(&setup, &["redis", "--source", &dsn]);
    assert!(code == 1 && text.contains("no answer"), "nobody serves: {text}");
    let (code, text) = import(&setup, &["redis", "--source", &dsn, "--addr", &redis.addr().to_string(), "--apply"]);
    assert!(code == 1 && text.contains("it is not idgen"), "{text}");
}

#[test]
fn two_thousand_tags_are_imported_and_raised_in_reasonable_time() {
    const TAGS: usize = 2000;
    let redis = Redis::start();
    let mut source = redis.connect();
    let setup = Setup::in_memory();
    let node = setup.start();
    let dsn = format!("redis://{}", redis.addr());
    let words = ["redis", "--source", &dsn, "--apply"];
    let start = Instant::now();
    for (round, done) in ["2000 created, 0 raised", "0 created, 2000 raised", "0 created, 0 raised"].iter().enumerate()
    {
        let value = 1000 * (round.min(1) + 1);
        let mut set = vec!["MSET".to_owned()];
        set.extend((0..TAGS).flat_map(|at| [format!("tag:{at}"), (value + at).to_string()]));
        assert_eq!(source.call(&set.iter().map(String::as_str).collect::<Vec<_>>()), Value::Simple("OK".into()));
        let text = imported(&setup, &words);
        assert!(text.contains(done), "round {round}: {text}");
    }
    assert!(start.elapsed().as_secs() < 60, "it took {:?}", start.elapsed());
    let mut conn = node.connect();
    for at in [0, 1, 999, 1999] {
        let id = conn.call(&["IDGET", &format!("tag:{at}")]).int();
        assert_eq!(id, 2001 + at, "tag:{at}");
    }
    // Sixty-four connections at most, and none of them stays.
    assert_eq!(node.metric("idgen_connections"), Some(1.0));
}
