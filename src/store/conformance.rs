//! What every segment store must do, run over each of them. A new store is done when it passes this.

use std::sync::Arc;
use std::time::Duration;

use super::memory::Memory;
use super::network::Network as _;
use super::postgres::Postgres;
use super::postgres::testing::{Database, PgBouncer};
use super::sqlite::Sqlite;
use super::{Alteration, Definition, EngineKind, Grant, Kind, MAX_TAILS, Order, SegmentStore, StoreError, Tail};
use crate::ids::{IdRange, MAX_ID, TagName};

const MOST: u64 = 100;

fn tag(name: &str) -> TagName {
    TagName::new(name.as_bytes()).expect("a valid tag")
}

fn definition() -> Definition {
    Definition {
        engine: EngineKind::Segment,
        order: Order::Node,
        step: 1000,
        min_step: 100,
        max_step: 1_000_000,
        id_limit: MAX_ID,
        qps: 0,
        burst: 0,
        critical: false,
        description: String::new(),
    }
}

async fn with_tag(store: &dyn SegmentStore, name: &str, start: u64, id_limit: u64) -> TagName {
    let tag = tag(name);
    let definition = Definition { id_limit, ..definition() };
    let (row, created) = store.create(&tag, &definition, start, MOST).await.expect("create");
    assert!(created);
    assert_eq!((row.max_id, row.floor), (start - 1, start - 1));
    tag
}

fn range(first: u64, last: u64) -> IdRange {
    IdRange::new(first, last + 1).expect("a range")
}

/// Returns one tail.
async fn give_back(store: &dyn SegmentStore, tail: &Tail) -> Result<bool, StoreError> {
    let taken = store.return_tails(std::slice::from_ref(tail)).await?;
    assert_eq!(taken.len(), 1);
    Ok(taken[0])
}

async fn ranges_follow_each_other_from_one(store: Arc<dyn SegmentStore>) {
    let tag = with_tag(&*store, "order", 1, MAX_ID).await;
    let first = store.grant(&tag, 1000).await.expect("grant");
    let second = store.grant(&tag, 1).await.expect("grant");
    assert_eq!((first.range, second.range), (range(1, 1000), range(1001, 1001)));
    assert_ne!(first.nonce, second.nonce);
    assert_eq!(store.find(&tag).await.expect("find").expect("a row").max_id, 1001);
}

async fn start_is_the_first_id(store: Arc<dyn SegmentStore>) {
    let tag = with_tag(&*store, "order", 501, MAX_ID).await;
    assert_eq!(store.grant(&tag, 10).await.expect("grant").range, range(501, 510));
    for start in [0, 101] {
        let small = Definition { id_limit: 100, ..definition() };
        let error = store.create(&self::tag("other"), &small, start, MOST).await.expect_err("START outside of MAX");
        assert_eq!(error.kind, Kind::Conflict);
    }
}

async fn concurrent_grants_are_disjoint_and_leave_no_gap(store: Arc<dyn SegmentStore>) {
    let tag = with_tag(&*store, "order", 1, MAX_ID).await;
    let tasks: Vec<_> = (0..8_u64)
        .map(|task| {
            let (store, tag) = (store.clone(), tag.clone());
            tokio::spawn(async move {
                let mut granted = Vec::new();
                for n in 0..25 {
                    granted.push(store.grant(&tag, task * 25 + n + 1).await.expect("grant").range);
                }
                granted
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.expect("a task"));
    }
    all.sort_unstable();
    assert_eq!(all.len(), 200);
    assert_eq!(all.first().map(|range| range.start()), Some(1));
    assert!(all.windows(2).all(|pair| pair[0].end() == pair[1].start()), "ranges touch and never overlap");
}

async fn the_last_partial_range_is_granted_whole(store: Arc<dyn SegmentStore>) {
    let tag = with_tag(&*store, "order", 1, 2500).await;
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(store.grant(&tag, 1000).await.expect("grant").range);
    }
    assert_eq!(all, [range(1, 1000), range(1001, 2000), range(2001, 2500)]);
    assert_eq!(store.grant(&tag, 1).await.expect_err("nothing left").kind, Kind::Exhausted);
    let more = Alteration { id_limit: Some(2501), ..Alteration::default() };
    store.alter(&tag, &more).await.expect("a larger MAX");
    assert_eq!(store.grant(&tag, 1000).await.expect("grant").range, range(2501, 2501));
}

async fn the_id_space_ends_without_a_wrap(store: Arc<dyn SegmentStore>) {
    let tag = with_tag(&*store, "order", MAX_ID - 4, MAX_ID).await;
    assert_eq!(store.grant(&tag, 3).await.expect("grant").range, range(MAX_ID - 4, MAX_ID - 2));
    assert_eq!(store.grant(&tag, MAX_ID).await.expect("grant").range, range(MAX_ID - 1, MAX_ID));
    for count in [1, 1000, u64::MAX] {
        assert_eq!(store.grant(&tag, count).await.expect_err("nothing left").kind, Kind::Exhausted);
    }
    assert_eq!(store.find(&tag).await.expect("find").expect("a row").max_id, MAX_ID);
}

async fn a_missing_row_is_never_made_by_a_grant(store: Arc<dyn SegmentStore>) {
    let tag = tag("nobody");
    assert_eq!(store.grant(&tag, 1).await.expect_err("no row").kind, Kind::Missing);
    assert_eq!(store.retire(&tag).await.expect_err("no row").kind, Kind::Missing);
    assert_eq!(store.raise_floor(&tag, 1).await.expect_err("no row").kind, Kind::Missing);
    assert_eq!(store.alter(&tag, &Alteration::default()).await.expect_err("no row").kind, Kind::Missing);
    assert_eq!((store.find(&tag).await, store.count().await), (Ok(None), Ok(0)));
}

async fn create_happens_once(store: Arc<dyn SegmentStore>) {
    let tag = with_tag(&*store, "order", 1, MAX_ID).await;
    store.grant(&tag, 1000).await.expect("grant");
    let other = Definition { step: 5, min_step: 1, ..definition() };
    let (row, created) = store.create(&tag, &other, 1, 0).await.expect("the row that stands, even with no room");
    assert!(!created);
    assert_eq!((row.max_id, row.definition), (1000, definition()));
    let error = store.create(&self::tag("second"), &definition(), 1, 1).await.expect_err("no room");
    assert_eq!(error.kind, Kind::TooMany);
    assert_eq!(store.count().await, Ok(1));
    let case = with_tag(&*store, "ORDER", 1, MAX_ID).await;
    assert_eq!(store.grant(&case, 1).await.expect("grant").range, range(1, 1));
}

async fn every_field_comes_back(store: Arc<dyn SegmentStore>) {
    let whole = Definition {
        engine: EngineKind::Snowflake,
        order: Order::Strict,
        step: 7,
        min_step: 6,
        max_step: 8,
        id_limit: 99,
        qps: 5,
        burst: 4,
        critical: true,
        description: "for people; it's 'quoted' \u{e9}".into(),
    };
    let tag = tag("order");
    store.create(&tag, &whole, 3, MOST).await.expect("create");
    let row = store.find(&tag).await.expect("find").expect("a row");
    assert_eq!((row.definition, row.max_id, row.floor, row.retired), (whole, 2, 2, false));
}

async fn an_alteration_changes_only_what_it_names(store: Arc<dyn SegmentStore>) {
    let tag = with_tag(&*store, "order", 1, MAX_ID).await;
    store.grant(&tag, 1000).await.expect("grant");
    let step = Alteration { step: Some(500), description: Some("x".into()), ..Alteration::default() };
    let row = store.alter(&tag, &step).await.expect("alter");
    assert_eq!(row.definition, Definition { step: 500, description: "x".into(), ..definition() });
    assert_eq!((row.max_id, Some(&row)), (1000, store.find(&tag).await.expect("find").as_ref()));
    for bad in [
        Alteration { id_limit: Some(999), ..Alteration::default() },
        Alteration { step: Some(99), ..Alteration::default() },
        Alteration { min_step: Some(0), ..Alteration::default() },
        Alteration { max_step: Some(499), ..Alteration::default() },
        Alteration { id_limit: Some(MAX_ID + 1), ..Alteration::default() },
        Alteration { description: Some("two\nlines".into()), ..Alteration::default() },
    ] {
        assert_eq!(store.alter(&tag, &bad).await.expect_err("a conflict").kind, Kind::Conflict, "{bad:?}");
    }
    assert_eq!(store.find(&tag).await.expect("find"), Some(row));
}

async fn later_ids_are_above_a_floor(store: Arc<dyn SegmentStore>) {
    let tag = with_tag(&*store, "order", 1, 10_000).await;
    store.grant(&tag, 100).await.expect("grant");
    let row = store.raise_floor(&tag, 500).await.expect("floor");
    assert_eq!((row.max_id, row.floor), (500, 500));
    assert_eq!(store.grant(&tag, 1).await.expect("grant").range, range(501, 501));
    let row = store.raise_floor(&tag, 300).await.expect("a lower floor changes nothing");
    assert_eq!((row.max_id, row.floor), (501, 500));
    assert_eq!(store.raise_floor(&tag, 10_001).await.expect_err("above MAX").kind, Kind::Conflict);
}

async fn a_retired_tag_stays_retired(store: Arc<dyn SegmentStore>) {
    let tag = with_tag(&*store, "order", 1, MAX_ID).await;
    let row = store.retire(&tag).await.expect("retire");
    assert!(row.retired);
    assert_eq!(store.retire(&tag).await, Ok(row.clone()), "again is fine and changes nothing");
    assert_eq!(store.grant(&tag, 1).await.expect_err("retired").kind, Kind::Retired);
    assert_eq!(store.raise_floor(&tag, 9).await.expect_err("retired").kind, Kind::Retired);
    assert_eq!(store.alter(&tag, &Alteration::default()).await.expect_err("retired").kind, Kind::Retired);
    assert_eq!(store.create(&tag, &definition(), 1, MOST).await, Ok((row, false)));
}

async fn a_tail_goes_back_to_the_one_it_belongs_to(store: Arc<dyn SegmentStore>) {
    let tag = with_tag(&*store, "order", 1, MAX_ID).await;
    let Grant { nonce, .. } = store.grant(&tag, 1000).await.expect("grant");
    let tail = Tail { tag: tag.clone(), unused: range(4, 1000), nonce };
    let foreign = Tail { nonce: nonce ^ 1, ..tail.clone() };
    assert_eq!(give_back(&*store, &foreign).await, Ok(false), "a foreign nonce");
    let short = Tail { unused: range(4, 999), ..tail.clone() };
    assert_eq!(give_back(&*store, &short).await, Ok(false), "not the end of the last grant");
    assert_eq!(give_back(&*store, &tail).await, Ok(true));
    assert_eq!(give_back(&*store, &tail).await, Ok(false), "a second copy");
    assert_eq!(store.grant(&tag, 10).await.expect("grant").range, range(4, 13));
}

/// The seeded bug B21: with the end alone as the guard, the late copy would give 4 .. 1000 to a second holder.
async fn a_late_copy_of_a_tail_return_does_nothing(store: Arc<dyn SegmentStore>) {
    let tag = with_tag(&*store, "order", 1, MAX_ID).await;
    let Grant { nonce, .. } = store.grant(&tag, 1000).await.expect("grant");
    let tail = Tail { tag: tag.clone(), unused: range(4, 1000), nonce };
    assert_eq!(give_back(&*store, &tail).await, Ok(true));
    let again = store.grant(&tag, 997).await.expect("another node is granted the same end");
    assert_eq!(again.range, range(4, 1000));
    assert_eq!(give_back(&*store, &tail).await, Ok(false), "the delayed copy");
    assert_eq!(store.grant(&tag, 1).await.expect("grant").range, range(1001, 1001));
}

async fn a_tail_never_undoes_a_floor_or_a_change_of_hands(store: Arc<dyn SegmentStore>) {
    let tag = with_tag(&*store, "order", 1, MAX_ID).await;
    let Grant { nonce, .. } = store.grant(&tag, 1000).await.expect("grant");
    let tail = Tail { tag: tag.clone(), unused: range(4, 1000), nonce };
    store.raise_floor(&tag, 500).await.expect("a floor inside what was granted");
    assert_eq!(give_back(&*store, &tail).await, Ok(false));
    let Grant { range: granted, nonce } = store.grant(&tag, 10).await.expect("grant");
    assert_eq!(granted, range(1001, 1010));
    store.grant(&tag, 10).await.expect("grant");
    let tail = Tail { tag: tag.clone(), unused: range(1005, 1010), nonce };
    assert_eq!(give_back(&*store, &tail).await, Ok(false), "somebody was granted ids since");
}

async fn tails_go_back_together_and_each_is_looked_at_alone(store: Arc<dyn SegmentStore>) {
    let mut tails = Vec::new();
    for name in ["a", "b", "c"] {
        let tag = with_tag(&*store, name, 1, MAX_ID).await;
        let Grant { nonce, .. } = store.grant(&tag, 100).await.expect("grant");
        tails.push(Tail { tag, unused: range(5, 100), nonce });
    }
    store.grant(&tails[1].tag, 1).await.expect("somebody else's grant");
    tails.push(tails[0].clone());
    assert_eq!(store.return_tails(&tails).await, Ok(vec![true, false, true, false]), "the last is a second copy");
    for (tail, first) in tails.iter().zip([5, 102, 5]) {
        assert_eq!(store.grant(&tail.tag, 1).await.expect("grant").range.start(), first);
    }
    assert_eq!(store.return_tails(&[]).await, Ok(vec![]));
}

async fn no_more_tails_go_back_at_once_than_the_limit(store: Arc<dyn SegmentStore>) {
    let tag = with_tag(&*store, "order", 1, MAX_ID).await;
    let Grant { nonce, .. } = store.grant(&tag, 100).await.expect("grant");
    let tail = Tail { tag: tag.clone(), unused: range(5, 100), nonce };
    let mut tails = vec![Tail { nonce: nonce ^ 1, ..tail.clone() }; MAX_TAILS];
    tails.push(tail);
    assert_eq!(store.return_tails(&tails).await, Ok(vec![false; MAX_TAILS + 1]));
    assert_eq!(give_back(&*store, &tails[MAX_TAILS]).await, Ok(true));
}

async fn revisions_are_unique_and_show_what_changed(store: Arc<dyn SegmentStore>) {
    let first = with_tag(&*store, "first", 1, MAX_ID).await;
    let second = with_tag(&*store, "second", 1, MAX_ID).await;
    let names = async |revision| {
        let rows = store.changed_since(revision).await.expect("changes");
        rows.into_iter().map(|row| (row.tag, row.revision)).collect::<Vec<_>>()
    };
    let all = names(0).await;
    assert_eq!(all.iter().map(|(tag, _)| tag).collect::<Vec<_>>(), [&first, &second]);
    let seen = all[1].1;
    assert!(all[0].1 > 0 && seen > all[0].1);
    store.grant(&first, 10).await.expect("grant");
    assert_eq!(names(seen).await, [], "a grant changes no definition");
    let row = store.alter(&first, &Alteration { qps: Some(9), ..Alteration::default() }).await.expect("alter");
    assert_eq!(names(seen).await, [(first.clone(), row.revision)]);
    let row = store.raise_floor(&second, 50).await.expect("floor");
    let seen = row.revision;
    let row = store.retire(&second).await.expect("retire");
    assert_eq!(names(seen).await, [(second.clone(), row.revision)]);
}

async fn all_counters_rise_together(store: Arc<dyn SegmentStore>) {
    let near = with_tag(&*store, "near", 1, 1500).await;
    let far = with_tag(&*store, "far", 1, MAX_ID).await;
    for tag in [&near, &far] {
        store.grant(tag, 1000).await.expect("grant");
    }
    let seen = store.changed_since(0).await.expect("rows").last().expect("a row").revision;
    assert_eq!(store.raise_all(1_000_000).await, Ok(2));
    let rows = store.changed_since(seen).await.expect("rows");
    assert_eq!(rows.len(), 2);
    assert_ne!(rows[0].revision, rows[1].revision);
    assert_eq!(store.grant(&far, 1).await.expect("grant").range, range(1_001_001, 1_001_001));
    assert_eq!(store.grant(&near, 1).await.expect_err("at its limit").kind, Kind::Exhausted);
    store.raise_all(u64::MAX).await.expect("no overflow");
    assert_eq!(store.grant(&far, 1).await.expect_err("at its limit").kind, Kind::Exhausted);
}

async fn a_probe_changes_no_row(store: Arc<dyn SegmentStore>) {
    let tag = with_tag(&*store, "order", 1, MAX_ID).await;
    let Grant { nonce, .. } = store.grant(&tag, 10).await.expect("grant");
    let rows = store.changed_since(0).await.expect("rows");
    assert_eq!(store.probe().await, Ok(()));
    assert_eq!(store.changed_since(0).await, Ok(rows.clone()));
    let tail = Tail { tag: tag.clone(), unused: range(4, 10), nonce };
    assert_eq!(give_back(&*store, &tail).await, Ok(true));
    let row = store.raise_floor(&tag, 50).await.expect("floor");
    assert!(row.revision > rows[0].revision);
}

macro_rules! conformance {
    ($($name:ident),* $(,)?) => {
        mod memory {
            use super::*;
            $(#[tokio::test] async fn $name() { super::$name(Arc::new(Memory::default())).await })*
        }
        mod sqlite {
            use super::*;
            $(#[tokio::test] async fn $name() {
                let folder = tempfile::tempdir().expect("a folder");
                let path = folder.path().join("data/idgen.db");
                let opened = Sqlite::open(&path, Duration::from_secs(10)).await.expect("a new database");
                super::$name(Arc::new(opened.store)).await;
            })*
        }
        mod postgres {
            use super::*;
            $(#[tokio::test] async fn $name() {
                let database = Database::new().await;
                let store = Postgres::open(&database.config(None), true).await.expect("a new database");
                super::$name(Arc::new(store)).await;
            })*
        }
        mod pgbouncer {
            use super::*;
            $(#[tokio::test] async fn $name() {
                let database = Database::new().await;
                let bouncer = PgBouncer::start(&database.server).await;
                let config = database.config(Some(bouncer.port));
                let store = Postgres::open(&config, true).await.expect("a new database");
                super::$name(Arc::new(store)).await;
            })*
        }
        mod mysql {
            use super::*;
            $(#[tokio::test] async fn $name() {
                let database = super::super::servers::MySqlDatabase::new().await;
                super::$name(Arc::new(database.store().await)).await;
            })*
        }
    };
}

conformance! {
    ranges_follow_each_other_from_one,
    start_is_the_first_id,
    concurrent_grants_are_disjoint_and_leave_no_gap,
    the_last_partial_range_is_granted_whole,
    the_id_space_ends_without_a_wrap,
    a_missing_row_is_never_made_by_a_grant,
    create_happens_once,
    every_field_comes_back,
    an_alteration_changes_only_what_it_names,
    later_ids_are_above_a_floor,
    a_retired_tag_stays_retired,
    a_tail_goes_back_to_the_one_it_belongs_to,
    a_late_copy_of_a_tail_return_does_nothing,
    a_tail_never_undoes_a_floor_or_a_change_of_hands,
    tails_go_back_together_and_each_is_looked_at_alone,
    no_more_tails_go_back_at_once_than_the_limit,
    revisions_are_unique_and_show_what_changed,
    all_counters_rise_together,
    a_probe_changes_no_row,
}
