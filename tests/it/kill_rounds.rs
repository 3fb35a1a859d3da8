//! Load, `kill -9` at a random moment, restart, over and over: no id comes twice and order holds.

use crate::load::{Dice, Load};
use crate::node::{PATIENCE, Setup, eventually};
use crate::{checkers, soak};

/// The requests that a node answers before it may be killed, so that no round passes for nothing.
const WARM: u64 = 200;

fn rounds(setup: &Setup, prepare: &[&[&str]], tags: &[&str], tolerated: &[&str]) -> Vec<crate::load::Drawn> {
    let count = if soak() { 200 } else { 20 };
    let mut dice = Dice::new();
    let mut node = setup.start();
    let mut conn = node.connect();
    for words in prepare {
        assert_eq!(conn.call(words).text(), "OK", "{words:?}");
    }
    drop(conn);
    let load = Load::start(setup.addr(), tags, 128, &mut dice);
    for round in 0..count {
        let before = load.answered();
        eventually(&format!("round {round}: ids are served"), PATIENCE, || {
            (load.answered() >= before + WARM).then_some(())
        });
        std::thread::sleep(dice.millis(0, 300)); // the random moment
        node.kill();
        node = setup.start();
    }
    node.stop();
    let drawn = load.finish();
    checkers::only_errors(&drawn, tolerated);
    checkers::increasing_within_connections(&drawn);
    let sessions: usize = drawn.iter().map(|one| one.sessions.len()).sum();
    println!("{count} kills, {sessions} connections, {} requests lost", drawn.iter().map(|one| one.lost).sum::<u64>());
    assert!(sessions > count, "the clients did not come back: {sessions} connections");
    drawn
}

/// Right after a start, and when a segment is used up faster than it is fetched, a request may be told to come again.
const SHORTAGES: &[&str] = &["LOADING", "TRYAGAIN"];

/// So may a Snowflake request whose worker id is still being claimed.
const CLAIMS: &[&str] = &["LOADING", "TRYAGAIN", "READONLY"];

#[test]
fn segment_ids_never_repeat_and_always_increase_over_kills() {
    let drawn = rounds(&Setup::new(), &[], &["order"; 8], SHORTAGES);
    checkers::unique(&drawn);
    checkers::increasing_over_restarts(&drawn);
}

#[test]
fn snowflake_ids_never_repeat_over_kills() {
    let create: &[&str] = &["IDTAG", "CREATE", "event", "ENGINE", "snowflake"];
    checkers::unique(&rounds(&Setup::new(), &[create], &["event"; 8], CLAIMS));
}

#[test]
fn snowflake_ids_never_repeat_over_kills_when_every_start_gets_the_same_worker_id() {
    let setup = Setup::new().set("snowflake.worker_bits", "0").set("snowflake.window", "1s");
    let create: &[&str] = &["IDTAG", "CREATE", "event", "ENGINE", "snowflake"];
    checkers::unique(&rounds(&setup, &[create], &["event"; 8], CLAIMS));
}

#[test]
fn the_tags_of_one_node_count_each_for_itself_over_kills() {
    let tags = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let setup = Setup::new().set("segment.min_step", "10").set("segment.default_step", "50");
    let drawn = rounds(&setup, &[], &tags, SHORTAGES);
    checkers::increasing_over_restarts(&drawn);
    for one in &drawn {
        checkers::unique(std::slice::from_ref(one));
    }
}
