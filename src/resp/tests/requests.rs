//! Requests: the cases that clients and attackers are known for, each cut at every byte, and streams of any commands.

use proptest::collection::vec;
use proptest::prelude::*;
use redis_protocol::resp2::encode::encode;
use redis_protocol::resp2::types::Resp2Frame as _;

use super::*;

const BEFORE: Limits = Limits::BEFORE_LOGIN;
const AFTER: Limits = Limits::AFTER_LOGIN;

/// The requests of a stream, each with its arguments joined by `|`, and its end.
fn read(stream: impl AsRef<[u8]>, limits: &Limits) -> (Vec<String>, Result<usize, ProtocolError>) {
    let outcome = feed_every_way(stream.as_ref(), limits);
    let join = |arguments: &Vec<Vec<u8>>| arguments.join(&b'|').escape_ascii().to_string();
    (outcome.requests.iter().map(join).collect(), outcome.end)
}

/// The error of a stream, as the client reads it.
fn error_of(stream: impl AsRef<[u8]>, limits: &Limits) -> String {
    let (requests, end) = read(stream, limits);
    assert_eq!(requests, [""; 0]);
    end.expect_err("an error").text().expect("a text").into_owned()
}

#[test]
fn arrays_and_lines_may_follow_each_other_in_one_stream() {
    let stream =
        "*1\r\n$4\r\nPING\r\nPING\r\nping \"a b\"\n*2\r\n$4\r\nECHO\r\n$12\r\n12 \r\n56789 1\r\n*1\r\n$4\r\nPI";
    let (requests, end) = read(stream, &AFTER);
    assert_eq!(requests, ["PING", "PING", "ping|a b", r"ECHO|12 \r\n56789 1"]);
    assert_eq!(end, Ok("*1\r\n$4\r\nPI".len()));
}

#[test]
fn what_asks_for_nothing_is_skipped_and_not_kept() {
    for nothing in ["\r\n", "\n", "*0\r\n", "*-1\r\n", "*-7\r\n", "  \r\n", "\t\n"] {
        let stream = nothing.repeat(3);
        assert_eq!(read(&stream, &AFTER), (vec![], Ok(0)), "{nothing:?}");
        assert_eq!(read(stream + "*1\r\n$4\r\nPING\r\n\r\n", &AFTER), (vec!["PING".to_owned()], Ok(0)), "{nothing:?}");
    }
}

#[test]
fn arguments_may_be_empty_or_hold_any_byte() {
    let all: Vec<u8> = (0..=255).collect();
    let outcome = feed_every_way(&command(&[b"ECHO", b"".as_slice(), &all]), &AFTER);
    assert_eq!(outcome.requests, [[b"ECHO".to_vec(), vec![], all]]);
}

#[test]
fn a_number_of_arguments_is_checked_before_anything_is_kept_for_it() {
    let invalid = "ERR Protocol error: invalid multibulk length";
    for count in ["", "abc", "1a", "+1", "01", "-0", "-", " 1", "1 ", "1026", "3000000000", "99999999999999999999"] {
        assert_eq!(error_of(format!("*{count}\r\n"), &AFTER), invalid, "{count:?}");
    }
    assert_eq!(error_of("*1\rx$4\r\n", &AFTER), invalid);
    assert_eq!(error_of("*3000000000\r\n", &BEFORE), invalid);
    assert_eq!(error_of("*11\r\n", &BEFORE), "ERR Protocol error: unauthenticated multibulk length");
    assert_eq!(read("*10\r\n", &BEFORE), (vec![], Ok(5)));
    assert_eq!(read("*1025\r\n", &AFTER), (vec![], Ok(7)));
}

#[test]
fn a_length_of_an_argument_is_checked_before_anything_is_kept_for_it() {
    let invalid = "ERR Protocol error: invalid bulk length";
    for len in ["", "abc", "-1", "-5", "+1", "01", "00", "65537", "9999999999", "99999999999999999999"] {
        assert_eq!(error_of(format!("*1\r\n${len}\r\n"), &AFTER), invalid, "{len:?}");
    }
    assert_eq!(error_of("*1\r\n$4\rxPING\r\n", &AFTER), invalid);
    assert_eq!(error_of("*1\r\n$536870913\r\n", &BEFORE), invalid);
    assert_eq!(error_of("*1\r\n$16385\r\n", &BEFORE), "ERR Protocol error: unauthenticated bulk length");
    assert_eq!(read("*1\r\n$16384\r\n", &BEFORE), (vec![], Ok(12)));
    assert_eq!(read("*1\r\n$65536\r\n", &AFTER), (vec![], Ok(12)));
}

#[test]
fn an_argument_that_does_not_end_where_its_length_says_is_refused() {
    for stream in ["*1\r\n$3\r\nPING\r\n", "*1\r\n$4\r\nPING\n\n", "*1\r\n$0\r\nPING\r\n", "*1\r\n$4\r\nPING*1"] {
        assert_eq!(error_of(stream, &AFTER), "ERR Protocol error: invalid bulk length", "{stream:?}");
    }
}

#[test]
fn an_array_holds_bulk_strings_and_nothing_else() {
    for (element, shown) in
        [(":1", ":"), ("*1\r\n*1", "*"), ("PING", "P"), ("\r\n", " "), ("\0", "\\x00"), ("\u{e9}", "\\xc3")]
    {
        let expected = format!("ERR Protocol error: expected '$', got '{shown}'");
        assert_eq!(error_of(format!("*2\r\n{element}"), &AFTER), expected);
    }
    // Nesting ends at depth 1, however deep it goes on.
    assert_eq!(error_of("*1\r\n".repeat(300), &BEFORE), "ERR Protocol error: expected '$', got '*'");
}

#[test]
fn quotes_of_a_line_have_to_end() {
    for line in ["PING \"a", "PING 'a", "\"a\"b"] {
        assert_eq!(error_of(format!("{line}\r\n"), &AFTER), "ERR Protocol error: unbalanced quotes in request");
    }
}

#[test]
fn a_line_has_to_end_within_64_kib() {
    let long = 64 * 1024;
    let whole = |stream: String, limits: &Limits| {
        let outcome = feed(stream.as_bytes(), [], limits);
        assert_eq!(feed(stream.as_bytes(), [1, 65_535, 1, 1], limits), outcome);
        outcome.end.map_err(|error| error.text().expect("a text").into_owned())
    };
    for limits in [BEFORE, AFTER] {
        assert_eq!(whole("a".repeat(long), &limits), Ok(long));
        let too_big = Err("ERR Protocol error: too big inline request".to_owned());
        assert_eq!(whole("a".repeat(long + 1), &limits), too_big);
        assert_eq!(whole("a".repeat(long + 1) + "\n", &limits), too_big);
        assert_eq!(whole(" ".repeat(long) + "\n", &limits), Ok(0));
        let too_big = Err("ERR Protocol error: too big mbulk count string".to_owned());
        assert_eq!(whole("*".to_owned() + &"1".repeat(long), &limits), too_big);
    }
    let too_big = Err("ERR Protocol error: too big bulk count string".to_owned());
    assert_eq!(whole("*1\r\n$".to_owned() + &"1".repeat(long), &AFTER), too_big);
    let too_big = Err("ERR Protocol error: too big request".to_owned());
    assert_eq!(whole("*1\r\n$".to_owned() + &"1".repeat(long), &BEFORE), too_big);
}

#[test]
fn a_line_keeps_the_limits_of_arguments_too() {
    assert_eq!(error_of("a ".repeat(11) + "\n", &BEFORE), "ERR Protocol error: unauthenticated multibulk length");
    let outcome = feed(("a".repeat(16_385) + "\n").as_bytes(), [], &BEFORE);
    assert_eq!(outcome.end, Err(ProtocolError::UnauthenticatedBulkLength));
    let outcome = feed(("a ".repeat(1026) + "\n").as_bytes(), [], &AFTER);
    assert_eq!(outcome.end, Err(ProtocolError::InvalidMultibulkLength));
}

#[test]
fn all_arguments_together_keep_the_limit_of_a_request() {
    let argument = vec![b'x'; 64 * 1024];
    let fits = command(&[&argument; 15]);
    assert_eq!(feed(&fits, [1000; 300], &AFTER).requests.len(), 1);
    let outcome = feed(&command(&[&argument; 16]), [1000; 300], &AFTER);
    assert_eq!((outcome.requests.len(), outcome.end), (0, Err(ProtocolError::TooBigRequest)));
    let outcome = feed(&command(&[&argument[..16 * 1024]; 4]), [1000; 300], &BEFORE);
    assert_eq!((outcome.requests.len(), outcome.end), (0, Err(ProtocolError::TooBigRequest)));
    // The limit is one request's, not the stream's.
    assert_eq!(feed(&fits.repeat(3), [4096; 300], &AFTER).requests.len(), 3);
}

#[test]
fn sizes_around_every_limit_mean_the_same_in_whatever_pieces() {
    for (first, second, third) in (0..13 * 13 * 21).map(|size| (size % 13, size / 13 % 13, size / 169)) {
        let stream = command(&[vec![b'a'; first], vec![b'b'; second], vec![b'c'; third]]);
        let outcome = feed_every_way(&stream, &TINY);
        let allowed = third <= TINY.max_bulk && stream.len() <= TINY.max_total;
        assert_eq!(outcome.end.is_ok(), allowed, "{}", stream.escape_ascii());
    }
}

#[test]
fn http_is_refused_in_silence_at_its_first_line() {
    let get = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\nINCR order\r\n";
    for stream in ["POST / HTTP/1.1\r\n\r\nINCR order\r\n", "Host: a\r\nINCR order\r\n", "host: a\r\n", get] {
        assert_eq!(read(stream, &AFTER), (vec![], Err(ProtocolError::CrossProtocol)));
    }
    assert_eq!(ProtocolError::CrossProtocol.text(), None);
    assert_eq!(read("GET order\r\n", &AFTER), (vec!["GET|order".to_owned()], Ok(0)));
}

#[test]
fn a_tls_handshake_is_told_by_its_first_two_bytes() {
    let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    assert_eq!(error_of(hello, &BEFORE), "ERR Protocol error: this port does not speak TLS");
    assert_eq!(read(b"\x16", &BEFORE), (vec![], Ok(1)));
    assert_eq!(read(b"\x16x\n", &BEFORE), (vec!["\\x16x".to_owned()], Ok(0)));
}

#[test]
fn limits_may_grow_within_a_stream() {
    let stream = [command(&["AUTH", "secret"]), command(&["x"; 11])].concat();
    let mut scanner = Scanner::new();
    assert!(matches!(scanner.next(&stream, &BEFORE), Ok(Scan::Request(_))));
    let rest = &stream[scanner.consumed()..];
    assert!(matches!(scanner.next(rest, &AFTER), Ok(Scan::Request(request)) if request.len() == 11));
}

/// T22 (memory only for what has arrived): announces lengths within the limits and sends little of what was announced.
fn feed_announcements(rules: Rules) -> Result<(), String> {
    for stream in ["*1\r\n$65536\r\n", "*1025\r\n$3\r\nfoo\r\n$60000\r\nbar", "*2\r\n$100\r\n", "*1024\r\n$1\r\nx\r\n"]
    {
        let mut scanner = Scanner::with_rules(rules);
        for arrived in 1..=stream.len() {
            assert!(matches!(scanner.next(&stream.as_bytes()[..arrived], &AFTER), Ok(Scan::Incomplete)));
            check_memory(&scanner, arrived, &AFTER)?;
        }
    }
    Ok(())
}

/// T22.
#[test]
fn t22_a_bulk_length_is_never_trusted_for_memory() {
    feed_announcements(Rules::default()).expect("memory only for what has arrived");
}

/// T22 finds B13: a scanner that makes room for a bulk string when its length has been read.
#[test]
fn t22_catches_b13_a_bulk_length_that_is_trusted_for_memory() {
    let caught = feed_announcements(Rules { trust_bulk_length: true });
    assert_eq!(caught, Err("65536 bytes held, 12 arrived".to_owned()));
}

#[test]
fn what_a_large_request_needed_is_given_back_before_the_connection_waits() {
    let mut scanner = Scanner::new();
    for stream in [command(&vec!["x"; 1025]), ("y".repeat(60_000) + "\r\n").into_bytes()] {
        assert!(matches!(scanner.next(&stream, &AFTER), Ok(Scan::Request(_))));
        assert!(scanner.memory() > 8000);
        assert!(matches!(scanner.next(b"", &AFTER), Ok(Scan::Incomplete)));
        assert!(scanner.memory() <= 2048, "{} bytes kept", scanner.memory());
    }
}

#[test]
fn each_error_is_counted_under_a_label_of_its_own() {
    use ProtocolError as E;
    let all = [
        E::InvalidMultibulkLength,
        E::InvalidBulkLength,
        E::UnauthenticatedMultibulkLength,
        E::UnauthenticatedBulkLength,
        E::TooBigMbulkCount,
        E::TooBigBulkCount,
        E::ExpectedBulk(b'x'),
        E::UnbalancedQuotes,
        E::TooBigInline,
        E::TooBigRequest,
        E::CrossProtocol,
        E::Tls,
    ];
    let kinds: std::collections::BTreeSet<_> = all.iter().map(|error| error.kind()).collect();
    assert_eq!(kinds.len(), all.len());
    assert!(kinds.iter().all(|kind| kind.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')));
}

/// Arguments as they come, some around the lengths at which a header gets longer.
fn argument() -> impl Strategy<Value = Vec<u8>> {
    let len = prop_oneof![8 => 0..20_usize, 2 => 95..105_usize, 1 => 995..1005_usize];
    len.prop_flat_map(|len| vec(any::<u8>(), len))
}

proptest! {
    #[test]
    fn any_commands_are_read_as_the_oracle_wrote_them(
        commands in vec(vec(argument(), 1..12), 0..6),
        pieces in vec(1..40_usize, 0..60),
    ) {
        let mut stream = Vec::new();
        for arguments in &commands {
            let frame = OwnedFrame::Array(arguments.iter().cloned().map(OwnedFrame::BulkString).collect());
            let mut bytes = vec![0; frame.encode_len(false)];
            let len = encode(&mut bytes, &frame, false).expect("room enough");
            prop_assert_eq!(&bytes[..len], command(arguments), "our own writer");
            stream.extend_from_slice(&bytes[..len]);
        }
        let expected = Outcome { requests: commands, end: Ok(0) };
        prop_assert_eq!(&feed(&stream, [], &AFTER), &expected);
        prop_assert_eq!(&feed(&stream, pieces, &AFTER), &expected);
        prop_assert_eq!(&feed(&stream, std::iter::repeat(1), &AFTER), &expected);
    }

    #[test]
    fn any_words_are_read_back_from_a_quoted_line(words in vec(vec(any::<u8>(), 0..20), 1..8), cut in 0..200_usize) {
        let escape = |byte: &u8| format!("\\x{byte:02X}");
        let quote = |word: &Vec<u8>| format!("\"{}\" ", word.iter().map(escape).collect::<Vec<_>>().concat());
        let line = words.iter().map(quote).collect::<Vec<_>>().concat() + "\r\n";
        let requests = feed(line.as_bytes(), [cut], &AFTER);
        prop_assert_eq!(requests, Outcome { requests: vec![words], end: Ok(0) });
    }
}
