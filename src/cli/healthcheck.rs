//! `idgen healthcheck`: one `PING` to the listener of the configuration, for containers and scripts.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::config::Config;

/// How long connecting and each read and write may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// The longest answer that is looked at, in bytes.
const MAX_ANSWER: u64 = 512;

/// What the server says of itself, or why it doesn't serve.
pub fn ask(config: &Config) -> Result<String, String> {
    let server = &config.server;
    let (place, answer) = if server.addr.is_empty() {
        (&server.unix_socket, ping_socket(&server.unix_socket))
    } else {
        (&server.addr, ping_address(&server.addr))
    };
    let answer = answer.map_err(|error| format!("no answer from {place}: {error}"))?;
    match answer.trim_end() {
        "+PONG" => Ok(format!("{place} serves")),
        // It has no token to log in with; that it asks for one shows that it is alive.
        refused if refused.starts_with("-NOAUTH") => Ok(format!("{place} is alive and asks for a login")),
        other => Err(format!("{place} answers: {}", other.trim_start_matches('-').escape_debug())),
    }
}

fn ping_socket(path: &str) -> io::Result<String> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    ping(stream)
}

fn ping_address(addr: &str) -> io::Result<String> {
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

/// Where a listener on `addr` is found: one on all addresses at the loopback one.
fn reachable(mut addr: SocketAddr) -> SocketAddr {
    if addr.ip().is_unspecified() {
        let loopback = if addr.is_ipv4() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { IpAddr::V6(Ipv6Addr::LOCALHOST) };
        addr.set_ip(loopback);
    }
    addr
}

/// One line in answer to one `PING`.
fn ping(mut stream: impl Read + Write) -> io::Result<String> {
    stream.write_all(b"*1\r\n$4\r\nPING\r\n")?;
    let mut line = String::new();
    BufReader::new(stream.take(MAX_ANSWER)).read_line(&mut line)?;
    if line.ends_with('\n') {
        return Ok(line);
    }
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended before an answer"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::config::Sources;

    /// What is made of a server that says `answer`.
    fn asked(answer: &'static [u8]) -> Result<String, String> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("bound").to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut request = [0; 14];
            stream.read_exact(&mut request).expect("a request");
            assert_eq!(&request, b"*1\r\n$4\r\nPING\r\n");
            stream.write_all(answer).expect("written");
        });
        let result = ask(&listening_on(&addr));
        server.join().expect("the server ended well");
        result
    }

    fn listening_on(addr: &str) -> Config {
        let flags = vec![("--addr".to_owned(), "server.addr".to_owned(), addr.to_owned())];
        let wall = crate::clock::Wall(1_800_000_000_000_000_000);
        Config::load(&Sources { flags, default_file: "/nonexistent".into(), ..Sources::default() }, wall)
            .expect("valid")
    }

    #[test]
    fn only_a_server_that_serves_is_healthy() {
        assert!(asked(b"+PONG\r\n").expect("healthy").ends_with("serves"));
        assert!(asked(b"-NOAUTH Authentication required.\r\n").is_ok());
        assert!(asked(b"-LOADING no tag can be served yet\r\n").expect_err("ill").contains("LOADING no tag"));
        assert!(asked(b"").expect_err("ill").contains("ended before an answer"));
        assert!(ask(&listening_on("127.0.0.1:1")).expect_err("ill").contains("127.0.0.1:1"));
    }

    #[test]
    fn a_listener_on_all_addresses_is_asked_on_loopback() {
        let addr = |text: &str| text.parse::<SocketAddr>().expect("an address");
        assert_eq!(reachable(addr("0.0.0.0:6390")), addr("127.0.0.1:6390"));
        assert_eq!(reachable(addr("[::]:6390")), addr("[::1]:6390"));
        assert_eq!(reachable(addr("10.0.0.1:6390")), addr("10.0.0.1:6390"));
    }
}
