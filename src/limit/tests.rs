use std::time::Duration;

use proptest::prelude::*;

use super::*;

const START: Boot = Boot(1_000_000_000_000);

fn at(nanos: u64) -> Boot {
    Boot(START.0 + nanos)
}

fn ms(millis: u64) -> Boot {
    at(millis * 1_000_000)
}

fn limit(qps: u64, burst: u64) -> Limit {
    Limit::new(Rate::new(qps, burst), START)
}

#[test]
fn no_limit_lets_everything_through() {
    let none = limit(0, 0);
    assert!(!none.is_set());
    assert_eq!((none.take_up_to(u64::MAX, START), none.take_all(u64::MAX, START)), (u64::MAX, true));
    assert_eq!((none.wait(u64::MAX, START), none.rate()), (Duration::ZERO, Rate::default()));
    none.give_back(5, START);
}

#[test]
fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
    let limit = limit(1000, 50);
    assert!(limit.is_set());
    assert_eq!(limit.take_up_to(80, START), 50);
    assert_eq!(limit.take_up_to(80, START), 0);
    assert_eq!(limit.take_up_to(80, at(999_999)), 0);
    assert_eq!(limit.take_up_to(80, ms(1)), 1);
    assert_eq!(limit.take_up_to(80, ms(8)), 7);
    assert_eq!(limit.take_up_to(80, ms(10_000)), 50, "never more than the burst, however long the pause");
}

#[test]
fn a_burst_of_none_is_one_second_of_the_rate() {
    assert_eq!(Rate::new(300, 0).burst(), 300);
    assert_eq!(limit(300, 0).take_up_to(1000, START), 300);
    assert_eq!(Rate::new(0, 0).burst(), 0);
}

#[test]
fn all_or_nothing_takes_nothing_when_it_refuses() {
    let limit = limit(1000, 50);
    assert!(limit.take_all(45, START));
    assert!(!limit.take_all(6, START));
    assert!(limit.take_all(5, START), "what was refused has taken nothing");
    assert!(!limit.take_all(51, ms(10_000)), "more than the burst never passes");
    assert!(limit.take_all(50, ms(10_000)));
}

#[test]
fn the_wait_is_the_time_after_which_it_passes_and_not_earlier() {
    let limit = limit(1000, 50);
    assert_eq!(limit.wait(50, START), Duration::ZERO);
    assert!(limit.take_all(50, START));
    assert_eq!(limit.wait(1, START), Duration::from_millis(1));
    assert_eq!(limit.wait(12, START), Duration::from_millis(12));
    assert_eq!(limit.wait(12, ms(2)), Duration::from_millis(10));
    assert_eq!(limit.wait(1000, START), Duration::from_millis(48), "as for the burst; time that was shown has passed");
    assert!(!limit.take_all(12, at(11_999_999)));
    assert!(limit.take_all(12, ms(12)), "asking for the wait has taken nothing");
}

#[test]
fn a_rate_that_is_no_part_of_a_second_is_never_exceeded() {
    for qps in [3, 7, 999, 700_000, 9_999_999, MAX_QPS] {
        let limit = limit(qps, 20);
        let got: u64 = (0..1_000_000).map(|n| limit.take_up_to(9, at(n * 100))).sum();
        let most = qps / 10 + 20;
        assert!(got <= most && got + most / 50 + 1 >= most, "{got} of {most} at {qps} in 100 ms");
    }
}

#[test]
fn what_is_given_back_at_once_is_there_again() {
    let limit = limit(1000, 50);
    assert_eq!(limit.take_up_to(50, START), 50);
    limit.give_back(20, START);
    assert_eq!(limit.take_up_to(50, START), 20);
}

#[test]
fn what_is_given_back_later_is_less_by_what_came_in_since() {
    let limit = limit(1000, 50);
    assert_eq!(limit.take_up_to(50, START), 50);
    assert_eq!(limit.take_up_to(50, ms(30)), 30);
    limit.give_back(50, START);
    assert_eq!(limit.take_up_to(50, ms(30)), 20);
    limit.give_back(30, START);
    assert_eq!(limit.take_up_to(50, ms(30)), 0);
}

#[test]
fn a_full_bucket_takes_nothing_back() {
    let limit = limit(1000, 50);
    limit.give_back(20, START);
    assert_eq!(limit.take_up_to(100, START), 50);
}

#[test]
fn a_change_holds_at_once_and_gives_no_fresh_burst() {
    let limit = limit(1000, 50);
    assert_eq!(limit.take_up_to(30, START), 30);
    limit.change(Rate::new(2000, 500), START);
    assert_eq!(limit.take_up_to(1000, START), 20, "what was left, and no more");
    assert_eq!(limit.take_up_to(1000, ms(10)), 20, "two a millisecond");
    limit.change(Rate::new(2000, 5), ms(500));
    assert_eq!(limit.take_up_to(1000, ms(500)), 5, "never more than the new burst");
    for n in 0..10 {
        limit.change(Rate::new(1000 + n, 50), ms(500));
        assert_eq!(limit.take_up_to(1000, ms(500)), 0, "again and again");
    }
    assert_eq!(limit.rate(), Rate::new(1009, 50));
}

#[test]
fn the_same_limit_again_changes_nothing() {
    let limit = limit(1000, 50);
    assert_eq!(limit.take_up_to(50, START), 50);
    // Half an id has come in, which a new bucket would not have.
    limit.change(Rate::new(1000, 50), at(500_000));
    assert_eq!(limit.take_up_to(50, ms(1)), 1);
}

#[test]
fn a_limit_of_zero_is_none_and_one_after_none_starts_with_its_burst() {
    let limit = limit(1000, 50);
    assert_eq!(limit.take_up_to(50, START), 50);
    limit.change(Rate::new(0, 0), START);
    assert!(!limit.is_set());
    assert_eq!(limit.take_up_to(5000, START), 5000);
    limit.change(Rate::new(10, 0), START);
    assert!(limit.is_set());
    assert_eq!(limit.take_up_to(5000, START), 10);
}

#[test]
fn readings_that_come_late_give_nothing_twice() {
    let limit = limit(1000, 50);
    assert_eq!(limit.take_up_to(100, ms(100)), 50);
    assert_eq!(limit.take_up_to(100, START), 0);
    assert_eq!(limit.wait(1, START), Duration::from_millis(1), "from the latest reading on");
    assert_eq!(limit.take_up_to(100, ms(103)), 3);
}

#[test]
fn numbers_out_of_bounds_are_told_and_the_largest_work() {
    let said = |qps, burst| check(qps, burst, ["QPS", "BURST"]).expect_err("refused");
    assert_eq!(said(MAX_QPS + 1, 0), "QPS must be 0 to 10000000 ids per second, and is 10000001");
    assert_eq!(said(1, MAX_BURST + 1), "BURST must be 0 to 1000000000 ids, and is 1000000001");
    assert_eq!(said(0, 7), "BURST is 7 without QPS, so it limits nothing: set both or none");
    assert_eq!(check(MAX_QPS, MAX_BURST, ["", ""]), Ok(()));
    assert_eq!(
        Config { qps: 0, burst: 1 }.validate().expect_err("refused").split(' ').next(),
        Some("rate_limit.burst")
    );
    for qps in [1, MAX_QPS] {
        let limit = Limit::new(Rate::new(qps, u64::MAX), Boot(u64::MAX / 4));
        assert_eq!(limit.take_up_to(u64::MAX, Boot(u64::MAX / 4)), MAX_BURST);
        assert!(limit.wait(MAX_BURST, Boot(u64::MAX / 4)) > Duration::from_secs(99));
    }
}

/// What happens to a limit.
#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    UpTo(u64),
    All(u64),
    /// As many of what was last taken as this.
    GiveBack(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u64..3_000_000).prop_map(Step::Pass),
        4 => (1_u64..200).prop_map(Step::UpTo),
        4 => (1_u64..60).prop_map(Step::All),
        1 => (1_u64..200).prop_map(Step::GiveBack),
    ]
}

proptest! {
    // An id counts as let through when it was taken and not given back.
    #[test]
    fn no_window_has_more_ids_than_the_burst_and_the_rate(
        qps in 1_u64..1_000_000,
        burst in 1_u64..100,
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let limit = limit(qps, burst);
        let (mut now, mut taken): (u64, Vec<(u64, u64)>) = (0, Vec::new());
        for step in steps {
            match step {
                Step::Pass(nanos) => now += nanos,
                Step::UpTo(n) => taken.push((now, limit.take_up_to(n, at(now)))),
                Step::All(n) => {
                    let waits = limit.wait(n, at(now));
                    let all = limit.take_all(n, at(now));
                    prop_assert_eq!(all, waits.is_zero() && n <= burst);
                    if all {
                        taken.push((now, n));
                    }
                }
                Step::GiveBack(n) => {
                    if let Some((then, last)) = taken.last_mut() {
                        let n = n.min(*last);
                        *last -= n;
                        limit.give_back(n, at(*then));
                    }
                }
            }
        }
        for (first, &(from, _)) in taken.iter().enumerate() {
            let mut sum = 0;
            for &(to, n) in &taken[first..] {
                sum += n;
                // ids <= burst + qps * t, without a fraction
                let most = u128::from(burst) * 1_000_000_000 + u128::from(qps) * u128::from(to - from);
                prop_assert!(u128::from(sum) * 1_000_000_000 <= most, "{sum} ids from {from} to {to}");
            }
        }
    }

    #[test]
    fn up_to_takes_exactly_what_one_at_a_time_would(
        qps in 1_u64..1_000_000,
        burst in 1_u64..100,
        steps in proptest::collection::vec((0_u64..3_000_000, 1_u64..150), 1..50),
    ) {
        let (together, alone) = (limit(qps, burst), limit(qps, burst));
        let mut now = 0;
        for (pause, wanted) in steps {
            now += pause;
            let one_by_one = (0..wanted).filter(|_| alone.take_all(1, at(now))).count() as u64;
            prop_assert_eq!(together.take_up_to(wanted, at(now)), one_by_one);
            prop_assert_eq!(together.wait(1, at(now)), alone.wait(1, at(now)));
        }
    }

    #[test]
    fn changes_let_no_more_through_than_the_largest_burst_and_rate(
        rates in proptest::collection::vec((1_u64..100_000, 1_u64..100, 0_u64..3_000_000, 0_u64..200), 1..60),
    ) {
        let limit = limit(rates[0].0, rates[0].1);
        let (mut now, mut sum) = (0, 0);
        for &(qps, burst, pause, wanted) in &rates {
            now += pause;
            limit.change(Rate::new(qps, burst), at(now));
            sum += limit.take_up_to(wanted, at(now));
        }
        let largest = |of: fn(&(u64, u64, u64, u64)) -> u64| u128::from(rates.iter().map(of).max().expect("some"));
        let most = largest(|rate| rate.1) * 1_000_000_000 + largest(|rate| rate.0) * u128::from(now);
        prop_assert!(u128::from(sum) * 1_000_000_000 <= most, "{sum} ids");
    }
}
