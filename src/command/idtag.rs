//! `IDTAG CREATE | ALTER | FLOOR | RETIRE`: the catalogue. (`IDTAG LIST` stands beside `SCAN` in [`super::keyspace`].)

use std::ops::RangeInclusive;

use super::Error;
use super::number::integer;
use super::session::Call;
use crate::ids::{MAX_ID, TagName};
use crate::limit::{MAX_BURST, MAX_QPS};
use crate::resp::Value;
use crate::router::{Alteration, EngineKind, Order};
use crate::router::{MAX_DESCRIPTION_LEN, Wanted};

/// What a request changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Create,
    Alter,
    Floor,
    Retire,
}

pub(super) async fn execute(change: Change, call: &Call<'_>) -> Result<Value, Error> {
    let tag = TagName::new(call.arg(2)).ok_or_else(Error::bad_tag)?;
    let router = &call.context.router;
    let done = match change {
        Change::Create => router.create(&tag, &creation(call)?).await,
        Change::Alter => router.alter(&tag, &alteration(call)?).await,
        Change::Floor => {
            let force = call.arg(4).eq_ignore_ascii_case(b"FORCE");
            let end = if force { 5 } else { 4 };
            if call.len() > end {
                return Err(Error::unexpected(call.spec, call.arg(end)));
            }
            router.floor(&tag, number("FLOOR", call.arg(3), 0..=MAX_ID)?, force).await
        }
        Change::Retire => router.retire(&tag).await,
    };
    done.map(|()| Value::Simple("OK".into())).map_err(|error| Error::router(tag.as_str(), &error))
}

fn creation(call: &Call<'_>) -> Result<Wanted, Error> {
    let mut wanted = Wanted::default();
    for (name, sent) in options(call)? {
        let taken = match name.to_ascii_uppercase().as_slice() {
            b"ENGINE" => put(&mut wanted.engine, engine(sent)?),
            b"ORDER" => put(&mut wanted.order, order(sent)?),
            b"START" => put(&mut wanted.start, number("START", sent, 1..=MAX_ID)?),
            _ => field(&mut wanted.fields, call, name, sent)?,
        };
        taken.then_some(()).ok_or_else(|| Error::stands_twice(name))?;
    }
    Ok(wanted)
}

fn alteration(call: &Call<'_>) -> Result<Alteration, Error> {
    let mut change = Alteration::default();
    for (name, sent) in options(call)? {
        if [&b"ENGINE"[..], b"ORDER", b"START"].iter().any(|fixed| name.eq_ignore_ascii_case(fixed)) {
            return Err(Error::fixed_option(name));
        }
        field(&mut change, call, name, sent)?.then_some(()).ok_or_else(|| Error::stands_twice(name))?;
    }
    Ok(change)
}

/// An option and what stands behind it.
type Pair<'c> = (&'c [u8], &'c [u8]);

/// The pairs behind the tag.
fn options<'c>(call: &Call<'c>) -> Result<Vec<Pair<'c>>, Error> {
    let rest: Vec<&[u8]> = call.rest(3).collect();
    let pairs = rest.chunks_exact(2);
    match pairs.remainder() {
        [alone, ..] => Err(Error::unexpected(call.spec, alone)),
        [] => Ok(pairs.filter_map(|pair| pair.first().copied().zip(pair.last().copied())).collect()),
    }
}

/// Takes one option that both CREATE and ALTER have; `false` when it stands there twice.
fn field(fields: &mut Alteration, call: &Call<'_>, name: &[u8], sent: &[u8]) -> Result<bool, Error> {
    Ok(match name.to_ascii_uppercase().as_slice() {
        b"STEP" => put(&mut fields.step, number("STEP", sent, 1..=MAX_ID)?),
        b"MINSTEP" => put(&mut fields.min_step, number("MINSTEP", sent, 1..=MAX_ID)?),
        b"MAXSTEP" => put(&mut fields.max_step, number("MAXSTEP", sent, 1..=MAX_ID)?),
        b"MAX" => put(&mut fields.id_limit, number("MAX", sent, 1..=MAX_ID)?),
        b"QPS" => put(&mut fields.qps, number("QPS", sent, 0..=MAX_QPS)?),
        b"BURST" => put(&mut fields.burst, number("BURST", sent, 0..=MAX_BURST)?),
        b"CRITICAL" => put(&mut fields.critical, yes_or_no(sent)?),
        b"DESC" => put(&mut fields.description, description(sent)?),
        _ => return Err(Error::unexpected(call.spec, name)),
    })
}

fn put<T>(place: &mut Option<T>, value: T) -> bool {
    let first = place.is_none();
    *place = Some(value);
    first
}

fn number(option: &str, sent: &[u8], bounds: RangeInclusive<u64>) -> Result<u64, Error> {
    let number = integer(sent).and_then(|number| u64::try_from(number).ok()).filter(|number| bounds.contains(number));
    let wanted = || format!("an integer from {} to {}", bounds.start(), bounds.end());
    number.ok_or_else(|| Error::bad_option(option, &wanted()))
}

fn yes_or_no(sent: &[u8]) -> Result<bool, Error> {
    match sent.to_ascii_lowercase().as_slice() {
        b"yes" => Ok(true),
        b"no" => Ok(false),
        _ => Err(Error::bad_option("CRITICAL", "yes or no")),
    }
}

fn engine(sent: &[u8]) -> Result<EngineKind, Error> {
    let kinds = [EngineKind::Segment, EngineKind::Snowflake];
    let named = kinds.into_iter().find(|kind| sent.eq_ignore_ascii_case(kind.name().as_bytes()));
    named.ok_or_else(|| Error::bad_option("ENGINE", "segment or snowflake"))
}

fn order(sent: &[u8]) -> Result<Order, Error> {
    let orders = [Order::Node, Order::Strict];
    let named = orders.into_iter().find(|order| sent.eq_ignore_ascii_case(order.name().as_bytes()));
    named.ok_or_else(|| Error::bad_option("ORDER", "node or strict"))
}

fn description(sent: &[u8]) -> Result<String, Error> {
    let text = std::str::from_utf8(sent).ok();
    let fits = |text: &&str| text.len() <= MAX_DESCRIPTION_LEN && !text.chars().any(char::is_control);
    let wanted =
        || Error::bad_option("DESC", &format!("one line of UTF-8 text of at most {MAX_DESCRIPTION_LEN} bytes"));
    text.filter(fits).map(str::to_owned).ok_or_else(wanted)
}
