//! `idgen man`: one page with everything that `--help` says, commands included.
//!
//! The generator makes a page for each command and refers to them; one page needs no place to be installed to, so the
//! commands are written out here.

use std::fmt::Write as _;
use std::io;

use clap::{Arg, Command};
use clap_mangen::Man;

/// The page in roff. `after` is the text below the help: paragraphs under titles that end in a colon.
pub fn page(mut command: Command, after: &str) -> io::Result<Vec<u8>> {
    command.build();
    let mut page = Vec::new();
    let man = Man::new(command.clone());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    let mut text = ".SH COMMANDS\n".to_owned();
    for sub in command.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
        subcommand(sub, &mut text);
        if let Some(after) = sub.get_after_help() {
            let _ = write!(text, ".PP\n{}", escaped(after.to_string().trim()));
        }
        // What stands below the help of a command holds for its own commands, too: once is enough.
        for sub in sub.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
            subcommand(sub, &mut text);
        }
    }
    for paragraph in after.split("\n\n") {
        let (title, lines) = paragraph.split_once(":\n").unwrap_or(("Notes", paragraph));
        let _ = writeln!(text, ".SH {}\n.nf\n{}.fi", title.to_uppercase(), escaped(lines));
    }
    page.extend(text.into_bytes());
    man.render_version_section(&mut page)?;
    Ok(page)
}

fn subcommand(command: &mut Command, text: &mut String) {
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").replace(" [OPTIONS]", "");
    let own: Vec<Arg> = command.get_arguments().filter(|arg| !arg.is_global_set()).cloned().collect();
    let options = own.iter().filter(|arg| !arg.is_positional() && arg.get_id() != "help");
    let flags = options.fold(String::new(), |flags, arg| format!("{flags} [{arg}]"));
    let _ = write!(text, ".SS {}", escaped(&format!("{usage}{flags}")));
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let _ = write!(text, "{}", escaped(&about).replace("\n\n", "\n.PP\n"));
    for arg in own.iter().filter(|arg| arg.get_id() != "help") {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let values = if arg.get_action().takes_values() { arg.get_default_values() } else { &[] };
        let default: Vec<_> = values.iter().map(|value| value.to_string_lossy()).collect();
        let default = if default.is_empty() { String::new() } else { format!(" [default: {}]", default.join(", ")) };
        let choices: Vec<_> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        let choices = if choices.is_empty() { String::new() } else { format!(" [{}]", choices.join(", ")) };
        let _ = write!(text, ".TP\n{}{}", escaped(&arg.to_string()), escaped(&format!("{help}{default}{choices}")));
    }
}

/// `text` as roff takes it: with the end of its last line, and nothing that roff would take for a request.
fn escaped(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        if line.starts_with(['.', '\'']) { format!("\\&{line}\n") } else { format!("{line}\n") }
    });
    lines.collect()
}
