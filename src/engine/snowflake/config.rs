//! The `snowflake` section of the configuration.
//!
//! Widths and epoch become a checked [`Layout`]; everything else has a bound here, so that the rest of the room can
//! rely on it. Problems name the key and the way out.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::layout::{Layout, Problem};
use crate::clock::{Wall, rfc3339};

/// Allowed lengths of the window: shorter ones would be renewed more than three times a second.
const WINDOW: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(1);
/// The longest lead.
const MAX_AHEAD: Duration = Duration::from_hours(1);
/// The longest wait for a clock, and the longest time borrowed.
const MILLIS: RangeInclusive<u64> = 0..=10_000;

/// How Snowflake ids are made. Epoch and widths are settings of the whole cluster, fixed when it is initialised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where timestamps start, in Unix milliseconds; default 1577808000000 (2019-12-31T16:00:00Z), not in the future.
    pub epoch_millis: u64,
    /// A named set of widths that replaces the four below: `js53` (41/0/5/7, ids below 2^53), or none; default none.
    pub preset: String,
    /// The id of this datacenter; default 0, below 2^`datacenter_bits`. No two clusters may share one.
    pub datacenter_id: u32,
    /// Width of the timestamp in bits; default 41 (69 years), 31 to 53. The four widths add up to at most 63.
    pub timestamp_bits: u32,
    /// Width of the datacenter id in bits; default 5, 0 to 10.
    pub datacenter_bits: u32,
    /// Width of the worker id in bits; default 5 (32 nodes a datacenter), 0 to 14.
    pub worker_bits: u32,
    /// Width of the sequence in bits; default 12 (4096 ids a millisecond and node), 1 to 22.
    pub sequence_bits: u32,
    /// How long a request waits for a clock that stands still or went back, in milliseconds; default 5, 0 to 10000.
    pub rollback_max_wait_ms: u64,
    /// How far ahead of the clock ids are made when a millisecond is full, in milliseconds; default 10, 0 to 10000.
    pub borrow_max_ms: u64,
    /// How much time a worker id reserves at once; default 30s, 1s to 1h. Half of it bridges an outage of the registry.
    #[serde(with = "humantime_serde")]
    pub window: Duration,
    /// How far a start may lead time ahead of the wall clock to get a worker id; default 30s, 0s to 1h.
    #[serde(with = "humantime_serde")]
    pub max_ahead: Duration,
    /// The worker id to prefer: a number below 2^`worker_bits`, `ordinal` (the number at the end of the pod's name), or
    /// none; default none. Only a hint.
    pub worker_id_hint: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            epoch_millis: 1_577_808_000_000,
            preset: String::new(),
            datacenter_id: 0,
            timestamp_bits: 41,
            datacenter_bits: 5,
            worker_bits: 5,
            sequence_bits: 12,
            rollback_max_wait_ms: 5,
            borrow_max_ms: 10,
            window: Duration::from_secs(30),
            max_ahead: Duration::from_secs(30),
            worker_id_hint: String::new(),
        }
    }
}

impl Config {
    /// The widths that the preset puts in the place of the four keys; empty where there is no preset.
    #[must_use]
    pub fn preset_widths(&self) -> Vec<(&'static str, u32)> {
        match self.layout() {
            Ok(layout) if !self.preset.is_empty() => vec![
                ("snowflake.timestamp_bits", (layout.max_timestamp() + 1).ilog2()),
                ("snowflake.datacenter_bits", layout.datacenters().ilog2()),
                ("snowflake.worker_bits", layout.worker_bits()),
                ("snowflake.sequence_bits", layout.sequence_bits()),
            ],
            _ => Vec::new(),
        }
    }

    /// The layout that this configuration describes.
    ///
    /// # Errors
    /// The key whose value can't be used.
    pub fn layout(&self) -> Result<Layout, Problem> {
        match self.preset.as_str() {
            "" => {
                let bits = [self.timestamp_bits, self.datacenter_bits, self.worker_bits, self.sequence_bits];
                Layout::new(self.epoch_millis, bits)
            }
            "js53" => Layout::js53(self.epoch_millis),
            other => {
                Err(Problem::new("snowflake.preset", format!("there is no preset `{other}`: use js53 or nothing")))
            }
        }
    }

    /// Checks every key against its bounds and the layout; `wall` is the time now.
    ///
    /// # Errors
    /// The first key whose value can't be used.
    pub fn validate(&self, wall: Wall) -> Result<(), Problem> {
        let layout = self.layout()?;
        self.validate_epoch(layout, wall)?;
        if self.datacenter_id >= layout.datacenters() {
            let (id, most) = (self.datacenter_id, layout.datacenters() - 1);
            let text = match (most, self.preset.as_str()) {
                (0, "") => format!("{id} does not fit: with datacenter_bits 0 it can only be 0; widen datacenter_bits"),
                (0, preset) => format!("{id} does not fit: the preset {preset} has no datacenter bits; set it to 0"),
                _ => format!("{id} does not fit: with these widths 0 to {most} do; widen datacenter_bits"),
            };
            return Err(Problem::new("snowflake.datacenter_id", text));
        }
        for (key, value) in [
            ("snowflake.rollback_max_wait_ms", self.rollback_max_wait_ms),
            ("snowflake.borrow_max_ms", self.borrow_max_ms),
        ] {
            if !MILLIS.contains(&value) {
                return Err(Problem::new(
                    key,
                    format!("{value} is not between {} and {}", MILLIS.start(), MILLIS.end()),
                ));
            }
        }
        if !WINDOW.contains(&self.window) {
            let given = humantime::format_duration(self.window);
            return Err(Problem::new("snowflake.window", format!("{given} is not between 1s and 1h")));
        }
        if self.max_ahead > MAX_AHEAD {
            let given = humantime::format_duration(self.max_ahead);
            return Err(Problem::new("snowflake.max_ahead", format!("{given} is more than 1h")));
        }
        self.hint("").map(|_| ())
    }

    fn validate_epoch(&self, layout: Layout, wall: Wall) -> Result<(), Problem> {
        let (epoch, now) = (self.epoch_millis, wall.millis());
        if epoch >= now {
            let text = format!(
                "it is {}, which is not in the past: the clock of this host says {}",
                rfc3339(epoch),
                rfc3339(now)
            );
            return Err(Problem::new("snowflake.epoch_millis", text));
        }
        if layout.exhaustion() <= now {
            let end = rfc3339(layout.exhaustion());
            let text =
                format!("timestamps of this width ended at {end}: use more bits or, in a new cluster, a later epoch");
            return Err(Problem::new("snowflake.timestamp_bits", text));
        }
        Ok(())
    }

    /// The worker id to prefer on a host of this name.
    ///
    /// # Errors
    /// When the key is neither empty, nor a worker id, nor `ordinal`.
    pub fn hint(&self, host: &str) -> Result<Option<u32>, Problem> {
        let workers = self.layout()?.workers();
        let hint = match self.worker_id_hint.as_str() {
            "" => return Ok(None),
            // A pod that is no part of a StatefulSet, or one too many, has no preference.
            "ordinal" => {
                let ordinal = host.rsplit_once('-').and_then(|(_, end)| end.parse().ok());
                return Ok(ordinal.filter(|ordinal| *ordinal < workers));
            }
            number => number.parse().ok().filter(|worker: &u32| *worker < workers),
        };
        let fix = || {
            let text = format!("`{}` is neither `ordinal` nor a number from 0 to {}", self.worker_id_hint, workers - 1);
            Problem::new("snowflake.worker_id_hint", text)
        };
        hint.map(Some).ok_or_else(fix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Wall = Wall(1_800_000_000_000_000_000);

    fn problem(change: impl FnOnce(&mut Config)) -> Problem {
        let mut config = Config::default();
        change(&mut config);
        config.validate(NOW).expect_err("a problem")
    }

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(Config::default().validate(NOW), Ok(()));
        let js53 = Config { preset: "js53".into(), ..Config::default() };
        assert_eq!(js53.validate(NOW), Ok(()));
        assert_eq!(js53.layout().expect("valid").sequence_bits(), 7);
        assert_eq!(js53.preset_widths().iter().map(|(_, width)| *width).collect::<Vec<_>>(), [41, 0, 5, 7]);
        assert_eq!(Config::default().preset_widths(), []);
    }

    #[test]
    fn a_datacenter_that_the_preset_has_no_bits_for_is_told_of_the_preset() {
        let text = problem(|config| (config.preset, config.datacenter_id) = ("js53".into(), 3)).text;
        assert!(text.contains("the preset js53 has no datacenter bits; set it to 0"), "{text}");
    }

    #[test]
    fn every_problem_names_its_key() {
        for (problem, key) in [
            (problem(|config| config.epoch_millis = NOW.millis() + 1), "snowflake.epoch_millis"),
            (problem(|config| config.epoch_millis = u64::MAX), "snowflake.epoch_millis"),
            (problem(|config| config.timestamp_bits = 33), "snowflake.timestamp_bits"),
            (problem(|config| config.preset = "js54".into()), "snowflake.preset"),
            (problem(|config| config.datacenter_id = 32), "snowflake.datacenter_id"),
            (problem(|config| config.worker_bits = 20), "snowflake.worker_bits"),
            (problem(|config| config.borrow_max_ms = 10_001), "snowflake.borrow_max_ms"),
            (problem(|config| config.rollback_max_wait_ms = u64::MAX), "snowflake.rollback_max_wait_ms"),
            (problem(|config| config.window = Duration::from_millis(999)), "snowflake.window"),
            (problem(|config| config.max_ahead = Duration::from_secs(3601)), "snowflake.max_ahead"),
            (problem(|config| config.worker_id_hint = "32".into()), "snowflake.worker_id_hint"),
            (problem(|config| config.worker_id_hint = "-1".into()), "snowflake.worker_id_hint"),
        ] {
            assert_eq!(problem.key, key, "{problem}");
        }
    }

    #[test]
    fn the_hint_is_a_number_or_the_ordinal_of_the_pod() {
        let hint = |hint: &str, host| Config { worker_id_hint: hint.into(), ..Config::default() }.hint(host);
        assert_eq!(hint("", "idgen-3"), Ok(None));
        assert_eq!(hint("31", "x"), Ok(Some(31)));
        assert_eq!(hint("ordinal", "idgen-3"), Ok(Some(3)));
        assert_eq!(hint("ordinal", "idgen-32"), Ok(None));
        assert_eq!(hint("ordinal", "laptop"), Ok(None));
    }
}
