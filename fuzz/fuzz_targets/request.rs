//! Any stream: no panic, no memory above the limits, the same requests and error however it is cut, and each array means
//! to the oracle what it means to the scanner. The first two bytes choose the limits and the size of the pieces.
#![no_main]

use idgen_fuzz::resp::{Limits, Scan, Scanner};
use idgen_fuzz::{TINY, feed};
use libfuzzer_sys::fuzz_target;
use redis_protocol::resp2::{decode::decode, types::OwnedFrame};

fuzz_target!(|input: &[u8]| {
    let [choice, piece, stream @ ..] = input else { return };
    let limits = [TINY, Limits::BEFORE_LOGIN, Limits::AFTER_LOGIN][usize::from(choice % 3)];
    let whole = feed(stream, [], &limits);
    assert_eq!(feed(stream, std::iter::repeat(1), &limits), whole);
    assert_eq!(feed(stream, std::iter::repeat(usize::from(*piece)), &limits), whole);
    assert_eq!(feed(stream, [usize::from(*piece)], &limits), whole);

    let (mut scanner, mut cursor) = (Scanner::new(), 0);
    while let Ok(Scan::Request(request)) = scanner.next(&stream[cursor..], &limits) {
        if request.raw().starts_with(b"*") {
            let elements = request.args().map(|argument| OwnedFrame::BulkString(argument.to_vec())).collect();
            let read = decode(request.raw()).expect("valid to the oracle");
            assert_eq!(read, Some((OwnedFrame::Array(elements), request.raw_len())));
        }
        cursor += scanner.consumed();
    }
});
