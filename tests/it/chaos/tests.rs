//! The proxy does what it says: to an echo server, and to statements on real databases.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::{Protocol, Proxy, To};
use crate::node::{PATIENCE, eventually};
use crate::services::{MariaDb, Postgres};

/// A server that sends back what it gets.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    addr
}

/// The time in which nothing may happen.
const QUIET: Duration = Duration::from_millis(300);

struct Client(TcpStream);

impl Client {
    fn of(proxy: &Proxy) -> Self {
        Self::try_of(proxy).unwrap()
    }

    fn try_of(proxy: &Proxy) -> Result<Self> {
        let stream = TcpStream::connect(proxy.addr())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(stream))
    }

    fn ask(&mut self, text: &str) -> Result<String> {
        self.0.write_all(text.as_bytes())?;
        self.hear(text.len())
    }

    fn hear(&mut self, length: usize) -> Result<String> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes)?;
        Ok(String::from_utf8(bytes).unwrap())
    }

    fn hears_nothing(&mut self) {
        self.0.set_read_timeout(Some(QUIET)).unwrap();
        let heard = self.0.read(&mut [0; 1]);
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        let quiet = heard.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        assert!(quiet, "expected silence, got {heard:?}");
    }

    fn kind(answer: Result<String>) -> ErrorKind {
        answer.expect_err("an answer came").kind()
    }
}

#[test]
fn everything_passes_and_is_counted() {
    let proxy = Proxy::start(Protocol::Bytes, echo());
    let mut client = Client::of(&proxy);
    assert_eq!(client.ask("hello").unwrap(), "hello");
    let long = "x".repeat(1_000_000);
    let mut writer = client.0.try_clone().unwrap();
    let sent = long.clone();
    let writing = std::thread::spawn(move || writer.write_all(sent.as_bytes()).unwrap());
    assert!(client.hear(long.len()).unwrap() == long, "the bytes were changed");
    writing.join().unwrap();
    assert_eq!(proxy.counts().connections, 1);
    assert_eq!(proxy.counts().bytes, [1_000_005; 2]);
}

#[test]
fn the_end_of_a_stream_passes_behind_the_data() {
    let proxy = Proxy::start(Protocol::Bytes, echo());
    let mut client = Client::of(&proxy);
    client.0.write_all(b"bye").unwrap();
    client.0.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    client.0.read_to_string(&mut text).unwrap();
    assert_eq!(text, "bye");
}

#[test]
fn a_delay_is_added_in_its_direction_until_it_ends() {
    let proxy = Proxy::start(Protocol::Bytes, echo());
    let mut client = Client::of(&proxy);
    client.ask("a").unwrap();
    for to in [To::Server, To::Client] {
        proxy.delay(to, QUIET);
        let start = Instant::now();
        client.ask("b").unwrap();
        assert!(start.elapsed() >= QUIET, "{to:?}: {:?}", start.elapsed());
        proxy.pass();
    }
    proxy.delay(To::Server, Duration::from_hours(1));
    client.0.write_all(b"c").unwrap();
    client.hears_nothing();
    proxy.pass();
    assert_eq!(client.hear(1).unwrap(), "c");
}

#[test]
fn a_stall_accepts_and_says_nothing_and_is_delivered_later() {
    let proxy = Proxy::start(Protocol::Bytes, echo());
    let mut before = Client::of(&proxy);
    before.ask("a").unwrap();
    proxy.stall();
    before.0.write_all(b"b").unwrap();
    let mut new = Client::of(&proxy);
    new.0.write_all(b"c").unwrap();
    before.hears_nothing();
    new.hears_nothing();
    proxy.pass();
    assert_eq!(before.hear(1).unwrap(), "b");
    assert_eq!(new.hear(1).unwrap(), "c");
}

#[test]
fn what_a_half_open_connection_swallows_is_lost() {
    let proxy = Proxy::start(Protocol::Bytes, echo());
    let mut client = Client::of(&proxy);
    client.ask("a").unwrap();
    proxy.swallow(To::Client);
    client.0.write_all(b"b").unwrap();
    client.hears_nothing();
    proxy.pass();
    assert_eq!(client.ask("c").unwrap(), "c");
}

#[test]
fn the_connection_is_reset_at_a_byte() {
    let proxy = Proxy::start(Protocol::Bytes, echo());
    let mut client = Client::of(&proxy);
    proxy.cut_after(To::Client, 5);
    assert_eq!(client.ask("abc").unwrap(), "abc");
    client.0.write_all(b"defg").unwrap();
    assert_eq!(client.hear(2).unwrap(), "de");
    assert_eq!(Client::kind(client.hear(1)), ErrorKind::ConnectionReset);
    assert_eq!(Client::of(&proxy).ask("again").unwrap(), "again");
}

#[test]
fn open_connections_are_reset_and_new_ones_are_refused() {
    let proxy = Proxy::start(Protocol::Bytes, echo());
    let mut client = Client::of(&proxy);
    client.ask("a").unwrap();
    proxy.refuse();
    assert_eq!(client.ask("b").unwrap(), "b");
    assert_eq!(Client::try_of(&proxy).err().map(|error| error.kind()), Some(ErrorKind::ConnectionRefused));
    proxy.reset();
    assert_eq!(Client::kind(client.hear(1)), ErrorKind::ConnectionReset);
    proxy.pass();
    assert_eq!(Client::of(&proxy).ask("c").unwrap(), "c");
    drop(proxy);
}

#[test]
fn a_server_that_is_not_there_resets_its_client_and_another_one_takes_over() {
    let gone = SocketAddr::from((Ipv4Addr::LOCALHOST, crate::node::free_port()));
    let proxy = Proxy::start(Protocol::Bytes, gone);
    assert_eq!(Client::kind(Client::of(&proxy).hear(1)), ErrorKind::ConnectionReset);
    proxy.repoint(echo());
    assert_eq!(Client::of(&proxy).ask("a").unwrap(), "a");
    proxy.refuse();
    drop(proxy);
}

/// What both kinds of database are told.
const UPDATE: &str = "UPDATE t SET n = n + 1";

fn now<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.expect("the database did not answer") })
}

/// Updates `count` times over connections that may be cut, by a prepared statement, or as text; how many were not
/// confirmed.
fn updates<C: sqlx::Connection>(dsn: &str, count: u64, prepared: bool) -> u64
where
    for<'c> &'c mut C: sqlx::Executor<'c, Database = C::Database>,
    <C::Database as sqlx::Database>::Arguments: sqlx::IntoArguments<C::Database>,
{
    now(async {
        let (mut conn, mut unknown) = (C::connect(dsn).await.unwrap(), 0);
        for _ in 0..count {
            let failed = if prepared {
                sqlx::query(UPDATE).execute(&mut conn).await.is_err()
            } else {
                sqlx::raw_sql(UPDATE).execute(&mut conn).await.is_err()
            };
            if failed {
                unknown += 1;
                conn = C::connect(dsn).await.unwrap();
            }
        }
        unknown
    })
}

#[test]
fn a_statement_on_mysql_is_executed_and_its_answer_cut_off() {
    let server = MariaDb::start(&[]);
    server.sql("CREATE TABLE t (n BIGINT) ENGINE = InnoDB; INSERT INTO t VALUES (0)");
    let proxy = Proxy::start(Protocol::MySql, server.addr());
    let dsn = MariaDb::dsn_at(proxy.addr(), "idgen");
    for (round, prepared) in [(0, true), (1, false)] {
        proxy.cut_before_answer(UPDATE, 3, 5);
        assert_eq!(updates::<sqlx::MySqlConnection>(&dsn, 20, prepared), 5, "prepared: {prepared}");
        assert_eq!(server.sql("SELECT n FROM t"), (20 * (round + 1)).to_string(), "prepared: {prepared}");
        assert_eq!(proxy.counts().cut, 5 * (round + 1));
        assert_eq!(proxy.requests(UPDATE), 20 * (round + 1));
    }
}

#[test]
fn a_statement_on_postgresql_is_executed_and_its_answer_cut_off() {
    let server = Postgres::start(&[]);
    server.sql("CREATE TABLE t AS SELECT 0::bigint AS n");
    let proxy = Proxy::start(Protocol::Postgres, server.addr());
    let dsn = Postgres::dsn_at(proxy.addr(), "idgen");
    for (round, prepared) in [(0, true), (1, false)] {
        proxy.cut_before_answer(UPDATE, 3, 5);
        assert_eq!(updates::<sqlx::PgConnection>(&dsn, 20, prepared), 5, "prepared: {prepared}");
        assert_eq!(server.sql("SELECT n FROM t"), (20 * (round + 1)).to_string(), "prepared: {prepared}");
        assert_eq!(proxy.counts().cut, 5 * (round + 1));
        assert_eq!(proxy.requests(UPDATE), 20 * (round + 1));
    }
}

/// Sends a statement by the protocol of `C` and gives up on it when it is held.
fn give_up<C: sqlx::Connection>(proxy: &Proxy, dsn: &str)
where
    for<'c> &'c mut C: sqlx::Executor<'c, Database = C::Database>,
    <C::Database as sqlx::Database>::Arguments: sqlx::IntoArguments<C::Database>,
{
    proxy.hold(UPDATE, 1);
    now(async {
        let mut conn = C::connect(dsn).await.unwrap();
        let patience = tokio::time::timeout(QUIET, sqlx::query(UPDATE).execute(&mut conn));
        assert!(patience.await.is_err(), "a statement that is held was answered");
    });
    assert_eq!(proxy.counts().held, 1);
}

#[test]
fn a_delayed_copy_of_a_statement_arrives_when_its_client_has_gone() {
    let maria = MariaDb::start(&[]);
    maria.sql("CREATE TABLE t (n BIGINT) ENGINE = InnoDB; INSERT INTO t VALUES (0)");
    let proxy = Proxy::start(Protocol::MySql, maria.addr());
    give_up::<sqlx::MySqlConnection>(&proxy, &MariaDb::dsn_at(proxy.addr(), "idgen"));
    assert_eq!(maria.sql("SELECT n FROM t"), "0");
    proxy.release();
    eventually("MariaDB executes it", PATIENCE, || (maria.sql("SELECT n FROM t") == "1").then_some(()));

    let postgres = Postgres::start(&[]);
    postgres.sql("CREATE TABLE t AS SELECT 0::bigint AS n");
    let proxy = Proxy::start(Protocol::Postgres, postgres.addr());
    give_up::<sqlx::PgConnection>(&proxy, &Postgres::dsn_at(proxy.addr(), "idgen"));
    assert_eq!(postgres.sql("SELECT n FROM t"), "0");
    proxy.release();
    eventually("PostgreSQL executes it", PATIENCE, || (postgres.sql("SELECT n FROM t") == "1").then_some(()));
}
