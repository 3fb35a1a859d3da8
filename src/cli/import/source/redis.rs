//! The counters of a Redis server: string keys that hold an integer and never expire.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Found, MAX_COUNTERS, too_many};
use crate::cli::client::{Client, Reply, shown, text, write};
use crate::cli::import::dsn::Redis;
use crate::cli::import::plan::Counter;

/// How long the replies to one round of requests may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How many keys are asked about in one round.
const ROUND: usize = 500;

/// Reads the counters among the keys that match `pattern`.
pub async fn read(server: &Redis, pattern: &str) -> Result<Found, String> {
    let mut client = Client::connect(&server.place, &server.login).await?;
    if server.database > 0 {
        ask(&mut client, &[b"SELECT", server.database.to_string().as_bytes()]).await?;
    }
    let mut found = Found::default();
    // A server that doesn't say what it is counts as a primary.
    if let Ok(Reply::Array(role)) = ask(&mut client, &[b"ROLE"]).await
        && role.first().and_then(text).is_some_and(|role| role != "master")
    {
        found.notes.push("the source is a replica and may lag behind: read its primary".to_owned());
    }
    let keys: Vec<_> = scan(&mut client, pattern).await?.into_iter().collect();
    for keys in keys.chunks(ROUND) {
        let mut requests = Vec::new();
        for key in keys {
            write(&mut requests, &[b"GET", key]);
            write(&mut requests, &[b"PTTL", key]);
        }
        let replies = client.exchange(&requests, keys.len() * 2, PATIENCE).await.map_err(|error| error.to_string())?;
        for (key, pair) in keys.iter().zip(replies.chunks(2)) {
            let name = String::from_utf8_lossy(key).into_owned();
            match counter(pair) {
                Ok(Some(value)) => found.counters.push(Counter { name, value, ..Counter::default() }),
                Ok(None) => {}
                Err(reason) => found.skipped.push(format!("{}: {reason}", shown(&name))),
            }
        }
    }
    Ok(found)
}

/// The value of a key by the replies to GET and PTTL; `None` when it is gone; or why it is no counter.
fn counter(replies: &[Reply]) -> Result<Option<String>, String> {
    match replies {
        [Reply::Error(text), _] if text.starts_with("WRONGTYPE") => Err("not a string".to_owned()),
        [Reply::Error(text), _] | [_, Reply::Error(text)] => Err(shown(text)),
        [Reply::Null, _] => Ok(None),
        [_, Reply::Integer(0..)] => Err("it expires, and then starts again at 1".to_owned()),
        [value, _] => match text(value) {
            Some(value) if value.parse::<i64>().is_ok() => Ok(Some(value)),
            _ => Err("not an integer".to_owned()),
        },
        _ => Err("no reply".to_owned()),
    }
}

/// The keys that match, each once: a scan may tell one twice.
async fn scan(client: &mut Client, pattern: &str) -> Result<BTreeSet<Vec<u8>>, String> {
    let mut keys = BTreeSet::new();
    let mut cursor = b"0".to_vec();
    loop {
        let reply = ask(client, &[b"SCAN", &cursor, b"MATCH", pattern.as_bytes(), b"COUNT", b"1000"]).await?;
        let Reply::Array(parts) = reply else { return Err("not a reply to SCAN".to_owned()) };
        let [Reply::BulkString(next), Reply::Array(some)] = parts.as_slice() else {
            return Err("not a reply to SCAN".to_owned());
        };
        keys.extend(some.iter().filter_map(|key| match key {
            Reply::BulkString(key) => Some(key.clone()),
            _ => None,
        }));
        if keys.len() > MAX_COUNTERS {
            return Err(too_many());
        }
        if next == b"0" {
            return Ok(keys);
        }
        cursor.clone_from(next);
    }
}

async fn ask(client: &mut Client, words: &[&[u8]]) -> Result<Reply, String> {
    match client.call(words, PATIENCE).await {
        Ok(Reply::Error(text)) => Err(shown(&text)),
        Ok(reply) => Ok(reply),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_integers_that_never_expire_are_counters() {
        let bulk = |text: &str| Reply::BulkString(text.as_bytes().to_vec());
        let for_ever = Reply::Integer(-1);
        assert_eq!(counter(&[bulk("42"), for_ever.clone()]), Ok(Some("42".into())));
        // Told as refused by the plan, not passed over here.
        assert_eq!(counter(&[bulk("-42"), for_ever.clone()]), Ok(Some("-42".into())));
        assert_eq!(counter(&[Reply::Null, Reply::Integer(-2)]), Ok(None));
        for (replies, why) in [
            ([bulk("4.2"), for_ever.clone()], "not an integer"),
            ([bulk("42"), Reply::Integer(0)], "expires"),
            ([Reply::Error("WRONGTYPE Operation".into()), for_ever.clone()], "not a string"),
            ([Reply::Error("NOPERM no".into()), for_ever], "NOPERM no"),
        ] {
            assert!(counter(&replies).expect_err(why).contains(why));
        }
    }
}
