//! Where a source is, and how that is told without showing a password.
//!
//! A password is taken from a file or the environment only: the command line of a process can be read by every user of
//! the machine. So a name with one is refused there, in doubt rather once too often.

use std::io::Read as _;
use std::path::Path;

use crate::cli::client::{Login, Place};
use crate::config::Environment;

/// The variable that holds the name of the source.
pub const SOURCE: &str = "IDGEN_IMPORT_SOURCE";

/// The variable that holds the password for the idgen server.
pub const PASSWORD: &str = "IDGEN_PASSWORD";

/// The most bytes of a file that holds one secret.
const MAX_SECRET: u64 = 64 << 10;

/// The name of the source: of the flag, the file or the environment, in this order.
///
/// # Errors
/// None is given, one on the command line has a password, or the file can't be read.
pub fn source(flag: Option<&str>, file: Option<&Path>, environment: &Environment) -> Result<String, String> {
    match (flag, file) {
        (Some(text), _) if has_password(text) => Err(format!(
            "--source: a password on the command line can be read by every user of the machine\n  use {SOURCE} or \
             --source-file"
        )),
        (Some(text), _) => Ok(text.to_owned()),
        (None, Some(path)) => secret_in("--source-file", path),
        (None, None) => environment.get(SOURCE).map(|text| text.trim().to_owned()).ok_or_else(|| {
            format!(
                "which source? --source mysql://user@host/database, or with a password in {SOURCE} or --source-file FILE"
            )
        }),
    }
}

/// The password for the idgen server: of the file or the environment; empty: none.
///
/// # Errors
/// The file can't be read.
pub fn password(file: Option<&Path>, environment: &Environment) -> Result<String, String> {
    match file {
        Some(path) => secret_in("--password-file", path),
        None => Ok(environment.get(PASSWORD).unwrap_or_default().to_owned()),
    }
}

fn secret_in(flag: &str, path: &Path) -> Result<String, String> {
    let fail = |error: &dyn std::fmt::Display| format!("{flag}: {}: {error}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| fail(&error))?;
    let read = file.take(MAX_SECRET).read_to_string(&mut text).map_err(|error| fail(&error))?;
    if read as u64 == MAX_SECRET {
        return Err(fail(&"too long for a secret"));
    }
    let text = text.trim();
    if text.is_empty() { Err(fail(&"it is empty")) } else { Ok(text.to_owned()) }
}

/// Whether `dsn` may hold a password: something behind a colon before the last `@`, or an option of that name.
fn has_password(dsn: &str) -> bool {
    let rest = dsn.split_once("://").map_or(dsn, |(_, rest)| rest);
    let user = rest.rsplit_once('@').map_or("", |(user, _)| user);
    let options = rest.split_once('?').map_or("", |(_, options)| options).to_lowercase();
    // A `%` could spell an option's name otherwise.
    let named = options.split('&').any(|option| {
        let name = option.split('=').next().unwrap_or_default();
        name.contains("pass") || name.contains("pwd") || name.contains('%')
    });
    user.contains(':') || named
}

/// `dsn` without user, password and options: what may be shown. Where it is not clear what is what, only the scheme.
pub fn place(dsn: &str) -> String {
    let (scheme, rest) = dsn.split_once("://").unwrap_or(("", dsn));
    let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
    // Is such an `@` in an option, or the `?` in a password?
    let clear = !options.contains('@');
    let rest = if clear { rest.rsplit_once('@').map_or(rest, |(_, rest)| rest) } else { "…" };
    if scheme.is_empty() { rest.to_owned() } else { format!("{scheme}://{rest}") }
}

/// A Redis server as its URL names it.
#[derive(Clone, Debug)]
pub struct Redis {
    /// Where it is.
    pub place: Place,
    /// Who logs in.
    pub login: Login,
    /// The number of the database.
    pub database: u32,
}

/// Reads `redis://[[user]:password@]host[:port][/database]` or `unix://[[user]:password@]/path`.
///
/// # Errors
/// What is wrong with it, without showing it.
pub fn redis(dsn: &str) -> Result<Redis, String> {
    let usage = "a Redis server is named redis://host:6379/0, or unix:///path/of/its.sock";
    let (scheme, rest) = dsn.split_once("://").ok_or(usage)?;
    let (user, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
    let (user, password) = user.split_once(':').unwrap_or((user, ""));
    let login = Login { user: decoded(user)?, password: decoded(password)? };
    match scheme {
        "unix" => Ok(Redis { place: Place::Socket(rest.into()), login, database: 0 }),
        "redis" => {
            let (host, database) = rest.split_once('/').unwrap_or((rest, ""));
            let database = if database.is_empty() { Ok(0) } else { database.parse() };
            let database =
                database.map_err(|_| "the database of a Redis server is a number, as in redis://host:6379/0")?;
            let bare = host.rsplit_once(':').is_none_or(|(_, port)| port.ends_with(']'));
            let addr = if bare { format!("{host}:6379") } else { host.to_owned() };
            if host.is_empty() {
                Err(usage.to_owned())
            } else {
                Ok(Redis { place: Place::Address(addr), login, database })
            }
        }
        "rediss" => Err("Redis over TLS is not spoken: run the import on the machine of the Redis server".to_owned()),
        _ => Err(usage.to_owned()),
    }
}

/// `text` with `%xx` as the bytes they stand for.
fn decoded(text: &str) -> Result<String, String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (code, rest) = part.split_at_checked(2).ok_or("a % in a URL stands before two hexadecimal digits")?;
        let byte = u8::from_str_radix(code, 16).map_err(|_| "a % in a URL stands before two hexadecimal digits")?;
        bytes.push(byte);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).map_err(|_| "the user or password of the source is no UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_on_the_command_line_is_refused() {
        for bad in [
            "mysql://root:geheim@db/leaf",
            "mysql://root:ge@heim@db/leaf",
            "postgres://db/leaf?user=a&password=geheim",
            "postgres://db/leaf?passw%6frd=geheim",
            "redis://:geheim@cache",
            "root:geheim@db",
        ] {
            let error = source(Some(bad), None, &Environment::default()).expect_err(bad);
            assert!(error.contains(SOURCE) && !error.contains("geheim"), "{error}");
        }
        for good in ["mysql://root@db:3306/leaf", "postgres:///leaf?host=/run/postgresql", "redis://cache:6379/2"] {
            assert_eq!(source(Some(good), None, &Environment::default()).as_deref(), Ok(good));
        }
    }

    #[test]
    fn a_password_may_stand_in_the_environment_or_a_file() {
        let environment = Environment::from([(SOURCE, "mysql://root:geheim@db/leaf"), (PASSWORD, "token")]);
        assert_eq!(source(None, None, &environment).as_deref(), Ok("mysql://root:geheim@db/leaf"));
        assert_eq!(password(None, &environment).as_deref(), Ok("token"));
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "redis://:x@cache\n").expect("written");
        assert_eq!(source(None, Some(file.path()), &environment).as_deref(), Ok("redis://:x@cache"));
        std::fs::write(file.path(), " \n").expect("written");
        assert!(source(None, Some(file.path()), &environment).expect_err("empty").contains("it is empty"));
        assert!(source(None, None, &Environment::default()).expect_err("none").contains("which source?"));
        assert_eq!(password(None, &Environment::default()).as_deref(), Ok(""));
    }

    #[test]
    fn what_is_shown_of_a_source_has_neither_user_nor_password() {
        for (dsn, shown) in [
            ("mysql://root:a@b@db:3306/leaf?ssl-mode=required", "mysql://db:3306/leaf"),
            ("postgres:///ids?password=x", "postgres:///ids"),
            ("mysql://root:geh?eim@db/leaf", "mysql://…"),
            ("mysql://db/leaf?password=geh@eim", "mysql://…"),
            ("mysql://root:a@b?c@d", "mysql://…"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(place(dsn), shown);
        }
    }

    #[test]
    fn a_redis_server_is_read_from_its_url() {
        let read = redis("redis://shop:a%40b@10.0.0.1:7000/3").expect("valid");
        assert_eq!((read.place, read.database), (Place::Address("10.0.0.1:7000".into()), 3));
        assert_eq!((read.login.user.as_str(), read.login.password.as_str()), ("shop", "a@b"));
        let read = redis("redis://[::1]").expect("valid");
        assert_eq!((read.place, read.database), (Place::Address("[::1]:6379".into()), 0));
        assert_eq!(redis("unix:///run/redis.sock").expect("valid").place, Place::Socket("/run/redis.sock".into()));
        for bad in ["redis://", "cache:6379", "redis://h/x", "rediss://h", "http://h", "redis://a:%4@h"] {
            assert!(redis(bad).is_err(), "{bad}");
        }
    }
}
