//! `idgen decode`: an id in the words of its layout.

use crate::clock::rfc3339;
use crate::config::Config;
use crate::ids::MAX_ID;

/// The parts of `id` under the layout of `config`, one a line; or why it has none.
pub fn explain(config: &Config, id: u64) -> Result<String, String> {
    let layout = config.snowflake.layout().map_err(|problem| problem.to_string())?;
    let parts = if id == 0 || id > MAX_ID { None } else { layout.decompose(id) };
    let Some(parts) = parts else {
        return Err(format!("{id} is no Snowflake id of this layout ({})", layout.text()));
    };
    Ok(format!(
        "id            {id}\n\
         time          {}\n\
         timestamp_ms  {}\n\
         datacenter    {}\n\
         worker        {}\n\
         sequence      {}\n\
         layout        {}\n",
        rfc3339(parts.timestamp_ms),
        parts.timestamp_ms,
        parts.datacenter,
        parts.worker,
        parts.sequence,
        layout.text(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_taken_apart_by_the_layout_of_the_configuration() {
        // Second 1 of the epoch, datacenter 2, worker 3, sequence 4.
        let id = (1000 << 22) | (2 << 17) | (3 << 12) | 4;
        let text = explain(&Config::default(), id).expect("an id");
        for line in [
            "time          2019-12-31T16:00:01.000Z",
            "timestamp_ms  1577808001000",
            "datacenter    2",
            "worker        3",
            "sequence      4",
        ] {
            assert!(text.lines().any(|given| given == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn what_is_no_id_of_the_layout_is_refused() {
        for id in [0, u64::MAX, 1 << 63] {
            assert!(explain(&Config::default(), id).is_err(), "{id}");
        }
    }
}
