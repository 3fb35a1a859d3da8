//! The wall clock is stepped by hours, live and over restarts: no id repeats, and a running node does not even notice.
//!
//! libfaketime moves what the process reads. The first test proves that it does: without it the others could not fail.

use crate::checkers;
use crate::load::{Dice, Drawn, Load, Session};
use crate::node::{Node, PATIENCE, Setup, Shell, eventually};
use crate::wire::Value;

/// Three hours back, three hours forward, one second back: the steps that are tried, in seconds off the true time.
const STEPS: [i64; 3] = [-3 * 3600, 3 * 3600, -1];

/// How often each client has to be answered after each step.
const RUN: u64 = 100;

fn true_seconds() -> i64 {
    i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap()
}

/// What `TIME` says, in seconds off the true time.
fn offset(node: &Node) -> i64 {
    let time = node.connect().call(&["TIME"]);
    time.array()[0].text().parse::<i64>().unwrap() - true_seconds()
}

/// Returns once an id was served: from then on the node's time is anchored, and a step is a step.
fn create_event_tag(node: &Node) {
    assert_eq!(node.connect().call(&["IDTAG", "CREATE", "event", "ENGINE", "snowflake"]).text(), "OK");
    id(node, "event");
}

/// An id of `tag`, which must come whatever the wall clock says.
fn id(node: &Node, tag: &str) -> i64 {
    let mut conn = node.connect();
    eventually(&format!("an id of {tag}"), PATIENCE, || match conn.call(&["IDGET", tag]) {
        Value::Int(id) => Some(id),
        _ => None,
    })
}

/// How often the bound of any worker id has been raised.
fn renewals(setup: &Setup) -> i64 {
    Shell::run(&setup.database(), "SELECT sum(n) FROM worker_bound").parse().unwrap()
}

/// Load on both engines until each client was served and the window of the worker id was renewed.
fn run(setup: &Setup, load: &Load) {
    let (answered, renewed) = (load.answered_each(), renewals(setup));
    eventually("each client is served", PATIENCE, || load.each_since(&answered, RUN).then_some(()));
    eventually("the window is renewed", PATIENCE, || (renewals(setup) > renewed).then_some(()));
}

const TAGS: [&str; 8] = ["order", "order", "order", "order", "event", "event", "event", "event"];

/// Segment ids and Snowflake ids of the clients of [`TAGS`], checked each for themselves; whatever follows holds Snowflake
/// ids of one connection a session.
fn check(drawn: &[Drawn], errors: &[&str]) {
    checkers::only_errors(drawn, errors);
    let (segment, snowflake) = drawn.split_at(4);
    checkers::increasing_over_restarts(segment);
    checkers::increasing_within_connections(snowflake);
    checkers::unique(segment);
    checkers::unique(snowflake);
}

#[test]
fn faketime_moves_what_the_program_reads() {
    let setup = Setup::in_memory().with_movable_wall();
    let node = setup.start();
    create_event_tag(&node);
    assert!(offset(&node).abs() <= 2, "TIME is {} s off before any step", offset(&node));
    for step in STEPS {
        setup.move_wall(step);
        assert!((offset(&node) - step).abs() <= 2, "TIME is {} s off, not {step}", offset(&node));
    }
    setup.move_wall(-3 * 3600);
    eventually("the metric of the offset shows the step", PATIENCE, || {
        let offset = node.metric("idgen_clock_offset_seconds")?;
        ((offset + 3.0 * 3600.0).abs() < 5.0).then_some(())
    });
}

#[test]
fn steps_of_the_wall_clock_while_running_cause_no_error_at_all() {
    let setup = Setup::in_memory().with_movable_wall().set("snowflake.window", "1s");
    let node = setup.start();
    create_event_tag(&node);
    let load = Load::start(setup.addr(), &TAGS, 64, &mut Dice::new());
    run(&setup, &load);
    for step in STEPS {
        setup.move_wall(step);
        run(&setup, &load);
        setup.move_wall(0);
        run(&setup, &load);
    }
    let drawn = load.finish();
    node.stop();
    check(&drawn, &[]);
}

#[test]
fn steps_of_the_wall_clock_over_a_restart_never_repeat_an_id() {
    let setup = Setup::in_memory().with_movable_wall();
    over_restarts(&setup);
}

#[test]
fn steps_over_a_restart_never_repeat_an_id_with_a_single_worker_id() {
    let setup = Setup::in_memory().with_movable_wall().set("snowflake.worker_bits", "0").set("snowflake.window", "1s");
    over_restarts(&setup);
}

/// Every step, once over `kill -9` and once over a clean stop, and back. Both engines come back after each: a single node
/// with an embedded database goes on from its bound, however far behind the wall clock lies.
fn over_restarts(setup: &Setup) {
    let mut node = setup.start();
    create_event_tag(&node);
    let load = Load::start(setup.addr(), &TAGS, 64, &mut Dice::new());
    let mut events = vec![id(&node, "event")];
    let mut last = id(&node, "order-probe");
    for (kill, step) in [true, false].into_iter().flat_map(|kill| STEPS.map(|step| (kill, step))) {
        for wall in [step, 0] {
            if kill {
                node.kill();
            } else {
                node.stop();
            }
            setup.move_wall(wall);
            let answered = load.answered_each();
            node = setup.start();
            events.push(id(&node, "event"));
            let next = id(&node, "order-probe");
            assert!(next > last, "{next} after {last}");
            last = next;
            eventually("each client is served again", PATIENCE, || load.each_since(&answered, RUN).then_some(()));
        }
    }
    let mut drawn = load.finish();
    node.stop();
    assert_eq!(events.len(), 13);
    let sessions = events.into_iter().map(|id| Session { runs: vec![(id, id)] }).collect();
    drawn.push(Drawn { sessions, ..Drawn::default() });
    check(&drawn, &["LOADING", "READONLY", "TRYAGAIN", "IDCLOCK"]);
}
