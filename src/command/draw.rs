//! Ids for a request: finding the tag, asking the limits, taking the ids, and waiting for them while the read batch's deadline allows it.

use std::sync::Arc;

use super::limits::Limits;
use super::session::{Call, Session};
use super::{Batch, Context, Error};
use crate::clock::Boot;
use crate::ids::{IdRange, TagName, total};
use crate::resp::IdForm;
use crate::router::Entry;
use crate::router::{Demand, Later, Shortage, Waited};

/// How long this connection's read batch has left to wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// The deadline that has been waited for to its end.
    over: Option<Boot>,
}

impl Waiting {
    /// Waits for what `later` names, for ids of `entry`: gives those that have come, if any; without any, ask again.
    ///
    /// # Errors
    /// Why there will be none: the batch has no time left, now or by then, or waiting did not help.
    pub(super) async fn wait(
        &mut self,
        later: Later,
        entry: &Entry,
        context: &Context,
        batch: &Batch,
    ) -> Result<Option<IdRange>, Error> {
        let tag = entry.name().as_str();
        let late = || match entry.cause() {
            Some(cause) => Error::refused(tag, &cause),
            None => Error::still_waiting(tag, batch.wait_max.as_millis()),
        };
        let left = batch.deadline.since(context.clock.boot());
        if self.is_over(batch) || left.is_zero() {
            return Err(late());
        }
        match tokio::time::timeout(left, later.wait()).await {
            Ok(Waited::AskAgain) => Ok(None),
            Ok(Waited::Ids(ids)) => {
                entry.issued(ids);
                Ok(Some(ids))
            }
            Ok(Waited::Refused(refusal)) => Err(Error::refused(tag, &refusal)),
            Err(_) => {
                self.over = Some(batch.deadline);
                Err(late())
            }
        }
    }

    fn is_over(&self, batch: &Batch) -> bool {
        self.over == Some(batch.deadline)
    }
}

/// The entry of `tag`, made this session's current one. A tag that this node does not know is looked up and admitted, for
/// as long as the batch may wait.
pub(super) async fn find<'s>(
    session: &'s mut Session,
    tag: &[u8],
    context: &Context,
    batch: &Batch,
) -> Result<&'s Arc<Entry>, Error> {
    let current = session.entry.take().filter(|entry| entry.name().as_str().as_bytes() == tag);
    let entry = match current.or_else(|| context.router.find(tag)) {
        Some(entry) => entry,
        None => Box::pin(admit(&mut session.waiting, tag, context, batch)).await?,
    };
    Ok(session.entry.insert(entry))
}

async fn admit(waiting: &mut Waiting, tag: &[u8], context: &Context, batch: &Batch) -> Result<Arc<Entry>, Error> {
    let name = TagName::new(tag).ok_or_else(Error::bad_tag)?;
    let late = || Error::still_waiting(name.as_str(), batch.wait_max.as_millis());
    let left = batch.deadline.since(context.clock.boot());
    if waiting.is_over(batch) {
        return Err(late());
    }
    let Ok(admitted) = tokio::time::timeout(left, context.router.admit(&name)).await else {
        waiting.over = Some(batch.deadline);
        return Err(late());
    };
    admitted.map_err(|error| Error::router(name.as_str(), &error))
}

/// Takes all the ids that a request wants, or none, into the session's ranges, and counts the request. The caller writes
/// the ids.
pub(super) async fn many(
    session: &mut Session,
    call: &Call<'_>,
    wanted: Result<(Demand, IdForm), Error>,
) -> Result<(Demand, IdForm), Error> {
    let found = match wanted {
        Ok(wanted) => find(session, call.arg(1), call.context, call.batch).await.map(|_| wanted),
        Err(error) => Err(error),
    };
    let Some(entry) = session.entry.take().filter(|_| found.is_ok()) else {
        let error = found.err().unwrap_or_else(Error::bad_tag);
        session.count_refused(call, &error);
        return Err(error);
    };
    let taken = match found {
        Ok((demand, shape)) => take_all(session, &entry, demand, call).await.map(|()| (demand, shape)),
        Err(error) => Err(error),
    };
    if let Ok((demand, _)) = &taken {
        entry.metrics().issued.add(demand.count());
    }
    session.count(call.context, call.spec, Some(&entry), 1, taken.as_ref().err().map(|error| (error, 1)));
    session.entry = Some(entry);
    taken
}

async fn take_all(session: &mut Session, entry: &Entry, demand: Demand, call: &Call<'_>) -> Result<(), Error> {
    let limits = Limits::of(session.user.as_ref(), entry, call.context, call.batch.now);
    if let Some(limits) = &limits {
        limits.batch(demand.count())?;
    }
    let taken = take_from_engine(session, entry, demand, call).await;
    if let (Err(_), Some(limits)) = (&taken, &limits) {
        limits.give_back(demand.count());
    }
    taken
}

async fn take_from_engine(session: &mut Session, entry: &Entry, demand: Demand, call: &Call<'_>) -> Result<(), Error> {
    let tag = entry.name().as_str();
    let mut now = call.batch.now;
    loop {
        session.ranges.clear();
        match entry.take(demand, now, &mut session.ranges) {
            Ok(()) if fits(demand, &session.ranges) => return Ok(()),
            Ok(()) => return Err(Error::short_of_ids(tag)),
            Err(Shortage::Refused(refusal)) => return Err(Error::refused(tag, &refusal)),
            Err(Shortage::Later(later)) => {
                if let Some(ids) = session.waiting.wait(later, entry, call.context, call.batch).await? {
                    session.ranges.push(ids);
                    return if fits(demand, &session.ranges) { Ok(()) } else { Err(Error::short_of_ids(tag)) };
                }
                now = call.context.clock.boot();
            }
        }
    }
}

/// Whether `ranges` are what `demand` was for: checked here too, since nobody checks behind the reply.
fn fits(demand: Demand, ranges: &[IdRange]) -> bool {
    let consecutive = !matches!(demand, Demand::Consecutive(_)) || ranges.len() == 1;
    consecutive && total(ranges) == demand.count() && ranges.is_sorted_by(|a, b| a.end() <= b.start())
}
