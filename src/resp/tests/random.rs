//! A million random inputs, biased to what a scanner takes for requests: no panic, no memory above the limits, and the
//! same requests and the same error in whatever pieces they arrive. The seed is fixed, so that a failure comes again.

use super::inputs::{Random, fill};
use super::*;

const INPUTS: usize = 1_000_000;

#[test]
fn a_million_random_inputs_mean_the_same_in_whatever_pieces() {
    let mut random = Random(0x1d6e_2026);
    let mut input = Vec::new();
    let (mut requests, mut errors, mut waiting) = (0_usize, 0_usize, 0_usize);
    for number in 0..INPUTS {
        fill(&mut input, &mut random);
        let limits = [TINY, Limits::BEFORE_LOGIN, Limits::AFTER_LOGIN][random.below(3)];
        let whole = feed(&input, [], &limits);
        let pieces = [random.below(12) + 1, random.below(12) + 1, random.below(12) + 1];
        assert_eq!(feed(&input, pieces, &limits), whole, "input {number}: {}", input.escape_ascii());
        if number % 16 == 0 {
            assert_eq!(feed(&input, std::iter::repeat(1), &limits), whole, "input {number}: {}", input.escape_ascii());
        }
        requests += whole.requests.len();
        errors += usize::from(whole.end.is_err());
        waiting += usize::from(whole.end.is_ok_and(|pending| pending > 0));
    }
    // The generator reaches all three ends often enough to mean something.
    assert!(requests.min(errors).min(waiting) > INPUTS / 20, "{requests} requests, {errors} errors, {waiting} waiting");
}
