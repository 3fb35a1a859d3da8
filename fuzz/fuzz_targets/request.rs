//! Any stream: no panic, no memory above the limits, the same requests and error however it is cut, and each array means
//! to the oracle what it means to the scanner. The first two bytes choose the limits and the size of the pieces.
#![no_main]

use idgen_fuzz::resp::Limits;
use idgen_fuzz::{TINY, feed};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [choice, piece, stream @ ..] = input else { return };
    let limits = [TINY, Limits::BEFORE_LOGIN, Limits::AFTER_LOGIN][usize::from(choice % 3)];
    let whole = feed(stream, [], &limits);
    assert_eq!(feed(stream, std::iter::repeat(1), &limits), whole);
    assert_eq!(feed(stream, std::iter::repeat(usize::from(*piece)), &limits), whole);
    assert_eq!(feed(stream, [usize::from(*piece)], &limits), whole);
});
