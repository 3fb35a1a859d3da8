//! Any ids and any text: runs of ids are those of the standard library, and no text leaves its own reply.
#![no_main]

use idgen_fuzz::resp::Protocol::{Resp2, Resp3};
use idgen_fuzz::resp::{IdForm, Value, bulk, error, ids, integer};
use libfuzzer_sys::fuzz_target;
use redis_protocol::resp2::{decode::decode as decode2, types::OwnedFrame};
use redis_protocol::resp3::decode::complete::decode as decode3;

fuzz_target!(|input: &[u8]| {
    let Some((numbers, text)) = input.split_first_chunk::<9>() else { return };
    let [start @ .., count] = *numbers;
    let start = u64::from_le_bytes(start);
    let end = start.saturating_add(u64::from(count));
    let mut out = Vec::new();
    ids(&mut out, IdForm::Integer, start, end);
    let expected: String = (start..end).map(|id| format!(":{id}\r\n")).collect();
    assert_eq!(out, expected.as_bytes());
    out.clear();
    ids(&mut out, IdForm::Bulk, start, end);
    let expected: String = (start..end).map(|id| format!("${}\r\n{id}\r\n", id.to_string().len())).collect();
    assert_eq!(out, expected.as_bytes());

    let shown = String::from_utf8_lossy(text);
    let value = Value::Map(vec![
        (Value::bulk(text), Value::Error(shown.to_string().into())),
        (Value::Boolean(true), Value::Array(vec![Value::Simple(shown.to_string().into()), Value::Null])),
        (Value::Integer(start.cast_signed()), Value::Double(f64::from_bits(start))),
    ]);
    for protocol in [Resp2, Resp3] {
        out.clear();
        value.write(&mut out, protocol);
        let len = match protocol {
            Resp2 => decode2(&out).expect("valid").expect("whole").1,
            Resp3 => decode3(&out).expect("valid").expect("whole").1,
        };
        assert_eq!(len, out.len(), "one reply and nothing behind it");
    }

    out.clear();
    error(&mut out, &shown);
    assert!(matches!(decode2(&out), Ok(Some((OwnedFrame::Error(_), len))) if len == out.len()));
    out.clear();
    integer(&mut out, start.cast_signed());
    bulk(&mut out, text);
    assert_eq!(out, [format!(":{}\r\n${}\r\n", start.cast_signed(), text.len()).as_bytes(), text, b"\r\n"].concat());
});
