//! `idgen healthcheck`: one `PING` to the listener of the configuration, for containers and scripts.
//!
//! What answers must be idgen: another server on the same port would otherwise pass for it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::client::reachable;
use crate::server;

/// How long connecting and each read and write may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// The longest line that is looked at, in bytes.
const MAX_LINE: u64 = 512;

/// How much of what the server says of itself is looked at, in bytes.
const MAX_INFO: u64 = 64 * 1024;

/// What a server answers to `PING`, and whether it says that it is idgen.
struct Answer {
    line: String,
    own: bool,
}

/// What the server of this section says of itself, or why it doesn't serve.
pub fn ask(server: &server::Config) -> Result<String, String> {
    let (place, answer) = if server.addr.is_empty() {
        (&server.unix_socket, ping_socket(&server.unix_socket))
    } else {
        (&server.addr, ping_address(&server.addr))
    };
    let answer = answer.map_err(|error| format!("no answer from {place}: {error}"))?;
    match answer.line.trim_end() {
        "+PONG" if answer.own => Ok(format!("{place} serves")),
        "+PONG" => Err(format!("{place} answers a PING, but it is not idgen: another server has this address")),
        // It has no token to log in with; that it asks for one shows that something is alive.
        refused if refused.starts_with("-NOAUTH") => Ok(format!("{place} is alive and asks for a login")),
        other => Err(format!("{place} answers: {}", other.trim_start_matches('-').escape_debug())),
    }
}

fn ping_socket(path: &str) -> io::Result<Answer> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    ping(stream)
}

fn ping_address(addr: &str) -> io::Result<Answer> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for addr in addr.to_socket_addrs()? {
        match TcpStream::connect_timeout(&reachable(addr), PATIENCE) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                return ping(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// One `PING`; and where it is answered, the question what the server is.
fn ping(stream: impl Read + Write) -> io::Result<Answer> {
    let mut stream = BufReader::new(stream);
    stream.get_mut().write_all(b"*1\r\n$4\r\nPING\r\n")?;
    let line = read_line(&mut stream)?;
    if line.trim_end() != "+PONG" {
        return Ok(Answer { line, own: false });
    }
    stream.get_mut().write_all(b"*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n")?;
    let length = read_line(&mut stream)?.strip_prefix('$').and_then(|length| length.trim_end().parse().ok());
    let mut info = Vec::new();
    stream.take(length.unwrap_or(0).min(MAX_INFO)).read_to_end(&mut info)?;
    let own = String::from_utf8_lossy(&info).lines().any(|line| line.starts_with("idgen_version:"));
    Ok(Answer { line, own })
}

fn read_line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    stream.by_ref().take(MAX_LINE).read_line(&mut line)?;
    if line.ends_with('\n') {
        return Ok(line);
    }
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended before an answer"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
    const INFO: &[u8] = b"*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n";

    /// What is made of a server that says `answers` to the questions one after the other.
    fn asked(answers: Vec<(&'static [u8], &'static [u8])>) -> Result<String, String> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("bound").to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            for (question, answer) in answers {
                let mut request = vec![0; question.len()];
                stream.read_exact(&mut request).expect("a request");
                assert_eq!(request, question);
                stream.write_all(answer).expect("written");
            }
        });
        let result = ask(&listening_on(&addr));
        server.join().expect("the server ended well");
        result
    }

    fn listening_on(addr: &str) -> server::Config {
        server::Config { addr: addr.to_owned(), ..server::Config::default() }
    }

    #[test]
    fn only_a_server_that_serves_is_healthy() {
        let own = b"$42\r\n# Server\r\nidgen_version:0.1.0\r\nport:6390\r\n\r\n";
        assert!(asked(vec![(PING, &b"+PONG\r\n"[..]), (INFO, &own[..])]).expect("healthy").ends_with("serves"));
        assert!(asked(vec![(PING, &b"-NOAUTH Authentication required.\r\n"[..])]).is_ok());
        let loading = asked(vec![(PING, &b"-LOADING no tag can be served yet\r\n"[..])]);
        assert!(loading.expect_err("ill").contains("LOADING no tag"));
        assert!(asked(vec![(PING, &b""[..])]).expect_err("ill").contains("ended before an answer"));
        assert!(ask(&listening_on("127.0.0.1:1")).expect_err("ill").contains("127.0.0.1:1"));
    }

    #[test]
    fn another_server_is_not_taken_for_idgen() {
        for info in [&b"$31\r\n# Server\r\nredis_version:7.4.2\r\n\r\n"[..], b"-ERR unknown command\r\n", b"+OK\r\n"] {
            let answers = vec![(PING, &b"+PONG\r\n"[..]), (INFO, info)];
            assert!(asked(answers).expect_err("another").contains("not idgen"));
        }
    }
}
