//! Draws ids with redis-rs: `redis-rs HOST PORT`. Prints one `ok NAME VERSION PROTO` line a protocol.

use std::error::Error;

const COUNT: usize = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (host, port) = (args.next().ok_or("HOST is missing")?, args.next().ok_or("PORT is missing")?);
    for (proto, query) in [("default", ""), ("resp2", "?protocol=resp2"), ("resp3", "?protocol=resp3")] {
        let mut connection = redis::Client::open(format!("redis://{host}:{port}/{query}"))?.get_connection()?;
        for name in ["IDGET", "INCR"] {
            let tag = format!("redis-rs-{proto}-{name}");
            let mut ids: Vec<i64> = Vec::with_capacity(3 * COUNT);
            for _ in 0..COUNT {
                ids.push(redis::cmd(name).arg(&tag).query(&mut connection)?);
            }
            for atomic in [false, true] {
                let mut pipe = redis::pipe();
                if atomic {
                    pipe.atomic();
                }
                for _ in 0..COUNT {
                    pipe.cmd(name).arg(&tag);
                }
                ids.extend(pipe.query::<Vec<i64>>(&mut connection)?);
            }
            // A fresh tag of one node counts without a gap, so this is count, order and uniqueness in one.
            if !ids.iter().copied().eq(1..=3 * COUNT as i64) {
                return Err(format!("redis-rs {proto} {name}: {} ids, not 1 to {}", ids.len(), 3 * COUNT).into());
            }
        }
        println!("ok redis-rs 1.8.1 {proto}");
    }
    Ok(())
}
