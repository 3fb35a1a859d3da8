//! Draws ids with fred: `fred HOST PORT`. Prints one `ok NAME VERSION PROTO` line a protocol.

use std::error::Error;

use fred::prelude::*;
use fred::types::{ClusterHash, CustomCommand, RespVersion};

const COUNT: usize = 1000;

async fn ask<C: KeysInterface + ClientLike, R: fred::types::FromValue>(to: &C, name: &str, tag: &str) -> Result<R, fred::error::Error> {
    match name {
        "INCR" => to.incr(tag).await,
        _ => to.custom(CustomCommand::new(name, ClusterHash::FirstKey, false), vec![tag]).await,
    }
}

async fn draw(client: &Client, name: &str, tag: &str) -> Result<Vec<i64>, fred::error::Error> {
    let mut ids: Vec<i64> = Vec::with_capacity(3 * COUNT);
    for _ in 0..COUNT {
        ids.push(ask(client, name, tag).await?);
    }
    let pipeline = client.pipeline();
    for _ in 0..COUNT {
        let _: () = ask(&pipeline, name, tag).await?;
    }
    ids.extend(pipeline.all::<Vec<i64>>().await?);
    let transaction = client.multi();
    for _ in 0..COUNT {
        let _: () = ask(&transaction, name, tag).await?;
    }
    ids.extend(transaction.exec::<Vec<i64>>(true).await?);
    Ok(ids)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (host, port) = (args.next().ok_or("HOST is missing")?, args.next().ok_or("PORT is missing")?.parse()?);
    for (proto, version) in [("resp2", RespVersion::RESP2), ("resp3", RespVersion::RESP3)] {
        let config = Config { server: ServerConfig::new_centralized(host.clone(), port), version, ..Config::default() };
        let client = Builder::from_config(config).build()?;
        client.init().await?;
        for name in ["IDGET", "INCR"] {
            let ids = draw(&client, name, &format!("fred-{proto}-{name}")).await?;
            // A fresh tag of one node counts without a gap, so this is count, order and uniqueness in one.
            if !ids.iter().copied().eq(1..=3 * COUNT as i64) {
                return Err(format!("fred {proto} {name}: {} ids, not 1 to {}", ids.len(), 3 * COUNT).into());
            }
        }
        client.quit().await?;
        println!("ok fred 10.1.0 {proto}");
    }
    Ok(())
}
