//! A DSN of a database server, read strictly: what is not understood is refused rather than left out.
//!
//! Guaranteed: a server on another machine is spoken to only after its certificate was verified, name included. A weaker
//! mode is accepted for this machine alone; left out, it is plain text here and full verification elsewhere. Errors name
//! the key and never the DSN. Rejected: the drivers' own parsers, which fall back to plain text where a server offers no
//! TLS, take settings from the environment, and put the whole address into their errors.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use super::Dialect;

/// A database on a server, and how to get there.
#[derive(Clone, PartialEq, Eq)]
pub struct Server {
    /// MySQL (or MariaDB), or PostgreSQL.
    pub dialect: Dialect,
    /// Name or address, an IPv6 address without brackets; `localhost` beside a socket.
    pub host: String,
    /// TCP port; the dialect's own where the DSN has none.
    pub port: u16,
    /// The unix socket to use in place of TCP. PostgreSQL: the folder it lies in.
    pub socket: Option<PathBuf>,
    /// Who logs in.
    pub user: String,
    /// With what; never shown.
    pub password: Option<String>,
    /// The name of the database.
    pub database: String,
    /// How the connection is secured.
    pub tls: Tls,
    /// A PEM file with the authorities that may sign the server's certificate; `None`: those of the system.
    pub ca_file: Option<PathBuf>,
    /// Prepared statements kept for each connection; `None`: the driver's own number. 0 is for proxies that give each
    /// transaction another connection.
    pub statement_cache: Option<usize>,
}

/// How a connection is secured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tls {
    /// Plain text.
    Off,
    /// TLS where the server offers it, unverified.
    Prefer,
    /// TLS, unverified.
    Require,
    /// TLS with a certificate that a known authority has signed for whatever name.
    VerifyAuthority,
    /// TLS with a certificate that a known authority has signed for this host.
    VerifyFull,
}

/// Where it is, without who logs in: for texts and logs.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.dialect == Dialect::Postgres { "postgres" } else { "mysql" };
        match &self.socket {
            Some(socket) => write!(f, "{scheme}://{}:/{}", socket.display(), self.database),
            None if self.host.contains(':') => {
                write!(f, "{scheme}://[{}]:{}/{}", self.host, self.port, self.database)
            }
            None => write!(f, "{scheme}://{}:{}/{}", self.host, self.port, self.database),
        }
    }
}

/// As [`fmt::Display`], with what decides about security.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({self}, {:?})", self.tls)
    }
}

/// The server that `dsn` names.
pub(super) fn parse(dsn: &str, dialect: Dialect, ca_file: &str) -> Result<Server, String> {
    let (example, port) = match dialect {
        Dialect::MySql => ("such as mysql://USER:PASSWORD@HOST:3306/DATABASE", 3306),
        Dialect::Postgres => ("such as postgres://USER:PASSWORD@HOST:5432/DATABASE", 5432),
        Dialect::Sqlite => return Err("database.dsn names a file and no server".into()),
    };
    let wrong = |what: &str| format!("database.dsn {what}, {example}");
    let (_, rest) = dsn.split_once("://").ok_or_else(|| wrong("must have :// after its scheme"))?;
    let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
    // The last @ and not the first: passwords are pasted in as they are.
    let (login, place) = rest.rsplit_once('@').ok_or_else(|| wrong("must name a user before an @"))?;
    let (user, password) = login.split_once(':').map_or((login, None), |(user, password)| (user, Some(password)));
    let decoded = |text: &str| decoded(text).ok_or_else(|| wrong("has a % that is not followed by two hex digits"));
    let (user, password) = (decoded(user)?, password.map(decoded).transpose()?);
    let (place, database) = place.split_once('/').unwrap_or((place, ""));
    let database = decoded(database)?;
    if user.is_empty() || database.is_empty() || database.contains('/') {
        return Err(wrong("must name a user and a database"));
    }
    let (host, port) = address(place, port).ok_or_else(|| wrong("must have HOST or HOST:PORT after the @"))?;
    let mut server = Server {
        dialect,
        host,
        port,
        socket: None,
        user,
        password,
        database,
        tls: Tls::Off,
        ca_file: (!ca_file.is_empty()).then(|| PathBuf::from(ca_file)),
        statement_cache: None,
    };
    let mut tls = None;
    for option in options.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let value = decoded(value)?;
        match name.replace('_', "-").as_str() {
            "ssl-mode" | "sslmode" => tls = Some((mode(&value).ok_or_else(|| wrong(UNKNOWN_MODE))?, value)),
            "socket" if value.starts_with('/') => server.socket = Some(PathBuf::from(value)),
            "statement-cache-capacity" => {
                let number = value.parse().map_err(|_| wrong("has a statement-cache-capacity that is no number"))?;
                server.statement_cache = Some(number);
            }
            _ => return Err(wrong("may have the options sslmode, socket (a path) and statement-cache-capacity only")),
        }
    }
    server.tls = secured(&server, tls)?;
    Ok(server)
}

const UNKNOWN_MODE: &str = "has an unknown sslmode: it may be disable, prefer, require, verify-ca or verify-full";

fn mode(text: &str) -> Option<Tls> {
    Some(match text.to_ascii_lowercase().replace('_', "-").as_str() {
        "disable" | "disabled" => Tls::Off,
        "prefer" | "preferred" | "allow" => Tls::Prefer,
        "require" | "required" => Tls::Require,
        "verify-ca" => Tls::VerifyAuthority,
        "verify-full" | "verify-identity" => Tls::VerifyFull,
        _ => return None,
    })
}

/// The mode for `server`; `asked` is the one of the DSN, with its text.
fn secured(server: &Server, asked: Option<(Tls, String)>) -> Result<Tls, String> {
    let here = server.socket.is_some() || is_loopback(&server.host);
    match asked {
        None => Ok(if here { Tls::Off } else { Tls::VerifyFull }),
        Some((mode, _)) if here || mode == Tls::VerifyFull => Ok(mode),
        Some((_, text)) => Err(format!(
            "database.dsn: sslmode={text} does not verify that it is {} that answers, and only verify-full does; leave \
             sslmode out, and name in database.ca_file the authority that signed the server's certificate unless the \
             system knows it",
            server.host
        )),
    }
}

/// Whether `host` is surely this machine. A name other than `localhost` may mean any.
fn is_loopback(host: &str) -> bool {
    host.parse::<IpAddr>().map_or(host == "localhost", |ip| ip.is_loopback())
}

/// Host and port of `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`; nothing is `localhost`, for sockets.
fn address(place: &str, usual_port: u16) -> Option<(String, u16)> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<IpAddr>().ok()?;
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
        }
        None => place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Some(usual_port), |port| port.parse().ok().filter(|port| *port > 0))?;
    let host = if host.is_empty() { "localhost" } else { host };
    host.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'%').then(|| (host.to_owned(), port))
}

/// `text` with `%xx` as the bytes they stand for; `None` where one is no byte or the whole is no UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first == b'%' {
            let (digits, after) = after.split_at_checked(2)?;
            if !digits.iter().all(u8::is_ascii_hexdigit) {
                return None;
            }
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mysql(dsn: &str) -> Result<Server, String> {
        parse(dsn, Dialect::MySql, "")
    }

    #[test]
    fn every_part_is_read() {
        let dsn = "postgres://a%40b:p%3a@s@db.example:6543/id%20s?sslmode=verify-full&statement_cache_capacity=0";
        let server = parse(dsn, Dialect::Postgres, "/etc/ca.pem").expect("a server");
        assert_eq!((server.user.as_str(), server.password.as_deref()), ("a@b", Some("p:@s")));
        assert_eq!((server.host.as_str(), server.port, server.database.as_str()), ("db.example", 6543, "id s"));
        assert_eq!((server.tls, server.statement_cache), (Tls::VerifyFull, Some(0)));
        assert_eq!(server.ca_file, Some("/etc/ca.pem".into()));
        let server = mysql("mariadb://root@/ids?socket=/run/mysqld.sock").expect("a socket");
        assert_eq!((server.socket, server.password, server.port), (Some("/run/mysqld.sock".into()), None, 3306));
        let server = mysql("mysql://root@[::1]:33060/ids").expect("IPv6");
        assert_eq!((server.host.as_str(), server.port), ("::1", 33060));
    }

    #[test]
    fn a_server_on_another_machine_is_always_verified() {
        for here in ["127.0.0.1", "localhost", "[::1]", "127.9.9.9:1"] {
            assert_eq!(mysql(&format!("mysql://u@{here}/d")).expect("here").tls, Tls::Off);
            assert_eq!(mysql(&format!("mysql://u@{here}/d?ssl-mode=REQUIRED")).expect("here").tls, Tls::Require);
        }
        for there in ["db", "10.0.0.1", "127.0.0.1.example", "[fe80::1]", "localhost.example"] {
            assert_eq!(mysql(&format!("mysql://u@{there}/d")).expect("there").tls, Tls::VerifyFull);
            for weak in ["DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "disable", "prefer", "require"] {
                let text = mysql(&format!("mysql://u:c4n4ry@{there}/d?ssl-mode={weak}")).expect_err("weak");
                assert!(text.contains("database.dsn") && text.contains("database.ca_file"), "{text}");
                assert!(text.contains(weak) && !text.contains("c4n4ry"), "{text}");
            }
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_without_showing_it() {
        for bad in [
            "mysql:c4n4ry",
            "mysql://c4n4ry",
            "mysql://host/d",
            "mysql://:c4n4ry@host/d",
            "mysql://u:c4n4ry@host",
            "mysql://u:c4n4ry@host/",
            "mysql://u:c4n4ry@host/d/e",
            "mysql://u:c4n4ry%zz@host/d",
            "mysql://u:c4n4ry%@host/d",
            "mysql://u:c4n4ry%ff@host/d",
            "mysql://u:c4n4ry@host:0/d",
            "mysql://u:c4n4ry@host:port/d",
            "mysql://u:c4n4ry@host:99999/d",
            "mysql://u:c4n4ry@[host]/d",
            "mysql://u:c4n4ry@host/d?sslmode=c4n4ry",
            "mysql://u:c4n4ry@host/d?ssl-ca=c4n4ry",
            "mysql://u:c4n4ry@host/d?socket=relative",
            "mysql://u:c4n4ry@host/d?statement-cache-capacity=c4n4ry",
        ] {
            let text = mysql(bad).expect_err(bad);
            assert!(text.starts_with("database.dsn") && !text.contains("c4n4ry"), "{bad}: {text}");
        }
    }

    #[test]
    fn no_form_of_a_server_shows_who_logs_in() {
        let server = mysql("mysql://c4n4ry:c4n4ry@host/d").expect("a server");
        assert_eq!(server.to_string(), "mysql://host:3306/d");
        assert!(!format!("{server:?}").contains("c4n4ry"));
    }
}
