//! As much of the MySQL and PostgreSQL protocols as a proxy needs to tell requests apart and to know when one is
//! answered.
//!
//! It knows the text of a prepared statement when the statement is run, and takes nothing for granted about how the
//! bytes are cut. Only unencrypted connections can be read.

use std::collections::HashMap;

/// What a proxy speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Anything: bytes pass as they come.
    Bytes,
    /// MySQL and MariaDB.
    MySql,
    /// PostgreSQL.
    Postgres,
}

/// A piece of what a client sends that is passed on or kept as a whole.
#[derive(Debug, PartialEq, Eq)]
pub struct Unit {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The statement that it runs, if it runs one.
    pub statement: Option<String>,
}

/// One connection.
#[derive(Debug)]
pub struct Speech {
    protocol: Protocol,
    sent: Vec<u8>,
    said: Vec<u8>,
    /// Requests that will be answered.
    asked: u64,
    /// Answers that are complete enough to know that the server has done what it was asked.
    answered: u64,
    /// PostgreSQL: the messages since the last complete request.
    open: Vec<u8>,
    started: bool,
    bound: Option<String>,
    /// Statements by their name (PostgreSQL) or number (MySQL).
    prepared: HashMap<String, String>,
    preparing: Option<String>,
}

impl Speech {
    /// A fresh connection.
    pub fn new(protocol: Protocol) -> Self {
        Self {
            protocol,
            sent: Vec::new(),
            said: Vec::new(),
            asked: 0,
            answered: 0,
            open: Vec::new(),
            started: false,
            bound: None,
            prepared: HashMap::new(),
            preparing: None,
        }
    }

    /// How many requests have been asked, and how many answered.
    pub fn counts(&self) -> (u64, u64) {
        (self.asked, self.answered)
    }

    /// What the client has sent now, as units; bytes of an incomplete one are kept back.
    pub fn client(&mut self, bytes: &[u8]) -> Vec<Unit> {
        self.sent.extend_from_slice(bytes);
        match self.protocol {
            Protocol::Bytes => {
                let bytes = std::mem::take(&mut self.sent);
                if bytes.is_empty() { Vec::new() } else { vec![Unit { bytes, statement: None }] }
            }
            Protocol::MySql => std::iter::from_fn(|| self.mysql_packet()).collect(),
            Protocol::Postgres => std::iter::from_fn(|| self.postgres_message()).flatten().collect(),
        }
    }

    /// Learns from what the server has said now.
    pub fn server(&mut self, bytes: &[u8]) {
        self.said.extend_from_slice(bytes);
        match self.protocol {
            Protocol::Bytes => self.said.clear(),
            Protocol::MySql => while self.mysql_answer().is_some() {},
            Protocol::Postgres => while self.postgres_answer().is_some() {},
        }
    }

    fn mysql_packet(&mut self) -> Option<Unit> {
        let bytes = take(&mut self.sent, mysql_length)?;
        let (number, command) = (bytes[3], bytes.get(4).copied());
        let rest = || String::from_utf8_lossy(&bytes[5..]).into_owned();
        let mut statement = None;
        // A command begins a new sequence; what is numbered otherwise belongs to the handshake.
        if let (0, Some(command)) = (number, command) {
            match command {
                0x03 => statement = Some(rest()),                                      // COM_QUERY
                0x16 => self.preparing = Some(rest()),                                 // COM_STMT_PREPARE
                0x17 => statement = self.prepared.get(&number_at(&bytes, 5)).cloned(), // COM_STMT_EXECUTE
                _ => {}
            }
            // COM_QUIT, COM_STMT_SEND_LONG_DATA and COM_STMT_CLOSE have no answer.
            self.asked += u64::from(!matches!(command, 0x01 | 0x18 | 0x19));
        }
        Some(Unit { bytes, statement })
    }

    fn mysql_answer(&mut self) -> Option<()> {
        let bytes = take(&mut self.said, mysql_length)?;
        if bytes[3] == 1 && self.answered < self.asked {
            self.answered += 1;
            if let Some(text) = self.preparing.take().filter(|_| bytes.get(4) == Some(&0)) {
                self.prepared.insert(number_at(&bytes, 5), text);
            }
        }
        Some(())
    }

    fn postgres_message(&mut self) -> Option<Vec<Unit>> {
        if !self.started {
            let bytes = take(&mut self.sent, |sent| length_at(sent, 0))?;
            let code = bytes.get(4..8).map(<[u8]>::to_vec);
            // A request for TLS is answered by one byte and followed by another start.
            self.started = code != Some(80_877_103_u32.to_be_bytes().to_vec());
            self.asked += u64::from(self.started);
            return Some(vec![Unit { bytes, statement: None }]);
        }
        let bytes = take(&mut self.sent, |sent| length_at(sent, 1).map(|length| length + 1))?;
        let texts: Vec<String> =
            bytes[5..].split(|byte| *byte == 0).map(|text| String::from_utf8_lossy(text).into_owned()).collect();
        let text = |at: usize| texts.get(at).cloned().unwrap_or_default();
        let kind = bytes[0];
        self.open.extend(bytes);
        match kind {
            b'P' => drop(self.prepared.insert(text(0), text(1))),
            b'B' => self.preparing = self.prepared.get(&text(1)).cloned(),
            b'E' => self.bound = self.preparing.take(),
            b'Q' => self.bound = Some(text(0)),
            _ => {}
        }
        if matches!(kind, b'P' | b'B' | b'D' | b'E' | b'C') {
            return Some(Vec::new());
        }
        self.asked += u64::from(matches!(kind, b'Q' | b'S'));
        Some(vec![Unit { bytes: std::mem::take(&mut self.open), statement: self.bound.take() }])
    }

    fn postgres_answer(&mut self) -> Option<()> {
        // The answer to a request for TLS: one letter, before everything else.
        if self.asked == 0 && matches!(self.said.first(), Some(b'N' | b'S')) {
            self.said.remove(0);
            return Some(());
        }
        let bytes = take(&mut self.said, |said| length_at(said, 1).map(|length| length + 1))?;
        self.answered += u64::from(bytes[0] == b'Z'); // ReadyForQuery: the transaction has ended
        Some(())
    }
}

/// Takes the message at the front of `bytes` away, once all of it is there.
fn take(bytes: &mut Vec<u8>, length: impl Fn(&[u8]) -> Option<usize>) -> Option<Vec<u8>> {
    let length = length(bytes).filter(|length| *length > 0 && *length <= bytes.len())?;
    Some(bytes.drain(..length).collect())
}

fn mysql_length(bytes: &[u8]) -> Option<usize> {
    let head = bytes.get(..4)?;
    Some(4 + usize::from(head[0]) + (usize::from(head[1]) << 8) + (usize::from(head[2]) << 16))
}

fn length_at(bytes: &[u8], at: usize) -> Option<usize> {
    let length: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_be_bytes(length)).ok()
}

fn number_at(bytes: &[u8], at: usize) -> String {
    let number = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes);
    number.to_string()
}

#[test]
fn mysql_statements_are_told_apart_however_the_bytes_are_cut() {
    let packet = |number: u8, payload: &[u8]| {
        let mut bytes = vec![u8::try_from(payload.len()).unwrap(), 0, 0, number];
        bytes.extend_from_slice(payload);
        bytes
    };
    let mut speech = Speech::new(Protocol::MySql);
    speech.server(&packet(0, b"greeting"));
    assert_eq!(speech.client(&packet(1, b"login"))[0].statement, None);
    speech.server(&packet(2, &[0, 0, 0]));
    let query = packet(0, b"\x03SELECT 1");
    let units: Vec<Unit> = query.iter().flat_map(|byte| speech.client(&[*byte])).collect();
    assert_eq!(units, [Unit { bytes: query, statement: Some("SELECT 1".into()) }]);
    assert_eq!(speech.counts(), (1, 0));
    speech.server(&packet(1, &[1]));
    assert_eq!(speech.counts(), (1, 1));
    assert_eq!(speech.client(&packet(0, b"\x16UPDATE t"))[0].statement, None);
    speech.server(&packet(1, &[0, 7, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(speech.client(&packet(0, &[0x17, 7, 0, 0, 0, 0]))[0].statement, Some("UPDATE t".into()));
    assert_eq!(speech.counts(), (3, 2));
}

#[test]
fn postgresql_requests_end_with_a_sync_however_the_bytes_are_cut() {
    let message = |kind: u8, payload: &[u8]| {
        let mut bytes = vec![kind];
        bytes.extend(u32::try_from(payload.len() + 4).unwrap().to_be_bytes());
        bytes.extend_from_slice(payload);
        bytes
    };
    let mut speech = Speech::new(Protocol::Postgres);
    let tls = [8_u32.to_be_bytes(), 80_877_103_u32.to_be_bytes()].concat();
    assert_eq!(speech.client(&tls).len(), 1);
    speech.server(b"N");
    let start = [12_u32.to_be_bytes(), [0, 3, 0, 0], [b'a', 0, 0, 0]].concat();
    assert_eq!(speech.client(&start).len(), 1);
    speech.server(&[message(b'R', &[0; 4]), message(b'Z', b"I")].concat());
    assert_eq!(speech.counts(), (1, 1));
    let prepare = [message(b'P', b"s1\0UPDATE t\0\0\0"), message(b'D', b"Ss1\0"), message(b'S', b"")].concat();
    let units: Vec<Unit> = prepare.iter().flat_map(|byte| speech.client(&[*byte])).collect();
    assert_eq!(units, [Unit { bytes: prepare, statement: None }]);
    let run = [message(b'B', b"\0s1\0\0\0\0\0\0\0"), message(b'E', &[0; 5]), message(b'S', b"")].concat();
    assert_eq!(speech.client(&run), [Unit { bytes: run, statement: Some("UPDATE t".into()) }]);
    assert_eq!(speech.counts(), (3, 1));
    speech.server(&message(b'Z', b"I"));
    speech.server(&message(b'C', b"UPDATE 1\0"));
    assert_eq!(speech.counts(), (3, 2));
    assert_eq!(speech.client(&message(b'Q', b"SELECT 1\0"))[0].statement, Some("SELECT 1".into()));
}
