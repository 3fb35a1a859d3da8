//! `idgen import`: brings the counters of Leaf, Tinyid, Redis or a table to a running server, as tags that go on above them.
//!
//! Guaranteed: nothing is written at the source, nothing is lowered here, and nothing is changed at all without `--apply`.
//! Again is fine: what is done already is found done. What can't be done is told by name, and the rest goes on. Everything
//! goes through the server (`IDTAG CREATE`, `IDTAG FLOOR`), which tells its other nodes; rejected was writing to the
//! database behind its back.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use super::Failure;
use super::client::{Login, Place};
use crate::config::{Config, Environment, Sources};

mod dsn;
mod plan;
mod report;
mod server;
mod source;

use plan::{Action, Counter, Rules, Target};
use report::Line;
use server::{Answer, Job, Server};
use source::Query;

/// From how many tags on there is a bar: fewer are done at once.
const MANY: usize = 20;

const AFTER_HELP: &str = "\
Without --apply nothing is changed: a table says what would be. To move:
  1. idgen import …           look at the plan
  2. stop every writer of the old place, for good
  3. idgen import … --apply   now the numbers are the last ones
  4. point the callers to idgen
Old writers that go on repeat ids that idgen gives. Where they can't be stopped before 3, add
more ids than they can give until they are, with --margin.

Environment:
  IDGEN_IMPORT_SOURCE    the source, where it has a password
  IDGEN_PASSWORD         the password or token for the idgen server";

const SOURCE_HELP: &str = "mysql://user@host/database, postgres://user@host/database or redis://host:6379/0, without a \
                           password; a database elsewhere has to show a certificate of its name, unless ?ssl-mode= \
                           says otherwise";

const LEAF: &str = "\
Leaf and idgen must not give ids of one tag side by side. Leaf keeps the next id in max_id, idgen the last one: on one table
an id is given twice at every Leaf grant that follows one of idgen's, whatever is added once; on two tables neither knows
of the other's. Moving from Leaf to idgen is safe as it is (one id is skipped). To go back: stop idgen, and set Leaf's
max_id to idgen's plus 1.";

/// Bring counters of another id server, or the largest id of a table, to a running idgen
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct Import {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, Subcommand)]
enum From {
    /// Tags of Leaf, in a table of MySQL, MariaDB or PostgreSQL
    #[command(after_help = AFTER_HELP, next_help_heading = "Import")]
    Leaf {
        /// The table; a dot stands between a schema and its table
        #[arg(long, value_name = "TABLE", default_value = "leaf_alloc")]
        table: String,
        #[command(flatten)]
        names: Names,
        #[command(flatten)]
        options: Options,
    },
    /// Tags of Tinyid, in a table of MySQL, MariaDB or PostgreSQL
    #[command(after_help = AFTER_HELP, next_help_heading = "Import")]
    Tinyid {
        /// The table; a dot stands between a schema and its table
        #[arg(long, value_name = "TABLE", default_value = "tiny_id_info")]
        table: String,
        /// Import tags whose delta is above 1, too: all their databases are imported, one after the other
        #[arg(long)]
        strided: bool,
        #[command(flatten)]
        names: Names,
        #[command(flatten)]
        options: Options,
    },
    /// Counters of a Redis server that are used with INCR: keys with an integer that don't expire
    #[command(after_help = AFTER_HELP, next_help_heading = "Import")]
    Redis {
        #[command(flatten)]
        names: Names,
        #[command(flatten)]
        options: Options,
    },
    /// The largest value in a column, such as an auto-increment key
    ///
    /// Rows that were deleted are not seen: where the last ones may have been, add --margin.
    #[command(after_help = AFTER_HELP, next_help_heading = "Import")]
    Max {
        /// The table, as it is spelt in the database; a dot stands between a schema and its table
        #[arg(long, value_name = "TABLE")]
        table: String,
        /// The column, as it is spelt in the database
        #[arg(long, value_name = "COLUMN")]
        column: String,
        /// The tag that goes on with the ids
        #[arg(long, value_name = "TAG")]
        tag: String,
        #[command(flatten)]
        options: Options,
    },
}

/// Which counters, and under which names.
#[derive(Debug, Default, Args)]
struct Names {
    /// Only counters whose names match, with * and ? as in Redis
    #[arg(long = "match", value_name = "PATTERN")]
    pattern: Option<String>,
    /// Take this off the start of each name that has it
    #[arg(long, value_name = "PREFIX")]
    strip_prefix: Option<String>,
    /// Put this before each name
    #[arg(long, value_name = "PREFIX")]
    tag_prefix: Option<String>,
}

#[derive(Debug, Args)]
struct Options {
    #[arg(long, value_name = "DSN", conflicts_with = "source_file", help = SOURCE_HELP)]
    source: Option<String>,
    /// A file that holds the source, which may then have a password
    #[arg(long, value_name = "FILE")]
    source_file: Option<PathBuf>,
    /// The user at the idgen server, which is found by --addr or the configuration
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// A file that holds the user's password or token
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Do it; without this, only say what would be done
    #[arg(long)]
    apply: bool,
    /// How many ids to add on top, for a source that is still being written
    #[arg(long, value_name = "N", default_value_t = 0)]
    margin: u64,
    /// Go through with jumps of more than 10^12 ids, which can't be taken back
    #[arg(long)]
    force: bool,
}

impl From {
    fn parts(self) -> (Query, Names, Options, bool) {
        match self {
            Self::Leaf { table, names, options } => (Query::Leaf { table }, names, options, false),
            Self::Tinyid { table, strided, names, options } => (Query::Tinyid { table }, names, options, strided),
            Self::Redis { names, options } => (Query::Redis, names, options, false),
            Self::Max { table, column, tag, options } => {
                (Query::Max { table, column, tag }, Names::default(), options, false)
            }
        }
    }
}

/// Runs the command; what it says goes to `out`.
pub fn run(import: Import, sources: &Sources, out: &mut impl Write) -> Result<(), Failure> {
    let (query, names, options, strided) = import.from.parts();
    let environment: &Environment = &sources.environment;
    let usage = |text| Failure(text, 2);
    let source = dsn::source(options.source.as_deref(), options.source_file.as_deref(), environment).map_err(usage)?;
    let password = dsn::password(options.password_file.as_deref(), environment).map_err(usage)?;
    let server = Server {
        place: Place::of(&Config::listener(sources)?),
        login: Login { user: options.user.unwrap_or_default(), password },
    };
    let rules = Rules {
        strip_prefix: names.strip_prefix.unwrap_or_default(),
        tag_prefix: names.tag_prefix.unwrap_or_default(),
        margin: options.margin,
        force: options.force,
        strided,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let work = async {
        server.check().await?;
        let found = source::read(&source, &query, names.pattern.as_deref()).await?;
        let lines = bring(&server, &found.counters, &rules, options.apply).await;
        Ok((found, lines))
    };
    let (found, lines) = runtime.block_on(work).map_err(|text: String| Failure(text, 1))?;
    writeln!(out, "from {} to {}", dsn::place(&source), server.place)?;
    for skipped in &found.skipped {
        writeln!(out, "passed over {skipped}")?;
    }
    report::table(&lines, out)?;
    for note in &found.notes {
        writeln!(out, "note: {note}")?;
    }
    writeln!(out, "{}", report::summary(&lines, options.apply))?;
    if matches!(query, Query::Leaf { .. }) {
        writeln!(out, "\n{LEAF}")?;
    }
    if !options.apply {
        writeln!(
            out,
            "\nNothing was changed. Stop every writer of the source, then run again with --apply, then point the callers to \
             idgen: old writers that go on repeat ids."
        )?;
    }
    match lines.iter().filter(|line| line.failed()).count() {
        0 => Ok(()),
        failed => Err(Failure(format!("{failed} of {} counters were refused or failed", lines.len()), 1)),
    }
}

/// Brings each of `counters` to the server, or with `apply` off says what that would be.
async fn bring(server: &Server, counters: &[Counter], rules: &Rules, apply: bool) -> Vec<Line> {
    let mut targets = plan::targets(counters, rules);
    let lines = counters.iter().zip(&targets).map(|(counter, target)| Line {
        name: counter.name.clone(),
        value: counter.value.clone(),
        standing: None,
        action: match target {
            Ok(_) => Action::Nothing,
            Err(why) => Action::Refused(why.clone()),
        },
        done: Ok(false),
        tag: target.as_ref().map(|target| target.tag.as_str().to_owned()).unwrap_or_default(),
        notes: Vec::new(),
    });
    let mut lines: Vec<_> = lines.collect();
    let mut left: Vec<usize> = (0..targets.len()).filter(|&at| matches!(targets.get(at), Some(Ok(_)))).collect();
    look(server, &mut targets, &mut lines, &left, rules.force).await;
    if apply {
        left = act(server, &targets, &mut lines, &left, rules.force).await;
        // Somebody drew an id of the tag in between, which created it: its floor is what is left to raise.
        look(server, &mut targets, &mut lines, &left, rules.force).await;
        act(server, &targets, &mut lines, &left, rules.force).await;
    }
    for (line, target) in lines.iter_mut().zip(targets) {
        line.notes = target.map(|target| target.notes).unwrap_or_default();
    }
    lines
}

/// Asks how the tags at the places `wanted` stand and plans what to do.
async fn look(
    server: &Server,
    targets: &mut [Result<Target, String>],
    lines: &mut [Line],
    wanted: &[usize],
    force: bool,
) {
    let jobs = wanted.iter().filter_map(|&at| Some(Job::Look(targets.get(at)?.as_ref().ok()?.tag.clone())));
    let jobs: Vec<_> = jobs.collect();
    let bar = bar("asking", jobs.len());
    let answers = server.work(jobs, &bar).await;
    bar.finish_and_clear();
    for (&at, answer) in wanted.iter().zip(answers) {
        let (Some(line), Some(Ok(target))) = (lines.get_mut(at), targets.get_mut(at)) else { continue };
        match answer {
            Ok(Answer::Standing(standing)) => {
                line.action = plan::action(target, standing.as_ref(), force);
                line.standing = standing;
                line.done = Ok(false);
            }
            Ok(Answer::Done) => {}
            Err(text) => line.done = Err(text),
        }
    }
}

/// Does what is planned at the places `wanted`; gives those that have to be planned again.
async fn act(
    server: &Server,
    targets: &[Result<Target, String>],
    lines: &mut [Line],
    wanted: &[usize],
    force: bool,
) -> Vec<usize> {
    let job = |at: usize| {
        let (line, Ok(target)) = (lines.get(at)?, targets.get(at)?) else { return None };
        line.done.as_ref().ok()?;
        match line.action {
            Action::Create(start) => Some((at, Job::Create(Box::new(target.clone()), start))),
            Action::Raise(floor) => Some((at, Job::Raise(target.tag.clone(), floor, force))),
            Action::Nothing | Action::Refused(_) => None,
        }
    };
    let (places, jobs): (Vec<_>, Vec<_>) = wanted.iter().filter_map(|&at| job(at)).unzip();
    let bar = bar("importing", jobs.len());
    let answers = server.work(jobs, &bar).await;
    bar.finish_and_clear();
    let mut again = Vec::new();
    for (at, answer) in places.into_iter().zip(answers) {
        let Some(line) = lines.get_mut(at) else { continue };
        if matches!(line.action, Action::Create(_)) && answer.as_ref().is_err_and(|text| text.starts_with("IDCONFLICT"))
        {
            again.push(at);
        }
        line.done = answer.map(|_| true);
    }
    again
}

/// A bar on the terminal of standard error; none for few, and none where that is no terminal.
fn bar(what: &'static str, length: usize) -> ProgressBar {
    if length < MANY {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}, {eta} left");
    let bar = ProgressBar::new(length as u64).with_message(what);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
