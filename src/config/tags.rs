//! The rules of the section `tags`: globs, declared tags and their numbers.

use std::collections::BTreeSet;

use super::Problem;
use crate::ids::{MAX_ID, MAX_TAG_LEN, TagName, is_tag_byte};
use crate::limit;
use crate::router::{self, MAX_DESCRIPTION_LEN};
use crate::store::EngineKind;

pub fn check(config: &router::Config, problems: &mut Vec<Problem>) {
    let mut complain = |key: String, text: String, fix: &str| problems.push(Problem::new(key, text).fix(fix));
    for rule in &config.rules {
        if let Some(text) = bad_glob(&rule.pattern) {
            complain(
                "tags.rules".into(),
                format!("match {:?}: {text}", rule.pattern),
                "write a glob such as \"orders.*\"",
            );
        }
    }
    let mut seen = BTreeSet::new();
    for declared in &config.declared {
        if !seen.insert(&declared.tag) {
            complain("tags.declared".into(), format!("{:?} is declared twice", declared.tag), "keep one of the two");
        }
        if let Some(text) = bad_declaration(declared) {
            complain(
                "tags.declared".into(),
                format!("{:?}: {text}", declared.tag),
                "write it as IDTAG CREATE would take it",
            );
        }
    }
}

fn bad_glob(pattern: &str) -> Option<&'static str> {
    if pattern.is_empty() || pattern.len() > MAX_TAG_LEN {
        return Some("a glob has 1 to 128 bytes");
    }
    let odd = "no tag has a space, a quote, a backslash or a byte that isn't printable ASCII";
    (!pattern.bytes().all(is_tag_byte)).then_some(odd)
}

fn bad_declaration(declared: &router::Declared) -> Option<String> {
    if TagName::new(declared.tag.as_bytes()).is_none() {
        return Some("a tag is 1 to 128 bytes of printable ASCII without space, quotes and backslash".into());
    }
    let numbers = [
        ("step", declared.step),
        ("min_step", declared.min_step),
        ("max_step", declared.max_step),
        ("start", declared.start),
        ("max", declared.max),
    ];
    for (name, value) in numbers {
        let Some(value) = value else { continue };
        if declared.engine == Some(EngineKind::Snowflake) {
            return Some(format!("{name} means nothing to a snowflake tag"));
        }
        if !(1..=MAX_ID).contains(&value) {
            return Some(format!("{name} {value} is outside 1 to {MAX_ID}"));
        }
    }
    if let Err(text) = limit::check(declared.qps.unwrap_or(0), declared.burst.unwrap_or(0), ["qps", "burst"]) {
        return Some(text);
    }
    let above = |low: Option<u64>, high: Option<u64>| low.zip(high).is_some_and(|(low, high)| low > high);
    if above(declared.min_step, declared.step) || above(declared.step, declared.max_step) {
        return Some("the steps are out of order: min_step, step, max_step must rise".into());
    }
    if above(declared.min_step, declared.max_step) {
        return Some("min_step is above max_step".into());
    }
    if above(declared.start, declared.max) {
        return Some("start is above max".into());
    }
    let description = declared.description.as_deref().unwrap_or_default();
    let plain = description.len() <= MAX_DESCRIPTION_LEN && !description.chars().any(char::is_control);
    (!plain).then(|| format!("the description is longer than {MAX_DESCRIPTION_LEN} bytes or has more than one line"))
}
