//! `IDWORKERS`: every worker id of the datacenter, who has it and until when its timestamps are given away.

use super::Error;
use super::idinfo::map;
use super::number::value;
use super::session::Call;
use crate::resp::Value;
use crate::router::WorkerView;

pub(super) async fn idworkers(call: &Call<'_>) -> Result<Value, Error> {
    let workers = call.context.router.workers().await.map_err(|error| Error::router("", &error))?;
    Ok(Value::Array(workers.iter().map(describe).collect()))
}

fn describe(worker: &WorkerView) -> Value {
    map(vec![
        ("worker", value(worker.id.into())),
        ("owner", Value::bulk(&worker.owner)),
        ("host", Value::bulk(&worker.host)),
        ("bound_ms", worker.bound_ms.map_or(Value::Null, value)),
        ("state", Value::bulk(worker.state.name())),
    ])
}
