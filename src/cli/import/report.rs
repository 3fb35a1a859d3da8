//! What a person reads of an import: a table, what was passed over, and what to do next.

use std::io::{self, Write};

use super::plan::{Action, Standing};
use crate::cli::client::shown;

/// How wide a column of the table gets by names, in characters; a longer one moves what follows.
const MAX_WIDTH: usize = 40;

/// How a counter came out.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name at the source.
    pub name: String,
    /// The number there.
    pub value: String,
    /// The tag as it stood, where that is known.
    pub standing: Option<Standing>,
    /// What is to be done.
    pub action: Action,
    /// `Ok(true)`: it was done. `Err`: why it failed.
    pub done: Result<bool, String>,
    /// The tag.
    pub tag: String,
    /// What a person should know of it.
    pub notes: Vec<String>,
}

impl Line {
    /// Whether nothing came of it that should have.
    pub fn failed(&self) -> bool {
        matches!(self.action, Action::Refused(_)) || self.done.is_err()
    }

    fn here(&self) -> String {
        match &self.standing {
            None => "-".to_owned(),
            Some(standing) if standing.retired => "retired".to_owned(),
            Some(standing) if standing.engine != "segment" => standing.engine.clone(),
            Some(standing) => format!("at {}, floor {}", standing.max_id, standing.floor),
        }
    }

    fn outcome(&self) -> String {
        match (&self.action, &self.done) {
            (Action::Refused(why), _) => format!("refused: {why}"),
            (_, Err(why)) => format!("failed: {why}"),
            (Action::Nothing, _) => "nothing to do".to_owned(),
            (Action::Create(start), Ok(false)) => format!("create; first id {start}"),
            (Action::Create(start), Ok(true)) => format!("created; first id {start}"),
            (Action::Raise(floor), Ok(false)) => format!("raise the floor to {floor}"),
            (Action::Raise(floor), Ok(true)) => format!("floor raised to {floor}"),
        }
    }
}

/// Prints the table of all lines, with the notes of each below it.
pub fn table(lines: &[Line], out: &mut impl Write) -> io::Result<()> {
    let head = ["SOURCE", "VALUE", "TAG", "IDGEN", "ACTION"].map(str::to_owned);
    let row = |line: &Line| [shown(&line.name), shown(&line.value), shown(&line.tag), line.here(), line.outcome()];
    let rows: Vec<_> = std::iter::once(head).chain(lines.iter().map(row)).collect();
    let width = |column: usize| {
        let widths = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        widths.filter(|&width| width <= MAX_WIDTH).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..4).map(width).collect();
    for (at, row) in rows.iter().enumerate() {
        let mut text = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths.get(column).copied().unwrap_or(0);
            // Numbers stand to the right.
            let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
            let [before, after] = if column == 1 { [padding.as_str(), ""] } else { ["", padding.as_str()] };
            text.extend([before, cell.as_str(), after, "  "]);
        }
        writeln!(out, "{}", text.trim_end())?;
        for note in at.checked_sub(1).and_then(|at| lines.get(at)).iter().flat_map(|line| &line.notes) {
            writeln!(out, "    note: {note}")?;
        }
    }
    Ok(())
}

/// How many lines came out how, in a sentence.
pub fn summary(lines: &[Line], apply: bool) -> String {
    let count = |wanted: fn(&Line) -> bool| lines.iter().filter(|line| wanted(line)).count();
    let created = count(|line| !line.failed() && matches!(line.action, Action::Create(_)));
    let raised = count(|line| !line.failed() && matches!(line.action, Action::Raise(_)));
    let same = count(|line| !line.failed() && line.action == Action::Nothing);
    let failed = count(Line::failed);
    let (creating, raising) = if apply { ("created", "raised") } else { ("to create", "to raise") };
    format!("{created} {creating}, {raised} {raising}, {same} with nothing to do, {failed} refused or failed.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, action: Action, done: Result<bool, String>) -> Line {
        Line { name: name.into(), value: "7".into(), standing: None, action, done, tag: name.into(), notes: vec![] }
    }

    #[test]
    fn each_counter_has_a_line_and_its_notes_below() {
        let lines = [
            Line { notes: vec!["look".into()], ..line("a\n", Action::Create(8), Ok(false)) },
            line(&"long".repeat(20), Action::Raise(9), Ok(true)),
            line("c", Action::Nothing, Err("IDBACKEND gone".into())),
        ];
        let mut out = Vec::new();
        table(&lines, &mut out).expect("written");
        let text = String::from_utf8(out).expect("text");
        let long = "long".repeat(20);
        let expected = format!(
            "SOURCE  VALUE  TAG  IDGEN  ACTION\na\\n         7  a\\n  -      create; first id 8\n    note: look\n\
             {long}      7  {long}  -      floor raised to 9\nc           7  c    -      failed: IDBACKEND gone\n"
        );
        let squeeze = |text: &str| text.split([' ']).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
        assert_eq!(squeeze(&text), squeeze(&expected), "{text}");
        assert_eq!(summary(&lines, false), "1 to create, 1 to raise, 0 with nothing to do, 1 refused or failed.");
    }
}
