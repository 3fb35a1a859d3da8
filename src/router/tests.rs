//! The router over stores in memory.

use super::testing::Bench;
use super::*;
use crate::engine::{Demand, Shortage};
use crate::ids::IdRange;

fn tag(name: &str) -> TagName {
    TagName::new(name.as_bytes()).expect("a valid tag")
}

/// Draws one id, waiting for refills as a request does.
async fn draw<S>(bench: &Bench<S>, entry: &Entry) -> Result<u64, Refusal> {
    let mut ranges: Vec<IdRange> = Vec::new();
    loop {
        match entry.take(Demand::Singles(1), bench.clock.boot(), &mut ranges) {
            Ok(()) => return Ok(ranges.first().expect("one id").start()),
            Err(Shortage::Later(later)) => match later.wait().await {
                Waited::AskAgain => {}
                Waited::Ids(ids) => return Ok(ids.start()),
                Waited::Refused(refusal) => return Err(refusal),
            },
            Err(Shortage::Refused(refusal)) => return Err(refusal),
        }
    }
}

#[tokio::test]
async fn an_unknown_tag_is_created_by_the_first_rule_that_matches() {
    let rules = vec![
        Rule { pattern: "event.*".into(), engine: EngineKind::Snowflake },
        Rule { pattern: "*".into(), engine: EngineKind::Segment },
    ];
    let bench = Router::in_memory(Config { rules, ..Config::default() });
    assert!(bench.router.find(b"order").is_none());
    let order = bench.router.admit(&tag("order")).await.expect("created");
    assert_eq!((order.kind(), draw(&bench, &order).await), (EngineKind::Segment, Ok(1)));
    assert_eq!(order.last_issued(), Some(1));
    let event = bench.router.admit(&tag("event.click")).await.expect("created");
    assert_eq!(event.kind(), EngineKind::Snowflake);
    assert!(Arc::ptr_eq(&order, &bench.router.admit(&tag("order")).await.expect("known")));
}

#[tokio::test]
async fn a_refused_tag_appears_once_another_node_has_created_it() {
    let bench = Router::in_memory(Config { unknown: Unknown::Refuse, ..Config::default() });
    assert!(matches!(bench.router.admit(&tag("order")).await, Err(Error::NoTag(_))));
    let definition = bench.router.definition(&tag("order"), &Wanted::default()).expect("defaults");
    bench.store.create(&tag("order"), &definition, 1, 10).await.expect("created by another node");
    assert!(matches!(bench.router.admit(&tag("order")).await, Err(Error::NoTag(_))), "remembered for tags.refresh");
    bench.clock.advance(Duration::from_secs(1));
    assert!(bench.router.admit(&tag("order")).await.is_ok());
}

#[tokio::test]
async fn there_are_never_more_tags_than_allowed() {
    let bench = Router::in_memory(Config { max: 2, ..Config::default() });
    for name in ["a", "b"] {
        bench.router.admit(&tag(name)).await.expect("created");
    }
    let Err(Error::NoTag(text)) = bench.router.admit(&tag("c")).await else { panic!("a third tag") };
    assert!(text.contains("tags.max"), "{text}");
    assert_eq!(bench.router.len(), 2);
}

#[tokio::test]
async fn creating_again_is_fine_and_a_difference_is_named() {
    let bench = Router::in_memory(Config::default());
    let name = tag("order");
    let wanted = Wanted {
        start: Some(100),
        fields: Alteration { step: Some(500), ..Alteration::default() },
        ..Wanted::default()
    };
    bench.router.create(&name, &wanted).await.expect("created");
    bench.router.create(&name, &wanted).await.expect("the same again");
    bench.router.create(&name, &Wanted::default()).await.expect("nothing named, nothing compared");
    assert_eq!(draw(&bench, &bench.router.find(b"order").expect("known")).await, Ok(100));
    let other = Wanted { engine: Some(EngineKind::Snowflake), ..Wanted::default() };
    let Err(Error::Conflict(text)) = bench.router.create(&name, &other).await else { panic!("no conflict") };
    assert_eq!(
        text,
        "tag 'order' exists with ENGINE segment, which is fixed when a tag is created: use another tag for another ENGINE"
    );
    let other = Wanted { fields: Alteration { step: Some(600), ..Alteration::default() }, ..Wanted::default() };
    let Err(Error::Conflict(text)) = bench.router.create(&name, &other).await else { panic!("no conflict") };
    assert_eq!(text, "tag 'order' exists with STEP 500: IDTAG ALTER order STEP 600 changes it");
    let other = Wanted { start: Some(200), ..Wanted::default() };
    let Err(Error::Conflict(text)) = bench.router.create(&name, &other).await else { panic!("no conflict") };
    assert_eq!(
        text,
        "tag 'order' exists with ids from 100 on, below START 200: IDTAG FLOOR order 199 makes later ids larger"
    );
    let fields = Alteration { description: Some("orders".into()), ..Alteration::default() };
    let other = Wanted { fields, ..Wanted::default() };
    let Err(Error::Conflict(text)) = bench.router.create(&name, &other).await else { panic!("no conflict") };
    assert_eq!(text, "tag 'order' exists with no DESC: IDTAG ALTER order DESC changes it");
}

#[tokio::test]
async fn after_a_floor_no_id_in_memory_at_or_below_it_is_issued() {
    let bench = Router::in_memory(Config::default());
    let entry = bench.router.admit(&tag("order")).await.expect("created");
    assert_eq!(draw(&bench, &entry).await, Ok(1));
    bench.router.floor(&tag("order"), 400, false).await.expect("raised");
    assert_eq!(draw(&bench, &entry).await, Ok(401));
    bench.router.floor(&tag("order"), 300, false).await.expect("only raises");
    assert_eq!(draw(&bench, &entry).await, Ok(402));
    let far = MAX_FLOOR_JUMP * 2;
    assert!(matches!(bench.router.floor(&tag("order"), far, false).await, Err(Error::Conflict(_))));
    bench.router.floor(&tag("order"), far, true).await.expect("forced");
    assert_eq!(draw(&bench, &entry).await, Ok(far + 1));
}

#[tokio::test]
async fn a_retired_tag_gives_nothing_and_its_name_is_closed() {
    let bench = Router::in_memory(Config::default());
    let entry = bench.router.admit(&tag("order")).await.expect("created");
    draw(&bench, &entry).await.expect("an id");
    bench.router.retire(&tag("order")).await.expect("retired");
    assert_eq!(draw(&bench, &entry).await, Err(Refusal::Retired));
    let again = bench.router.create(&tag("order"), &Wanted::default()).await;
    assert_eq!(again, Err(Error::Refused(Refusal::Retired)));
    assert_eq!(bench.router.scan(0, 100), (0, vec![]));
}

#[tokio::test]
async fn a_row_that_vanished_closes_its_tag_and_is_never_made_again() {
    let bench = Router::in_memory(Config::default());
    let entry = bench.router.admit(&tag("order")).await.expect("created");
    draw(&bench, &entry).await.expect("an id");
    assert!(bench.store.delete(&tag("order")));
    bench.router.refresh().await.expect("the store answers");
    assert!(matches!(draw(&bench, &entry).await, Err(Refusal::Backend(_))));
    bench.clock.advance(Duration::from_mins(1));
    assert!(matches!(draw(&bench, &entry).await, Err(Refusal::Backend(_))), "also when the store is asked again");
    assert!(bench.store.find(&tag("order")).await.expect("answers").is_none());
}

/// The text of a refusal that says that the row is gone.
fn backend<T: std::fmt::Debug>(answer: Result<T, Error>) -> String {
    match answer {
        Err(Error::Refused(Refusal::Backend(text))) => text,
        other => panic!("no refusal of the store: {other:?}"),
    }
}

#[tokio::test]
async fn after_a_restart_a_row_that_vanished_is_not_made_again_by_a_command() {
    let before = Router::in_memory(Config::default());
    let (name, store) = (tag("order"), Arc::clone(&before.store));
    let entry = before.router.admit(&name).await.expect("created");
    assert_eq!(draw(&before, &entry).await, Ok(1));
    drop(before);
    let bench = Router::over(Arc::clone(&store), Config::default());
    bench.router.load().await.expect("loaded");
    let entry = bench.router.find(b"order").expect("known");
    assert!(store.delete(&name));
    // Before any poll has noticed.
    let text = backend(bench.router.create(&name, &Wanted::default()).await);
    assert!(text.contains("has vanished") && text.contains("max_id of 1000 or more"), "{text}");
    assert!(matches!(draw(&bench, &entry).await, Err(Refusal::Backend(_))));
    bench.router.refresh().await.expect("the store answers");
    backend(bench.router.create(&name, &Wanted::default()).await);
    backend(bench.router.alter(&name, &Alteration::default()).await);
    backend(bench.router.floor(&name, 5, false).await);
    assert_eq!(store.count().await, Ok(0));
    // Put back by hand, at 1: the ids that the process before gave away are not given again.
    let definition = bench.router.definition(&name, &Wanted::default()).expect("defaults");
    store.create(&name, &definition, 1, 10).await.expect("by hand");
    bench.clock.advance(Duration::from_mins(1));
    assert_eq!(draw(&bench, &entry).await, Ok(1001));
}

#[tokio::test]
async fn a_declared_tag_whose_row_vanished_is_not_made_again() {
    let declared = vec![Declared { tag: "order".into(), ..Declared::default() }];
    let bench = Router::in_memory(Config { declared, ..Config::default() });
    bench.router.load().await.expect("loaded");
    assert!(bench.store.delete(&tag("order")));
    assert!(backend(bench.router.load().await).contains("has vanished"));
    assert_eq!(bench.store.count().await, Ok(0));
}

#[tokio::test]
async fn a_snowflake_tag_whose_row_vanished_is_not_made_again() {
    let bench = Router::in_memory(Config::default());
    let wanted = Wanted { engine: Some(EngineKind::Snowflake), ..Wanted::default() };
    bench.router.create(&tag("event"), &wanted).await.expect("created");
    assert!(bench.store.delete(&tag("event")));
    assert!(backend(bench.router.create(&tag("event"), &wanted).await).contains("has vanished"));
}

#[tokio::test]
async fn texts_leave_the_name_of_the_tag_to_the_reply() {
    let bench = Router::in_memory(Config::default());
    let limited = Wanted { fields: Alteration { id_limit: Some(1), ..Alteration::default() }, ..Wanted::default() };
    bench.router.create(&tag("mx"), &limited).await.expect("created");
    let entry = bench.router.find(b"mx").expect("known");
    draw(&bench, &entry).await.expect("the only id");
    let mut refusals = vec![draw(&bench, &entry).await];
    assert!(bench.store.delete(&tag("mx")));
    bench.router.refresh().await.expect("the store answers");
    refusals.push(draw(&bench, &entry).await);
    bench.router.stop(Duration::from_secs(1)).await;
    refusals.push(draw(&bench, &entry).await);
    let texts: Vec<_> = refusals.into_iter().map(|refusal| refusal.expect_err("refused").to_string()).collect();
    assert_eq!(
        texts,
        [
            "no more than 0 ids are left up to MAX 1",
            "its row has vanished from memory; restore it with a max_id of 1 or more, or use another tag",
            "this node is stopping",
        ]
    );
}

#[tokio::test]
async fn a_change_made_elsewhere_arrives_with_the_next_refresh() {
    let bench = Router::in_memory(Config::default());
    let entry = bench.router.admit(&tag("order")).await.expect("created");
    draw(&bench, &entry).await.expect("an id");
    bench.store.raise_floor(&tag("order"), 5_000).await.expect("by another node");
    bench.router.refresh().await.expect("the store answers");
    assert!(draw(&bench, &entry).await.expect("an id") > 5_000);
    bench.store.retire(&tag("order")).await.expect("by another node");
    bench.router.refresh().await.expect("the store answers");
    assert_eq!(draw(&bench, &entry).await, Err(Refusal::Retired));
}

#[tokio::test]
async fn declared_tags_are_created_and_a_difference_is_a_warning() {
    let declared = |step| Declared { tag: "order".into(), step: Some(step), ..Declared::default() };
    let bench = Router::in_memory(Config { declared: vec![declared(500), declared(700)], ..Config::default() });
    let warnings = bench.router.load().await.expect("loaded");
    assert!(matches!(warnings.as_slice(), [text] if text.contains("STEP 500")), "{warnings:?}");
}

#[tokio::test]
async fn what_a_snowflake_tag_has_not_is_refused() {
    let bench = Router::in_memory(Config::default());
    let wanted = Wanted { engine: Some(EngineKind::Snowflake), start: Some(5), ..Wanted::default() };
    assert!(matches!(bench.router.create(&tag("event"), &wanted).await, Err(Error::WrongType(_))));
    let plain = Wanted { engine: Some(EngineKind::Snowflake), ..Wanted::default() };
    bench.router.create(&tag("event"), &plain).await.expect("created");
    let start = Wanted { start: Some(5), ..Wanted::default() };
    for wanted in [wanted, start] {
        let standing = bench.router.create(&tag("event"), &wanted).await;
        assert!(matches!(&standing, Err(Error::WrongType(text)) if text.contains("START")), "{standing:?}");
    }
}

fn limited(qps: Option<u64>, burst: Option<u64>) -> Alteration {
    Alteration { qps, burst, ..Alteration::default() }
}

#[tokio::test]
async fn a_limit_is_created_changed_and_taken_away() {
    let bench = Router::in_memory(Config::default());
    for engine in [EngineKind::Segment, EngineKind::Snowflake] {
        let tag = tag(engine.name());
        let wanted = |burst| Wanted { engine: Some(engine), fields: limited(Some(5), burst), ..Wanted::default() };
        bench.router.create(&tag, &wanted(None)).await.expect("created");
        // One second's worth, whether it is named or not.
        bench.router.create(&tag, &wanted(Some(5))).await.expect("the same");
        let other = bench.router.create(&tag, &wanted(Some(7))).await;
        assert!(matches!(&other, Err(Error::Conflict(text)) if text.contains("BURST 5")), "{other:?}");
        let entry = bench.router.find(tag.as_str().as_bytes()).expect("known");
        let now = bench.clock.boot();
        assert_eq!((entry.limit().take_up_to(9, now), entry.metrics().rate_limit.get()), (5, 5));
        bench.router.alter(&tag, &limited(Some(50), Some(70))).await.expect("altered");
        assert_eq!((entry.limit().rate().qps(), entry.limit().take_up_to(9, now)), (50, 0), "no fresh burst");
        bench.router.alter(&tag, &limited(Some(0), None)).await.expect("taken away with its burst");
        assert!(!entry.limit().is_set());
        let alone = bench.router.alter(&tag, &limited(None, Some(7))).await;
        assert!(matches!(&alone, Err(Error::Conflict(text)) if text.contains("without QPS")), "{alone:?}");
    }
}

#[tokio::test]
async fn a_limit_that_another_node_has_changed_holds_after_the_refresh() {
    let bench = Router::in_memory(Config::default());
    let order = tag("order");
    let entry = bench.router.admit(&order).await.expect("created");
    bench.store.alter(&order, &limited(Some(5), None)).await.expect("altered");
    bench.router.refresh().await.expect("read");
    assert_eq!(entry.limit().take_up_to(9, bench.clock.boot()), 5);
    let old = bench.store.find(&order).await.expect("find").expect("a row");
    bench.store.alter(&order, &limited(Some(6), None)).await.expect("altered");
    bench.router.refresh().await.expect("read");
    entry.apply(&old, bench.clock.boot());
    assert_eq!(entry.limit().rate().qps(), 6, "an older row changes nothing");
}

#[tokio::test]
async fn a_scan_gives_every_tag_once() {
    let bench = Router::in_memory(Config::default());
    for number in 0..300 {
        bench.router.admit(&tag(&format!("t{number}"))).await.expect("created");
    }
    let (mut cursor, mut seen) = (0, Vec::new());
    loop {
        let (next, tags) = bench.router.scan(cursor, 10);
        seen.extend(tags);
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    seen.sort();
    assert_eq!(seen.len(), 300);
    seen.dedup();
    assert_eq!(seen.len(), 300);
    assert_eq!(bench.router.len(), 300);
}

#[tokio::test]
async fn a_file_that_can_only_be_read_is_told_once_and_recovers_without_a_request() {
    use crate::health::{Part, State};
    use sqlx::{ConnectOptions as _, Connection as _};
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("idgen.db");
    let store = crate::store::sqlite::Sqlite::open(&path, Duration::from_millis(200)).await.expect("open").store;
    let bench = Router::over(Arc::new(store), Config::default());
    let entry = bench.router.admit(&tag("order")).await.expect("created");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
    let mut shell = options.connect().await.expect("a shell");
    let held = shell.begin_with("BEGIN IMMEDIATE").await.expect("a lock");
    assert!(matches!(draw(&bench, &entry).await, Err(Refusal::Backend(_))));
    for _ in 0..3 {
        bench.router.poll().await;
        assert!(bench.health.is_down(Part::Store), "reads work, and say nothing of grants");
        assert_eq!(bench.health.part(Part::Catalogue), State::Up);
    }
    held.rollback().await.expect("rollback");
    // The breaker has opened by now, and lets one probe a second through.
    bench.clock.advance(Config::default().refresh);
    bench.router.poll().await;
    assert_eq!(bench.health.part(Part::Store), State::Up, "nobody has asked for an id");
}

#[tokio::test]
async fn a_store_that_works_is_not_probed() {
    use crate::store::memory::Fault;
    let bench = Router::in_memory(Config::default());
    bench.store.plan(Fault::Fail(Kind::Permanent));
    bench.router.poll().await;
    assert!(!bench.health.is_down(crate::health::Part::Store), "the fault is still there for the next grant");
    let entry = bench.router.admit(&tag("order")).await.expect("created");
    assert!(draw(&bench, &entry).await.is_err());
    assert!(bench.health.is_down(crate::health::Part::Store));
}

#[tokio::test]
async fn one_slow_refill_costs_no_other_tag_its_tail() {
    use crate::store::memory::Fault;
    let bench = Router::in_memory(Config::default());
    let gates: Vec<_> = (0..3).map(|_| Arc::new(tokio::sync::Semaphore::new(0))).collect();
    // The first by name never ends; the others do once everything is closed.
    let names = ["a", "b", "c"].map(tag);
    for (name, gate) in names.iter().zip(&gates) {
        let entry = bench.router.admit(name).await.expect("created");
        bench.store.plan(Fault::Held(Arc::clone(gate)));
        let mut out = Vec::new();
        assert!(entry.take(Demand::Singles(1), bench.clock.boot(), &mut out).is_err());
        while bench.store.grants().len() < 1 + names.iter().position(|other| other == name).unwrap_or(0) {
            tokio::task::yield_now().await;
        }
    }
    let (router, last) = (Arc::clone(&bench.router), bench.router.find(b"c").expect("known"));
    let stop = tokio::spawn(async move { router.stop(Duration::from_millis(300)).await });
    // Closed while the first is still waited for.
    loop {
        let mut out = Vec::new();
        match last.take(Demand::Singles(1), bench.clock.boot(), &mut out) {
            Err(Shortage::Refused(Refusal::TryAgain(_))) => break,
            _ => tokio::task::yield_now().await,
        }
    }
    assert!(!stop.is_finished());
    gates[1].add_permits(1);
    gates[2].add_permits(1);
    stop.await.expect("a task");
    for name in &names {
        assert_eq!(bench.store.find(name).await.expect("answers").expect("a row").max_id, 0, "{name}");
    }
    assert_eq!(bench.metrics.discarded.get(), [("stop", 0)]);
}

#[tokio::test]
async fn tails_beyond_one_transaction_go_back_in_the_next_until_the_time_is_over() {
    let bench = Router::in_memory(Config::default());
    let definition = bench.router.definition(&tag("order"), &Wanted::default()).expect("defaults");
    let mut tails = Vec::new();
    for n in 0..=crate::store::MAX_TAILS * 2 {
        let name = tag(&format!("t{n}"));
        bench.store.create(&name, &definition, 1, 10_000).await.expect("created");
        let grant = bench.store.grant(&name, 100).await.expect("granted");
        tails.push(crate::store::Tail { tag: name, unused: grant.range, nonce: grant.nonce });
    }
    let late = tails.split_off(tails.len() - 10);
    bench.router.give_back(&tails, Duration::from_secs(5)).await;
    assert_eq!(bench.metrics.discarded.get(), [("stop", 0)]);
    bench.router.give_back(&late, Duration::ZERO).await;
    assert_eq!(bench.metrics.discarded.get(), [("stop", 1000)]);
    let rows = bench.store.changed_since(0).await.expect("rows");
    assert_eq!(rows.iter().filter(|row| row.max_id == 100).count(), 10, "nothing was asked of the store for the late");
    assert_eq!(rows.iter().filter(|row| row.max_id == 0).count(), tails.len());
}

#[tokio::test]
async fn a_clean_stop_gives_back_what_was_not_issued() {
    let bench = Router::in_memory(Config::default());
    let entry = bench.router.admit(&tag("order")).await.expect("created");
    for expected in 1..=3 {
        assert_eq!(draw(&bench, &entry).await, Ok(expected));
    }
    bench.router.stop(Duration::from_secs(1)).await;
    assert_eq!(bench.store.find(&tag("order")).await.expect("answers").expect("a row").max_id, 3);
    assert!(draw(&bench, &entry).await.is_err(), "nothing is served after the stop");
}

#[tokio::test]
async fn settings_that_become_weak_close_strict_tags_and_are_told() {
    let bench = Router::in_memory(Config::default());
    let strict = Wanted { order: Some(Order::Strict), ..Wanted::default() };
    bench.router.create(&tag("strict"), &strict).await.expect("the bench's store is trusted");
    let entry = bench.router.known(&tag("strict")).await.expect("there");
    assert_eq!(draw(&bench, &entry).await, Ok(1));
    bench.router.look_at_settings().await;
    let refused = draw(&bench, &entry).await.expect_err("closed");
    assert!(matches!(&refused, Refusal::Backend(text) if text.contains("settings")), "{refused}");
    assert_eq!(bench.router.info(&entry).guarantee, WEAK);
    let error = bench.router.create(&tag("another"), &strict).await.expect_err("no longer to be had");
    assert!(matches!(error, Error::WrongType(_)), "{error}");
    let order = bench.router.admit(&tag("order")).await.expect("other tags go on");
    assert_eq!(draw(&bench, &order).await, Ok(1));
}
