//! The layers, the rules across rooms, and the files of the project.

use std::path::{Path, PathBuf};

use serde::de::{self, Deserialize, Deserializer};

use super::*;

const NOW: Wall = Wall(1_800_000_000_000_000_000);

/// Sources without any layer, and without what this machine may have.
fn none() -> Sources {
    Sources { default_file: "/nonexistent/idgen.yaml".into(), ..Sources::default() }
}

fn with_file(name: &str, text: &str) -> (tempfile::TempDir, Sources) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("written");
    (folder, Sources { file: Some(path), ..none() })
}

fn load_yaml(text: &str) -> Result<Config, Error> {
    let (_folder, sources) = with_file("idgen.yaml", text);
    Config::load(&sources, NOW)
}

fn with_variables<const N: usize>(variables: [(&str, &str); N]) -> Result<Config, Error> {
    Config::load(&Sources { environment: variables.into(), ..none() }, NOW)
}

fn flag(key: &str, value: &str) -> (String, String, String) {
    ("--set".into(), key.into(), value.into())
}

/// The problems of a configuration that must be refused, as text.
fn refused(result: Result<Config, Error>) -> String {
    result.map(|_| ()).expect_err("refused").to_string()
}

/// `text` says each of `words`.
fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in:\n{text}");
    }
}

/// Learns the names of a struct's fields from its deserialization.
struct FieldNames<'a>(&'a mut Vec<&'static str>);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = de::value::Error;

    fn deserialize_struct<V: de::Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.extend(fields);
        Err(de::Error::custom("the names are all that is wanted"))
    }

    fn deserialize_any<V: de::Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("not a struct"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

fn fields<T: for<'de> Deserialize<'de>>() -> Vec<&'static str> {
    let mut names = Vec::new();
    assert!(T::deserialize(FieldNames(&mut names)).is_err());
    names
}

#[test]
fn the_file_of_defaults_has_the_keys_and_values_of_the_program() {
    let sections = [
        ("server", fields::<server::Config>()),
        ("admin", fields::<admin::Config>()),
        ("auth", fields::<acl::Config>()),
        ("snowflake", fields::<engine::snowflake::Config>()),
        ("segment", fields::<engine::segment::Config>()),
        ("database", fields::<store::Config>()),
        ("rate_limit", fields::<crate::limit::Config>()),
        ("tags", fields::<router::Config>()),
        ("log", fields::<telemetry::Config>()),
    ];
    assert_eq!(fields::<Sections>(), sections.each_ref().map(|(name, _)| *name), "a section is not looked at");
    let program: Vec<_> =
        sections.iter().flat_map(|(name, keys)| keys.iter().map(move |key| format!("{name}.{key}"))).collect();
    let file: Vec<_> = defaults::keys().iter().map(|key| key.name.clone()).collect();
    assert_eq!(file, program, "left: config/idgen.yaml; right: the fields of the rooms' Configs");
    let loaded = load_yaml(DEFAULTS).expect("the defaults are valid");
    assert_eq!(format!("{:#?}", loaded.sections), format!("{:#?}", Sections::default()));
}

#[test]
fn the_examples_can_be_used() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/examples");
    let paths: Vec<PathBuf> =
        folder.read_dir().expect("the folder").map(|entry| entry.expect("an entry").path()).collect();
    assert!(paths.len() >= 3, "{paths:?}");
    for path in paths {
        let loaded = Config::load(&Sources { file: Some(path.clone()), ..none() }, NOW);
        assert!(loaded.is_ok(), "{}: {}", path.display(), refused(loaded));
    }
}

#[test]
fn stronger_layers_win_and_each_value_knows_its_origin() {
    let (folder, mut sources) = with_file("a.toml", "[server]\nmax_count = 1\nmax_clients = 2\nwait_max = \"3s\"\n");
    sources.environment = [("IDGEN__SERVER__MAX_COUNT", "10"), ("IDGEN__SERVER__MAX_CLIENTS", "20")].into();
    sources.flags = vec![flag("server.max_count", "100")];
    let config = Config::load(&sources, NOW).expect("valid");
    assert_eq!((config.server.max_count, config.server.max_clients), (100, 20));
    assert_eq!(config.server.wait_max, std::time::Duration::from_secs(3));
    assert_eq!(config.origin("server.max_count"), Origin::Flag("--set".into()));
    assert_eq!(config.origin("server.max_clients"), Origin::Variable("IDGEN__SERVER__MAX_CLIENTS".into()));
    assert_eq!(config.origin("server.wait_max"), Origin::File(folder.path().join("a.toml"), Some(4)));
    assert_eq!(config.origin("server.addr"), Origin::Default);
}

#[test]
fn a_named_file_must_exist_and_the_default_one_need_not() {
    assert!(Config::load(&none(), NOW).is_ok());
    let flagged = Sources { file: Some("/nonexistent/a.yaml".into()), ..none() };
    says(&refused(Config::load(&flagged, NOW)), &["/nonexistent/a.yaml", "flag --config"]);
    says(&refused(with_variables([("IDGEN_CONFIG", "/nonexistent/b.yaml")])), &["/nonexistent/b.yaml", "IDGEN_CONFIG"]);
    let (folder, sources) = with_file("idgen.yaml", "server: { max_count: 3 }");
    let found = Sources { default_file: sources.file.expect("a path"), ..none() };
    assert_eq!(Config::load(&found, NOW).expect("valid").server.max_count, 3);
    let folder = Sources { file: Some(folder.path().to_owned()), ..none() };
    says(&refused(Config::load(&folder, NOW)), &["it is a folder"]);
}

#[test]
fn a_damaged_file_is_told_with_its_place() {
    says(&refused(load_yaml("server: {\n  addr: [")), &["idgen.yaml", "line"]);
    let (_folder, sources) = with_file("idgen.conf", "");
    says(&refused(Config::load(&sources, NOW)), &["idgen.conf", "let the name end in .yaml or .toml"]);
}

#[test]
fn an_unknown_key_is_told_with_its_origin_and_the_nearest_one() {
    let text = refused(load_yaml("server: { adr: \"127.0.0.1:1\" }\nsegmant: { max_retry: 3 }\nserve: 3\n"));
    says(
        &text,
        &["server.adr: unknown key", "idgen.yaml", "did you mean server.addr?", "did you mean segment.max_retry?"],
    );
    says(&text, &["serve: unknown key"]);
    let text = refused(with_variables([("IDGEN__SERVER__MAXCOUNT", "3"), ("IDGEN__", "")]));
    says(
        &text,
        &["server.maxcount", "variable IDGEN__SERVER__MAXCOUNT", "did you mean server.max_count?", "IDGEN__\n"],
    );
    says(&refused(load_yaml("tls: { addr: \"\" }")), &["tls.addr: unknown key"]);
}

#[test]
fn variables_of_others_disturb_nothing() {
    let config =
        with_variables([("IDGEN_PORT", "tcp://10.0.0.1:6390"), ("IDGEN_SERVICE_HOST", "10.0.0.1"), ("IDGEN", "")]);
    assert_eq!(config.expect("valid").server.addr, "127.0.0.1:6390");
}

#[test]
fn a_variable_with_one_underscore_too_few_is_told() {
    for (given, meant) in [
        ("IDGEN_SERVER_ADDR", "did you mean IDGEN__SERVER__ADDR?"),
        ("IDGEN_SERVER__MAX_COUNT", "did you mean IDGEN__SERVER__MAX_COUNT?"),
        ("IDGEN_DATABASE_DSN_FILE", "did you mean IDGEN__DATABASE__DSN_FILE?"),
    ] {
        says(&refused(with_variables([(given, "127.0.0.1:1")])), &[given, meant]);
    }
}

#[test]
fn problems_stand_in_the_order_of_the_file_with_their_lines() {
    let yaml = "log:\n  level: 3\nserver:\n  wait_max: 5\n  # c\n  adr: x\n  max_count: x\n  zz: 1\n";
    let text = refused(load_yaml(yaml));
    let heads: Vec<_> = text.lines().filter(|line| !line.starts_with(' ')).collect();
    let keys: Vec<_> = heads.iter().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(keys, ["server.wait_max", "server.adr", "server.max_count", "server.zz", "log.level"], "{text}");
    says(&text, &["idgen.yaml:2", "idgen.yaml:4", "idgen.yaml:6", "\"3\" is not a level"]);
}

#[test]
fn every_entry_of_a_list_is_told_in_the_words_of_the_file() {
    let yaml = "tags: { declared: [ { tag: \"a b\" }, { tag: c, engin: segment, step: many }, order, { engine: x } ] }";
    let text = refused(load_yaml(yaml));
    says(
        &text,
        &[
            "\"a b\": a tag is",
            "entry 2 (\"c\"): engin is no key of it; there are tag, engine",
            "entry 2 (\"c\"): step: \"many\" is not a whole number",
            "entry 3: \"order\" is not a group of keys, such as { tag: order",
            "entry 4: engine: \"x\" is none of the values",
        ],
    );
    assert!(!text.contains("struct"), "{text}");
    says(&refused(load_yaml("tags: { rules: [ { match: \"*\" } ] }")), &["entry 1 (\"*\"): engine is missing"]);
    let text =
        refused(load_yaml("server: { addr: \"0.0.0.0:1\" }\nauth: { users: [ { name: a, token_sha256: c4 } ] }"));
    says(&text, &["auth.users: entry 1 (\"a\"): token_sha256: the value is not a list"]);
    assert!(!text.contains("c4") && !text.contains("no users"), "{text}");
}

#[test]
fn a_section_that_is_none_and_keys_given_twice_are_told() {
    says(&refused(load_yaml("server: 5\n")), &["server: 5 is not a section", "write its keys below server:"]);
    says(&refused(load_yaml("SERVER:\n  ADDR: x\n")), &["SERVER.ADDR: unknown key", "did you mean server.addr?"]);
    says(&refused(load_yaml("segmant: {}\n")), &["segmant: unknown key"]);
    let text = refused(load_yaml("server:\n  addr: \"127.0.0.1:1\"\n  addr: \"127.0.0.1:2\"\n"));
    says(&text, &["the key addr stands there twice: line 3"]);
}

#[test]
fn a_preset_stands_alone_and_its_widths_are_shown() {
    let text = refused(load_yaml("snowflake:\n  preset: js53\n  worker_bits: 6\n"));
    says(
        &text,
        &["snowflake.worker_bits: 6", "snowflake.preset js53", "leave out snowflake.worker_bits or snowflake.preset"],
    );
    let printed = load_yaml("snowflake: { preset: js53 }").expect("valid").print();
    let squeezed = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    says(&squeezed, &["datacenter_bits: 0 # preset js53", "sequence_bits: 7 # preset js53"]);
    assert!(load_yaml(&printed).is_ok(), "{printed}");
}

#[test]
fn whoever_only_asks_a_server_needs_its_address_alone() {
    let (_folder, mut sources) =
        with_file("idgen.yaml", "server: { addr: \"0.0.0.0:7\", max_count: x }\nnonsense: 1\n");
    assert_eq!(Config::listener(&sources).expect("an address").addr, "0.0.0.0:7");
    sources.file = Some("/nonexistent/idgen.yaml".into());
    assert!(Config::listener(&sources).is_err());
    assert_eq!(Config::listener(&none()).expect("the default").addr, "127.0.0.1:6390");
}

#[test]
fn a_value_of_the_wrong_kind_is_told_with_what_is_expected() {
    for (yaml, words) in [
        ("server: { max_count: abc }", ["server.max_count", "\"abc\" is not a whole number", "1 to 10000"]),
        ("server: { max_count: 1.5 }", ["server.max_count", "1.5 is not a whole number", "Default 10000"]),
        ("server: { max_count: -1 }", ["server.max_count", "-1", "Default 10000"]),
        ("server: { wait_max: 250 }", ["server.wait_max", "250 is not a duration with a unit", "Default 250ms"]),
        ("server: { wait_max: 250 parsecs }", ["server.wait_max", "is not a duration with a unit", "Default 250ms"]),
        (
            "server: { allow_unauthenticated: 1 }",
            ["server.allow_unauthenticated", "1 is not true or false", "idgen.yaml"],
        ),
        ("tags: { unknown: crate }", ["tags.unknown", "\"crate\" is none of the values", "refuse"]),
        ("tags: { declared: order }", ["tags.declared", "is not a list", "idgen.yaml"]),
        ("segment: { preload_threshold: most }", ["segment.preload_threshold", "is not a number", "Default 0.8"]),
        ("database: { dsn: }", ["database.dsn", "is not a text", "sqlite"]),
        ("tags: { rules: [ { match: a, engin: segment } ] }", ["tags.rules", "engin", "idgen.yaml"]),
    ] {
        says(&refused(load_yaml(yaml)), &words);
    }
}

#[test]
fn all_problems_are_told_at_once() {
    let text = refused(load_yaml("server: { max_count: x, max_clients: 0, adr: 1 }\nlog: { level: loud }\n"));
    says(&text, &["server.max_count", "server.max_clients: 0 is outside 1 to 1000000", "server.adr", "log.level"]);
}

#[test]
fn lists_in_variables_are_yaml_or_have_commas() {
    let rules = "[ { match: \"a.*\", engine: snowflake }, { match: \"*\", engine: segment } ]";
    assert_eq!(with_variables([("IDGEN__TAGS__RULES", rules)]).expect("valid").tags.rules.len(), 2);
    says(&refused(with_variables([("IDGEN__TAGS__RULES", "[")])), &["tags.rules", "IDGEN__TAGS__RULES"]);
    let text = refused(with_variables([("IDGEN__ETCD__ENDPOINTS", "http://a:2379, http://b:2379")]));
    says(&text, &["etcd together with a SQLite database", "IDGEN__ETCD__ENDPOINTS", "leave etcd.endpoints empty"]);
    assert!(with_variables([("IDGEN__ETCD__ENDPOINTS", "")]).is_ok());
    says(&refused(load_yaml("etcd: { endpoints: [\"http://a:2379\"] }")), &["etcd together with a SQLite database"]);
}

#[test]
fn a_listener_that_others_can_reach_needs_users_or_a_word() {
    for addr in ["0.0.0.0:6390", "[::]:6390", "10.0.0.1:6390", "idgen.example:6390"] {
        let text = refused(with_variables([("IDGEN__SERVER__ADDR", addr)]));
        says(&text, &["server.addr", addr, "auth.users", "server.allow_unauthenticated", "IDGEN__SERVER__ADDR"]);
        let text = refused(with_variables([("IDGEN__ADMIN__ADDR", addr)]));
        says(&text, &["admin.addr", addr, "auth.users"]);
        let open = [("IDGEN__SERVER__ADDR", addr), ("IDGEN__SERVER__ALLOW_UNAUTHENTICATED", "true")];
        assert!(with_variables(open).is_ok(), "{addr}");
    }
    for addr in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"] {
        assert!(with_variables([("IDGEN__SERVER__ADDR", addr)]).is_ok(), "{addr}");
    }
    let token = "0".repeat(64);
    let users = |enabled| format!("[ {{ name: a, token_sha256: [\"{token}\"], acl: \"+@all\", enabled: {enabled} }} ]");
    let with_users = |enabled| {
        let users: String = users(enabled);
        with_variables([("IDGEN__AUTH__USERS", users.as_str()), ("IDGEN__SERVER__ADDR", "0.0.0.0:1")])
    };
    assert!(with_users(true).is_ok());
    says(&refused(with_users(false)), &["server.addr"]);
}

#[test]
fn addresses_that_are_none_are_refused() {
    for addr in ["6390", ":6390", "127.0.0.1", "127.0.0.1:port", "::1:6390", "[::1", "127.0.0.1:65536"] {
        says(&refused(with_variables([("IDGEN__SERVER__ADDR", addr)])), &["server.addr", "is not host:port"]);
    }
    says(&refused(load_yaml("server: { addr: \"\" }")), &["no client could connect"]);
    assert!(load_yaml("server: { addr: \"\", unix_socket: /tmp/idgen.sock }").is_ok());
    says(&refused(load_yaml("admin: { addr: \"127.0.0.1:6390\" }")), &["admin.addr", "same as server.addr"]);
    let long = format!("server: {{ unix_socket: /{} }}", "x".repeat(107));
    says(&refused(load_yaml(&long)), &["server.unix_socket", "108 bytes"]);
}

#[test]
fn several_pods_never_count_in_a_sqlite_file_each() {
    let pod = |name| with_variables([("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("POD_NAME", name)]);
    assert!(pod("idgen-0").is_ok());
    says(&refused(pod("idgen-1")), &["database.dsn", "idgen-1", "ordinal 1", "run one replica"]);
    says(&refused(load_yaml("database: { dsn: \"\" }")), &["database.dsn", "etcd", "sqlite://"]);
}

#[test]
fn pods_share_a_database_on_a_server_that_is_verified() {
    let pod = |dsn| {
        let variables =
            [("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("POD_NAME", "idgen-1"), ("IDGEN__DATABASE__DSN", dsn)];
        with_variables(variables)
    };
    assert!(pod("mysql://ids:c4n4ry@db.example/ids").is_ok());
    assert!(pod("postgres://ids:c4n4ry@db.example/ids?sslmode=verify-full").is_ok());
    let text = refused(pod("mysql://ids:c4n4ry@db.example/ids?ssl-mode=PREFERRED"));
    says(&text, &["database.dsn", "PREFERRED", "db.example", "database.ca_file"]);
    assert!(!text.contains("c4n4ry"), "{text}");
    let text = refused(pod("mysql://ids:c4n4ry@db.example"));
    says(&text, &["database.dsn", "mysql://USER:PASSWORD@HOST"]);
    assert!(!text.contains("c4n4ry"), "{text}");
}

#[test]
fn what_rooms_refuse_is_told_with_its_origin() {
    let text = refused(with_variables([("IDGEN__SNOWFLAKE__TIMESTAMP_BITS", "60")]));
    says(&text, &["snowflake.", "IDGEN__SNOWFLAKE__TIMESTAMP_BITS"]);
    let text = refused(with_variables([("IDGEN__SNOWFLAKE__EPOCH_MILLIS", "1900000000000")]));
    says(&text, &["snowflake.epoch_millis", "2030-03-17"]);
    says(&refused(load_yaml("snowflake: { datacenter_id: 32 }")), &["snowflake.datacenter_id", "idgen.yaml"]);
}

#[test]
fn numbers_out_of_bounds_are_refused() {
    for (yaml, words) in [
        ("server: { max_count: 10001 }", ["server.max_count", "1 to 10000"]),
        ("server: { wait_max: 11s }", ["server.wait_max", "11s is outside 0s to 10s"]),
        ("tags: { refresh: 1ms }", ["tags.refresh", "10ms"]),
        ("tags: { max: 0 }", ["tags.max", "0 is outside"]),
        ("rate_limit: { qps: 10000001 }", ["rate_limit.qps", "0 to 10000000 ids per second"]),
        ("rate_limit: { burst: 5 }", ["rate_limit.burst", "without rate_limit.qps"]),
    ] {
        says(&refused(load_yaml(yaml)), &words);
    }
}

#[test]
fn tags_and_rules_are_checked() {
    for (tags, words) in [
        ("rules: [ { match: \"a b\", engine: segment } ]", ["tags.rules", "match \"a b\""]),
        ("rules: [ { match: \"\", engine: segment } ]", ["tags.rules", "1 to 128 bytes"]),
        ("declared: [ { tag: \"a b\" } ]", ["tags.declared", "\"a b\""]),
        ("declared: [ { tag: a }, { tag: a } ]", ["tags.declared", "declared twice"]),
        ("declared: [ { tag: a, min_step: 9, step: 5 } ]", ["tags.declared", "steps are out of order"]),
        ("declared: [ { tag: a, start: 9, max: 5 } ]", ["tags.declared", "start is above max"]),
        ("declared: [ { tag: a, qps: 5, burst: 2000000000 } ]", ["tags.declared", "burst must be 0 to 1000000000"]),
        ("declared: [ { tag: a, burst: 5 } ]", ["tags.declared", "without qps"]),
        ("declared: [ { tag: a, start: 0 } ]", ["tags.declared", "start 0 is outside"]),
        ("declared: [ { tag: a, engine: snowflake, step: 5 } ]", ["tags.declared", "step means nothing"]),
        ("declared: [ { tag: a, description: \"a\\nb\" } ]", ["tags.declared", "more than one line"]),
    ] {
        says(&refused(load_yaml(&format!("tags: {{ {tags} }}"))), &words);
    }
}

#[test]
fn secrets_come_from_files_and_are_never_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("dsn");
    std::fs::write(&path, "sqlite://canary:c4n4ry@/x.db\n").expect("written");
    let config = with_variables([("IDGEN__DATABASE__DSN_FILE", path.to_str().expect("text"))]).expect("valid");
    assert_eq!(config.database.dsn, "sqlite://canary:c4n4ry@/x.db");
    let printed = config.print();
    says(&printed, &["dsn: \"***\"", "dsn, named by variable IDGEN__DATABASE__DSN_FILE"]);
    assert!(!printed.contains("c4n4ry"), "{printed}");
    let missing = with_variables([("IDGEN__DATABASE__DSN_FILE", "/nonexistent/dsn")]);
    says(&refused(missing), &["database.dsn_file", "/nonexistent/dsn"]);
    let argued = Sources { flags: vec![flag("database.dsn", "mysql://u:c4n4ry@h/d")], ..none() };
    let text = refused(Config::load(&argued, NOW));
    says(&text, &["database.dsn", "IDGEN__DATABASE__DSN"]);
    assert!(!text.contains("c4n4ry"), "{text}");
    for users in
        ["[ { name: a, token_sha256: [c4n4ry] } ]", "[ { name: a, token_sha256: c4n4ry } ]", "[ c4n4ry ]", "[ \"c4n4ry"]
    {
        let text = refused(with_variables([("IDGEN__AUTH__USERS", users)]));
        assert!(text.contains("auth.users") && !text.contains("c4n4ry"), "{text}");
    }
}

#[test]
fn users_may_stand_in_a_file_of_their_own_and_are_shown_without_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("users");
    let token = "c4".repeat(32);
    std::fs::write(&path, format!("- name: shop\n  token_sha256: [{token}]\n  acl: +@read\n")).expect("written");
    let config = with_variables([("IDGEN__AUTH__USERS_FILE", path.to_str().expect("text"))]).expect("valid");
    assert_eq!(config.auth.users[0].name, "shop");
    let printed = config.print();
    says(&printed, &["name: \"shop\", token_sha256: [\"***\"]"]);
    assert!(!printed.contains(&token) && !config.shown()["auth.users"].contains(&token), "{printed}");
}

#[test]
fn the_printed_configuration_loads_again() {
    let config = load_yaml("server: { max_count: 5 }\ntags: { rules: [ { match: \"x*\", engine: snowflake } ] }");
    let printed = config.expect("valid").print();
    let again = load_yaml(&printed).expect("valid");
    assert_eq!((again.server.max_count, again.tags.rules.len()), (5, 1));
    let texts =
        [("IDGEN__SERVER__MAX_COUNT", "5"), ("IDGEN__SERVER__WAIT_MAX", "300ms"), ("IDGEN__LOG__LEVEL", "warn")];
    let printed_texts = with_variables(texts).expect("valid").print();
    says(&printed_texts, &["max_count: 5 ", "wait_max: 300ms ", "level: \"warn\" "]);
    assert_eq!(load_yaml(&printed_texts).expect("valid").server.max_count, 5);
    assert_eq!(again.tags.rules[0].pattern, "x*");
    says(&printed, &["max_count: 5", "# file ", "# default"]);
}
