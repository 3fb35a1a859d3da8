//! Replies: read back by the oracle in both versions, and written byte for byte as clients expect them.

use proptest::collection::vec;
use proptest::prelude::*;
use redis_protocol::resp3::decode::complete::decode as decode3;
use redis_protocol::resp3::types::OwnedFrame as Frame3;

use super::*;

fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = b"before".to_vec();
    write(&mut out);
    let out = out.strip_prefix(b"before").expect("what was there stays");
    String::from_utf8(out.to_vec()).expect("text")
}

/// What `ids` has to write, by the standard library.
fn expected_ids(form: IdForm, start: u64, end: u64) -> String {
    let line = |id: u64| match form {
        IdForm::Integer => format!(":{id}\r\n"),
        IdForm::Bulk => format!("${}\r\n{id}\r\n", id.to_string().len()),
    };
    (start..end).map(line).collect()
}

#[test]
fn replies_have_the_bytes_of_the_protocol() {
    assert_eq!(written(|out| simple(out, "OK")), "+OK\r\n");
    assert_eq!(written(|out| error(out, "ERR no")), "-ERR no\r\n");
    assert_eq!(written(|out| error(out, "no")), "-ERR no\r\n");
    assert_eq!(written(|out| integer(out, i64::MIN)), ":-9223372036854775808\r\n");
    assert_eq!(written(|out| integer(out, 0)), ":0\r\n");
    assert_eq!(written(|out| bulk(out, b"a\r\nb")), "$4\r\na\r\nb\r\n");
    assert_eq!(written(|out| bulk(out, b"")), "$0\r\n\r\n");
    assert_eq!(written(|out| array_header(out, 10_000)), "*10000\r\n");
    assert_eq!(written(|out| null(out, Protocol::Resp2)), "$-1\r\n");
    assert_eq!(written(|out| null(out, Protocol::Resp3)), "_\r\n");
    assert_eq!(written(|out| id(out, IdForm::Bulk, 10)), "$2\r\n10\r\n");
}

#[test]
fn a_text_of_one_line_stays_one_line_and_is_cut() {
    assert_eq!(written(|out| error(out, "ERR a\r\n+OK\r\n\0\x7f")), "-ERR a  +OK    \r\n");
    assert_eq!(written(|out| simple(out, "a\nb")), "+a b\r\n");
    let long = written(|out| error(out, &("ERR ".to_owned() + &"\u{e9}".repeat(1000))));
    assert_eq!(long.len(), 1 + 512 + 2);
    let odd = written(|out| error(out, &("ERR x".to_owned() + &"\u{e9}".repeat(1000))));
    assert_eq!(odd.len(), 1 + 511 + 2, "not within a character");
}

#[test]
fn ids_are_counted_up_over_every_carry() {
    for form in [IdForm::Integer, IdForm::Bulk] {
        assert_eq!(written(|out| ids(out, form, 5, 5)), "");
        assert_eq!(written(|out| ids(out, form, 6, 5)), "");
        assert_eq!(written(|out| ids(out, form, 0, 20_101)), expected_ids(form, 0, 20_101));
        let mut power = 1_u64;
        while let Some(next) = power.checked_mul(10) {
            power = next;
            for (start, end) in
                [(power - 1, power + 1), (power.saturating_sub(12), power + 12), (power - 1, power), (power, power + 1)]
            {
                assert_eq!(written(|out| ids(out, form, start, end)), expected_ids(form, start, end), "{start}..{end}");
            }
        }
        let largest = i64::MAX as u64;
        assert_eq!(
            written(|out| ids(out, form, largest - 25, largest + 1)),
            expected_ids(form, largest - 25, largest + 1)
        );
        assert_eq!(written(|out| ids(out, form, u64::MAX - 25, u64::MAX)), expected_ids(form, u64::MAX - 25, u64::MAX));
    }
}

/// A value of every kind in both versions.
#[test]
fn values_are_written_in_the_version_of_the_connection() {
    let pair = || (Value::bulk("proto"), Value::Integer(3));
    let cases = [
        (Value::Simple("QUEUED".into()), "+QUEUED\r\n", "+QUEUED\r\n"),
        (Value::Error("EXECABORT a\nb".into()), "-EXECABORT a b\r\n", "-EXECABORT a b\r\n"),
        (Value::bulk("a"), "$1\r\na\r\n", "$1\r\na\r\n"),
        (Value::Integer(-7), ":-7\r\n", ":-7\r\n"),
        (Value::Double(0.5), "$3\r\n0.5\r\n", ",0.5\r\n"),
        (Value::Double(f64::NAN), "$3\r\nnan\r\n", ",nan\r\n"),
        (Value::Double(f64::NEG_INFINITY), "$4\r\n-inf\r\n", ",-inf\r\n"),
        (Value::Boolean(true), ":1\r\n", "#t\r\n"),
        (Value::Boolean(false), ":0\r\n", "#f\r\n"),
        (Value::Null, "$-1\r\n", "_\r\n"),
        (Value::Array(vec![]), "*0\r\n", "*0\r\n"),
        (Value::Array(vec![Value::Null]), "*1\r\n$-1\r\n", "*1\r\n_\r\n"),
        (Value::Map(vec![pair()]), "*2\r\n$5\r\nproto\r\n:3\r\n", "%1\r\n$5\r\nproto\r\n:3\r\n"),
        (Value::Set(vec![Value::Simple("fast".into())]), "*1\r\n+fast\r\n", "~1\r\n+fast\r\n"),
        (Value::Push(vec![Value::bulk("x")]), "*1\r\n$1\r\nx\r\n", ">1\r\n$1\r\nx\r\n"),
    ];
    for (value, resp2, resp3) in cases {
        assert_eq!(written(|out| value.write(out, Protocol::Resp2)), resp2, "{value:?}");
        assert_eq!(written(|out| value.write(out, Protocol::Resp3)), resp3, "{value:?}");
    }
}

#[test]
fn maps_keep_the_order_they_were_given() {
    let fields = ["server", "version", "proto", "id", "mode", "role", "modules"];
    let map = Value::Map(fields.iter().map(|field| (Value::bulk(field), Value::Null)).collect());
    let expected: Vec<String> = fields.iter().map(|field| format!("${}\r\n{field}\r\n_\r\n", field.len())).collect();
    assert_eq!(written(|out| map.write(out, Protocol::Resp3)), format!("%7\r\n{}", expected.concat()));
}

/// What the oracle has to read in RESP2.
fn in_resp2(value: &Value) -> OwnedFrame {
    let all = |members: &[Value]| OwnedFrame::Array(members.iter().map(in_resp2).collect());
    match value {
        Value::Simple(text) => OwnedFrame::SimpleString(text.as_bytes().to_vec()),
        Value::Error(text) => OwnedFrame::Error(text.to_string()),
        Value::Bulk(bytes) => OwnedFrame::BulkString(bytes.clone()),
        Value::Integer(value) => OwnedFrame::Integer(*value),
        Value::Double(value) => OwnedFrame::BulkString(value.to_string().into_bytes()),
        Value::Boolean(value) => OwnedFrame::Integer(i64::from(*value)),
        Value::Null => OwnedFrame::Null,
        Value::Array(members) | Value::Set(members) | Value::Push(members) => all(members),
        Value::Map(pairs) => OwnedFrame::Array(pairs.iter().flat_map(|(k, v)| [in_resp2(k), in_resp2(v)]).collect()),
    }
}

/// What the oracle has to read in RESP3.
fn in_resp3(value: &Value) -> Frame3 {
    let all = |members: &[Value]| members.iter().map(in_resp3).collect();
    let attributes = None;
    match value {
        Value::Simple(text) => Frame3::SimpleString { data: text.as_bytes().to_vec(), attributes },
        Value::Error(text) => Frame3::SimpleError { data: text.to_string(), attributes },
        Value::Bulk(bytes) => Frame3::BlobString { data: bytes.clone(), attributes },
        Value::Integer(data) => Frame3::Number { data: *data, attributes },
        Value::Double(data) => Frame3::Double { data: *data, attributes },
        Value::Boolean(data) => Frame3::Boolean { data: *data, attributes },
        Value::Null => Frame3::Null,
        Value::Array(members) => Frame3::Array { data: all(members), attributes },
        Value::Push(members) => Frame3::Push { data: all(members), attributes },
        Value::Set(members) => Frame3::Set { data: members.iter().map(in_resp3).collect(), attributes },
        Value::Map(pairs) => {
            Frame3::Map { data: pairs.iter().map(|(k, v)| (in_resp3(k), in_resp3(v))).collect(), attributes }
        }
    }
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        "[ -~]{0,20}".prop_map(|text| Value::Simple(text.into())),
        "[A-Z]{1,9} [ -~]{0,20}".prop_map(|text| Value::Error(text.into())),
        vec(any::<u8>(), 0..40).prop_map(Value::Bulk),
        any::<i64>().prop_map(Value::Integer),
        prop::num::f64::NORMAL.prop_map(Value::Double),
        any::<bool>().prop_map(Value::Boolean),
        Just(Value::Null),
    ]
}

/// Values of any shape. The oracle keeps maps and sets as tables: their keys differ and have no members.
fn value() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(4, 40, 6, |inner| {
        let key = |place: usize| Value::bulk(format!("key {place}"));
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::Array),
            vec(any::<i32>(), 0..6).prop_map(|numbers| {
                let distinct: std::collections::BTreeSet<_> = numbers.into_iter().map(i64::from).collect();
                Value::Set(distinct.into_iter().map(Value::Integer).collect())
            }),
            vec(inner, 0..6).prop_map(move |values| {
                Value::Map(values.into_iter().enumerate().map(|(place, value)| (key(place), value)).collect())
            }),
        ]
    })
}

proptest! {
    #[test]
    fn any_value_is_read_back_in_both_versions(value in value(), pushed in any::<bool>()) {
        // A push never stands within another value.
        let value = if pushed { Value::Push(vec![Value::bulk("message"), value]) } else { value };
        let mut out = Vec::new();
        value.write(&mut out, Protocol::Resp2);
        prop_assert_eq!(decode(&out).expect("valid"), Some((in_resp2(&value), out.len())));
        out.clear();
        value.write(&mut out, Protocol::Resp3);
        prop_assert_eq!(decode3(&out).expect("valid"), Some((in_resp3(&value), out.len())));
    }

    #[test]
    fn the_quick_writers_write_what_values_do(number: i64, bytes in vec(any::<u8>(), 0..200), text: String) {
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            let (mut quick, mut general) = (Vec::new(), Vec::new());
            integer(&mut quick, number);
            bulk(&mut quick, &bytes);
            simple(&mut quick, &text);
            error(&mut quick, &text);
            array_header(&mut quick, bytes.len());
            Value::Integer(number).write(&mut general, protocol);
            Value::bulk(&bytes).write(&mut general, protocol);
            Value::Simple(text.clone().into()).write(&mut general, protocol);
            Value::Error(text.clone().into()).write(&mut general, protocol);
            general.extend_from_slice(format!("*{}\r\n", bytes.len()).as_bytes());
            prop_assert_eq!(quick, general);
        }
    }

    #[test]
    fn any_text_of_an_error_stays_within_its_reply(text: String) {
        let mut out = Vec::new();
        error(&mut out, &text);
        let (frame, len) = decode(&out).expect("valid").expect("whole");
        prop_assert_eq!(len, out.len());
        let OwnedFrame::Error(read) = frame else { panic!("no error: {frame:?}") };
        prop_assert!(read.contains(' ') && !read.bytes().any(|byte| byte.is_ascii_control()));
    }

    #[test]
    fn any_run_of_ids_is_written_as_the_standard_library_does(
        anchor in prop_oneof![any::<u64>(), (0..20_u32).prop_map(|digits| 10_u64.pow(digits)), Just(1 << 63)],
        before in 0..1500_u64,
        count in 0..3000_u64,
        bulk: bool,
    ) {
        let form = if bulk { IdForm::Bulk } else { IdForm::Integer };
        let start = anchor.saturating_sub(before);
        let end = start.saturating_add(count);
        let mut out = b"before".to_vec();
        ids(&mut out, form, start, end);
        prop_assert_eq!(String::from_utf8(out).expect("text"), "before".to_owned() + &expected_ids(form, start, end));
    }
}
