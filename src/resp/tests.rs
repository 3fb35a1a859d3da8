//! Tests of the room as a whole: streams of requests however they are cut, replies read back, a million random inputs.
use super::*;
#[test]
fn smoke() {
    let mut out = Vec::new();
    ids(&mut out, IdForm::Integer, 7, 123);
    let want: String = (7..123).map(|n| format!(":{n}\r\n")).collect();
    assert_eq!(String::from_utf8(out).unwrap(), want);
    let mut scanner = Scanner::new();
    let buf = b"\r\n*2\r\n$5\r\nIDGET\r\n$5\r\norder\r\nPING 'a'\r\n";
    let mut cursor = 0;
    let mut seen = Vec::new();
    loop {
        let scan = scanner.next(&buf[cursor..], &Limits::BEFORE_LOGIN).unwrap();
        let Scan::Request(r) = scan else { break };
        seen.push(r.args().map(|a| String::from_utf8_lossy(a).into_owned()).collect::<Vec<_>>().join("|"));
        cursor += scanner.consumed();
    }
    assert_eq!(seen, ["IDGET|order", "PING|a"]);
}
