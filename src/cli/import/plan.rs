//! What an import does with each counter of the source: pure.
//!
//! Guaranteed: the floor that is asked for is at or above every id that the source has given, and nothing is lowered. A
//! new tag is created with its start in one statement, so that there is no moment in which it could give low ids. A tag
//! that stands is compared by its floor, not by its `max_id`: a node may still have ids below `max_id` in memory, and
//! only a floor makes it drop them. What is in doubt (not an integer, not a tag, a stride) is refused by name.

use std::collections::BTreeMap;

use crate::ids::{MAX_ID, TagName};
use crate::router::MAX_FLOOR_JUMP;
use crate::store::MAX_DESCRIPTION_LEN;

/// The largest step that is taken over from a source: what `segment.max_step` is by default.
const MAX_STEP: i128 = 1_000_000;

/// A counter as the source has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Its name there.
    pub name: String,
    /// The number that the source keeps, as text: at or above every id it has given.
    pub value: String,
    /// How many ids the source fetches at once.
    pub step: Option<String>,
    /// What the source says of it.
    pub description: Option<String>,
    /// Tinyid's `delta` and `remainder`: it gives only ids that leave `remainder` when divided by `delta`.
    pub stride: Option<(String, String)>,
}

/// How names and numbers of the source become ours.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Taken away from the start of a name that has it.
    pub strip_prefix: String,
    /// Put before each name.
    pub tag_prefix: String,
    /// Ids added on top of what the source says.
    pub margin: u64,
    /// Whether floors more than [`MAX_FLOOR_JUMP`] above the last id are meant.
    pub force: bool,
    /// Whether strided counters of all their databases are imported.
    pub strided: bool,
}

/// What a counter is to become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The tag.
    pub tag: TagName,
    /// What the source has given at most.
    pub last: u64,
    /// Later ids are to be larger than this, which leaves at least one.
    pub floor: u64,
    /// The step of a new tag.
    pub step: Option<u64>,
    /// The description of a new tag.
    pub description: Option<String>,
    /// What a person should know of it.
    pub notes: Vec<String>,
}

/// A tag as the server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// `segment` or `snowflake`
    pub engine: String,
    /// The last id given away.
    pub max_id: u64,
    /// Later ids are larger than this.
    pub floor: u64,
    /// The last id that it may ever give.
    pub max: u64,
    /// Whether it is closed for ever.
    pub retired: bool,
}

/// What is to be done with a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is created, with this first id.
    Create(u64),
    /// Its floor is raised to this.
    Raise(u64),
    /// Its floor is as high already.
    Nothing,
    /// It is left alone, for this reason.
    Refused(String),
}

/// What each of `counters` is to become, or why it can't, in the same order.
pub fn targets(counters: &[Counter], rules: &Rules) -> Vec<Result<Target, String>> {
    let mut names: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for counter in counters {
        names.entry(renamed(&counter.name, rules)).or_default().push(&counter.name);
    }
    let target_of = |counter: &Counter| {
        let tag = renamed(&counter.name, rules);
        match names.get(&tag).map(Vec::as_slice) {
            Some([_, _, ..]) => Err("another name becomes the same tag: import them with other prefixes".to_owned()),
            _ => target(counter, &tag, rules),
        }
    };
    counters.iter().map(target_of).collect()
}

fn renamed(name: &str, rules: &Rules) -> String {
    format!("{}{}", rules.tag_prefix, name.strip_prefix(&rules.strip_prefix).unwrap_or(name))
}

fn target(counter: &Counter, tag: &str, rules: &Rules) -> Result<Target, String> {
    let tag = TagName::new(tag.as_bytes())
        .ok_or("not a tag: a tag is 1 to 128 bytes of printable ASCII without space, quotes and backslash")?;
    let value: i128 = counter.value.trim().parse().map_err(|_| "its value is not an integer".to_owned())?;
    let last = u64::try_from(value).map_err(|_| format!("{value} is no id: ids are 1 to {MAX_ID}"))?;
    let floor = last.checked_add(rules.margin).filter(|&floor| floor < MAX_ID);
    let floor = floor.ok_or_else(|| format!("no id would be left: the largest is {MAX_ID}"))?;
    let mut notes = Vec::new();
    if let Some((delta, remainder)) = &counter.stride {
        notes.extend(stride(delta, remainder, rules.strided)?);
    }
    let step = counter.step.as_ref().and_then(|step| {
        let step = step.trim().parse().ok().filter(|step| (1..=MAX_STEP).contains(step));
        if step.is_none() {
            notes.push(format!("its step is not taken over: it is not 1 to {MAX_STEP}"));
        }
        u64::try_from(step?).ok()
    });
    let description = counter.description.as_ref().filter(|text| !text.is_empty()).and_then(|text| {
        let fits = text.len() <= MAX_DESCRIPTION_LEN && !text.chars().any(char::is_control);
        if !fits {
            notes.push(format!("its description is not taken over: not one line of {MAX_DESCRIPTION_LEN} bytes"));
        }
        fits.then(|| text.clone())
    });
    Ok(Target { tag, last, floor, step, description, notes })
}

/// What is to be said of a counter that gives only every `delta`th id. Its other ids come from other databases, each with
/// a number of its own, so one of them alone doesn't know the largest id.
fn stride(delta: &str, remainder: &str, all: bool) -> Result<Option<String>, String> {
    let number = |text: &str| text.trim().parse::<i64>().map_err(|_| format!("{text:?} is no delta or remainder"));
    match (number(delta)?, number(remainder)?) {
        (1, _) => Ok(None),
        (..=0, _) => Err(format!("a delta of {delta} means nothing that could be imported")),
        (delta, remainder) if !all => Err(format!(
            "it gives one of every {delta} ids (remainder {remainder}), and other databases the rest: import all of them with \
             --strided before the first id is drawn here"
        )),
        (delta, remainder) => Ok(Some(format!(
            "one of every {delta} ids there (remainder {remainder}), every id here: import the other databases, too, before \
             the first id is drawn here"
        ))),
    }
}

/// What is to be done so that `standing` (`None`: no such tag) gives no id up to the target's floor; adds what a person
/// should know to its notes.
pub fn action(target: &mut Target, standing: Option<&Standing>, force: bool) -> Action {
    let floor = target.floor;
    let far = |last: u64| {
        let far = floor > last.saturating_add(MAX_FLOOR_JUMP) && !force;
        far.then(|| {
            Action::Refused(format!("{floor} is more than {MAX_FLOOR_JUMP} above {last}: --force, if that is meant"))
        })
    };
    let Some(standing) = standing else {
        return far(0).unwrap_or(Action::Create(floor + 1));
    };
    let refused = |text: &str| Action::Refused(text.to_owned());
    if standing.retired {
        return refused("the tag is retired for ever: import it under another name, with --tag-prefix");
    }
    if standing.engine != "segment" {
        return refused("the tag is a Snowflake tag, whose ids have no floor: use another name, with --tag-prefix");
    }
    if standing.floor >= floor {
        return Action::Nothing;
    }
    if floor >= standing.max {
        return Action::Refused(format!("no id would be left up to its MAX {}", standing.max));
    }
    if let Some(refused) = far(standing.max_id) {
        return refused;
    }
    if let Some(note) = doubt(standing, target.last) {
        target.notes.push(note);
    }
    Action::Raise(floor)
}

/// The ids that the source and the server may both have given: the server gave from its floor on, the source up to `last`.
fn doubt(standing: &Standing, last: u64) -> Option<String> {
    let (first, end) = (standing.floor.checked_add(1)?, standing.max_id.min(last));
    (first <= end).then(|| {
        format!(
            "ids {first} to {end} may have been given twice: by the source, and by idgen, which served the tag already"
        )
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counter(name: &str, value: &str) -> Counter {
        Counter { name: name.into(), value: value.into(), ..Counter::default() }
    }

    fn one(counter: Counter, rules: &Rules) -> Result<Target, String> {
        targets(&[counter], rules).pop().expect("one for one")
    }

    fn plain(value: &str) -> Target {
        one(counter("order", value), &Rules::default()).expect("importable")
    }

    fn standing(floor: u64, max_id: u64) -> Standing {
        Standing { engine: "segment".into(), max_id, floor, max: MAX_ID, retired: false }
    }

    #[test]
    fn leafs_next_id_is_skipped_rather_than_repeated() {
        // Leaf's row says 2001: it has given up to 2000, and 2001 would be the next.
        assert_eq!(action(&mut plain("2001"), None, false), Action::Create(2002));
        // A row that nobody has used yet.
        assert_eq!(action(&mut plain("1"), None, false), Action::Create(2));
        assert_eq!(action(&mut plain("0"), None, false), Action::Create(1));
    }

    #[test]
    fn tinyids_stride_of_one_is_dense_whatever_its_remainder() {
        for remainder in ["0", "1"] {
            let stride = Some(("1".to_owned(), remainder.to_owned()));
            let target = one(Counter { stride, ..counter("order", "500") }, &Rules::default()).expect("importable");
            assert_eq!((target.floor, target.notes.len()), (500, 0));
        }
    }

    #[test]
    fn tinyids_longer_strides_are_refused_unless_all_databases_are_imported() {
        let strided = |delta: &str| Counter { stride: Some((delta.into(), "1".into())), ..counter("order", "500") };
        let refused = one(strided("2"), &Rules::default()).expect_err("one database does not know the largest id");
        assert!(refused.contains("one of every 2 ids (remainder 1)") && refused.contains("--strided"), "{refused}");
        let rules = Rules { strided: true, ..Rules::default() };
        let target = one(strided("2"), &rules).expect("all are imported");
        assert!(target.floor == 500 && target.notes[0].contains("the other databases"), "{target:?}");
        for delta in ["0", "-1", "x"] {
            assert!(one(strided(delta), &rules).is_err(), "{delta}");
        }
    }

    #[test]
    fn what_is_no_counter_of_ids_is_refused_by_name_and_the_others_go_on() {
        let values = ["7", "-1", "1.5", "", "9223372036854775807", "9223372036854775806", "99999999999999999999999"];
        let counters: Vec<_> = values.iter().enumerate().map(|(at, value)| counter(&format!("t{at}"), value)).collect();
        let found: Vec<bool> = targets(&counters, &Rules::default()).iter().map(Result::is_ok).collect();
        assert_eq!(found, [true, false, false, false, false, true, false]);
        for name in ["a b", "", "ü", "it's", &"x".repeat(129)] {
            assert!(one(counter(name, "1"), &Rules::default()).expect_err(name).contains("not a tag"));
        }
    }

    #[test]
    fn prefixes_make_the_tag_and_two_names_never_become_one() {
        let rules = Rules { strip_prefix: "seq:".into(), tag_prefix: "shop.".into(), ..Rules::default() };
        let counters = [counter("seq:a", "1"), counter("b", "1"), counter("c", "1"), counter("seq:c", "9")];
        let tags = targets(&counters, &rules);
        let tags: Vec<_> = tags.iter().map(|tag| tag.as_ref().map_or("", |target| target.tag.as_str())).collect();
        assert_eq!(tags, ["shop.a", "shop.b", "", ""]);
    }

    #[test]
    fn a_margin_is_added_on_top_and_never_wraps() {
        let rules = |margin| Rules { margin, ..Rules::default() };
        assert_eq!(one(counter("order", "100"), &rules(50)).expect("importable").floor, 150);
        assert!(one(counter("order", "100"), &rules(u64::MAX)).is_err());
        assert!(one(counter("order", "100"), &rules(MAX_ID - 100)).is_err());
    }

    #[test]
    fn step_and_description_are_taken_over_where_they_are_valid() {
        let with = |step: &str, text: &str| {
            let counter = Counter { step: Some(step.into()), description: Some(text.into()), ..counter("order", "1") };
            let target = one(counter, &Rules::default()).expect("importable");
            (target.step, target.description, target.notes.len())
        };
        assert_eq!(with("2000", "orders"), (Some(2000), Some("orders".into()), 0));
        assert_eq!(with("1000001", ""), (None, None, 1));
        assert_eq!(with("0", "two\nlines"), (None, None, 2));
        assert_eq!(with("1", &"x".repeat(256)), (Some(1), None, 1));
    }

    #[test]
    fn only_a_floor_as_high_makes_nothing_to_do() {
        assert_eq!(action(&mut plain("700"), Some(&standing(700, 1000)), false), Action::Nothing);
        assert_eq!(action(&mut plain("700"), Some(&standing(5000, 5000)), false), Action::Nothing);
        // A node may hold 5 to 1000 in memory: that max_id is above 700 helps nothing.
        let mut target = plain("700");
        assert_eq!(action(&mut target, Some(&standing(0, 1000)), false), Action::Raise(700));
        assert!(target.notes[0].starts_with("ids 1 to 700 may have been given twice"), "{target:?}");
        let mut target = plain("700");
        assert_eq!(action(&mut target, Some(&standing(300, 300)), false), Action::Raise(700));
        assert!(target.notes.is_empty());
    }

    #[test]
    fn tags_that_can_not_be_raised_are_refused() {
        let refused = |standing: &Standing| match action(&mut plain("700"), Some(standing), true) {
            Action::Refused(why) => why,
            other => panic!("{other:?}"),
        };
        assert!(refused(&Standing { retired: true, ..standing(0, 0) }).contains("retired"));
        assert!(refused(&Standing { engine: "snowflake".into(), ..standing(0, 0) }).contains("Snowflake"));
        assert!(refused(&Standing { max: 700, ..standing(0, 0) }).contains("MAX 700"));
    }

    #[test]
    fn a_far_jump_needs_force() {
        let far = (MAX_FLOOR_JUMP + 1).to_string();
        let refused = |standing: Option<Standing>, force| {
            let action = action(&mut plain(&far), standing.as_ref(), force);
            matches!(action, Action::Refused(why) if why.contains("--force"))
        };
        assert!(refused(None, false) && !refused(None, true));
        assert!(refused(Some(standing(0, 0)), false) && !refused(Some(standing(0, 0)), true));
        assert!(!refused(Some(standing(1, 1)), false));
    }

    proptest! {
        #[test]
        fn no_id_of_the_source_is_ever_given_again(
            last in 0..MAX_ID, margin in 0..10_000_u64, floor in 0..MAX_ID, ahead in 0..10_000_u64, stands: bool,
        ) {
            let rules = Rules { margin, ..Rules::default() };
            let Ok(mut target) = one(counter("order", &last.to_string()), &rules) else { return Ok(()) };
            let there = Standing { max_id: floor.saturating_add(ahead).min(MAX_ID), ..standing(floor, 0) };
            match action(&mut target, stands.then_some(&there), true) {
                Action::Create(start) => prop_assert!(!stands && start > last && start <= MAX_ID),
                Action::Raise(to) => prop_assert!(to >= last && to > floor),
                Action::Nothing => prop_assert!(floor >= last),
                Action::Refused(_) => {}
            }
        }
    }
}
