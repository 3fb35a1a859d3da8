//! The command line: what to run, with which configuration, and how it ended.
//!
//! It decides nothing about ids: it loads the configuration, hands it to `app` and turns what comes back into one line on
//! standard error and an exit code: 0, 1 (failure), 2 (usage), 78 (bad configuration or identity).

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::app;
use crate::clock::{Clock, SystemClock};
use crate::config::{self, Config, Environment, Sources};

mod decode;
mod healthcheck;

const AFTER_HELP: &str = "\
Examples:
  idgen                                   serve on 127.0.0.1:6390, data in ./idgen-data
  redis-cli -p 6390 IDGET order           an id; any Redis client works
  idgen --data /var/lib/idgen             serve with the data in a folder of your choice
  idgen default-config > idgen.yaml       a configuration file to start from
  idgen check-config --config idgen.yaml  whether it can be used
  IDGEN__SERVER__MAX_COUNT=500 idgen      any key from the environment

Environment:
  IDGEN_CONFIG           the configuration file, where --config doesn't name one
  IDGEN__SECTION__KEY    one value of the configuration, such as IDGEN__SERVER__ADDR
  POD_NAME               in Kubernetes: the pod's name, for the worker id hint \"ordinal\"
  NO_COLOR               no colours in the log

Exit codes: 0 well, 1 failure, 2 wrong usage, 78 the configuration or identity can't be used,\n130 or 143 when a second SIGINT or SIGTERM ended it at once.";

const CONFIG_HELP: &str =
    "Configuration file, YAML or TOML [default: $IDGEN_CONFIG, else /etc/idgen/idgen.yaml where it exists]";

/// Unique ids for every service, over the Redis protocol.
///
/// idgen hands out ids that are never repeated, to any Redis client: IDGET tag for one, IDMGET tag n for many. Without any
/// options it serves on 127.0.0.1:6390 and keeps its data in ./idgen-data.
#[derive(Debug, Parser)]
#[command(name = "idgen", version, after_help = AFTER_HELP, max_term_width = 110)]
struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Default, Args)]
struct Options {
    #[arg(long, short, global = true, value_name = "FILE", help = CONFIG_HELP)]
    config: Option<PathBuf>,
    /// Address for Redis clients; short for --set server.addr=…
    #[arg(long, global = true, value_name = "HOST:PORT")]
    addr: Option<String>,
    /// Folder for the SQLite database; short for --set database.dsn=sqlite://DIR/idgen.db
    #[arg(long, global = true, value_name = "DIR")]
    data: Option<String>,
    /// One value of the configuration, above file and environment; may be repeated
    #[arg(long, global = true, value_name = "SECTION.KEY=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve ids until SIGTERM or SIGINT (what idgen does without a command)
    Serve,
    /// Prepare the database: tables, identity and layout; may be repeated
    ///
    /// A SQLite database prepares itself when idgen first serves.
    Init,
    /// Say whether the configuration can be used, and every problem it has
    CheckConfig,
    /// Print the merged configuration, with where each value comes from
    PrintConfig,
    /// Print the defaults with their documentation, a file to start from
    DefaultConfig,
    /// Take a Snowflake id apart: when and where it was made
    ///
    /// The layout of the configuration is used, so it must be that of the cluster the id is from.
    Decode {
        /// The id, in decimal digits
        #[arg(value_name = "ID")]
        id: u64,
    },
    /// Ask the server of this configuration for a PING: exit 0 when it serves, 1 when not
    Healthcheck,
    /// Make a restored or failed-over database safe, with all nodes stopped
    ///
    /// A database that was restored from a copy doesn't know of the ids given away since. This raises the bounds of all
    /// worker ids above the present time, and the counters of all tags by N.
    AfterRestore {
        /// By how many ids to raise every counter: more than could be given away since the copy
        #[arg(long, value_name = "N", default_value_t = app::DEFAULT_SKIP)]
        skip: u64,
    },
    /// Print completions for a shell
    #[command(after_help = "For bash: idgen completions bash > /etc/bash_completion.d/idgen")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page
    #[command(after_help = "To read it: idgen man | man -l -")]
    Man,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write SECTION.KEY=VALUE, such as server.max_count=500")?;
    if key.contains('.') { Ok((key.to_owned(), value.to_owned())) } else { Err(format!("{key:?} is not SECTION.KEY")) }
}

/// Why a command failed: what to print, and the exit code.
#[derive(Debug)]
struct Failure(String, u8);

impl From<config::Error> for Failure {
    fn from(error: config::Error) -> Self {
        Self(error.to_string(), config::EXIT_CODE)
    }
}

impl From<app::Error> for Failure {
    fn from(error: app::Error) -> Self {
        Self(error.to_string(), error.exit_code())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        // Whoever reads our output has seen enough, as `head` does: nothing to say, and no failure.
        if error.kind() == io::ErrorKind::BrokenPipe { Self(String::new(), 0) } else { Self(error.to_string(), 1) }
    }
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are such errors, too; they go to standard output with code 0.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match run(cli, Environment::of_process(), &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(text, code)) => {
            for line in text.lines() {
                let _ = writeln!(io::stderr(), "idgen: {line}");
            }
            ExitCode::from(code)
        }
    }
}

fn run(cli: Cli, environment: Environment, out: &mut impl Write) -> Result<(), Failure> {
    let load = || Config::load(&sources(&cli.options, environment), SystemClock.wall());
    match cli.command.unwrap_or(Command::Serve) {
        Command::Serve => app::serve(load()?)?,
        Command::Init => app::init(&load()?)?,
        Command::AfterRestore { skip } => app::after_restore(&load()?, skip)?,
        Command::CheckConfig => {
            load()?;
            writeln!(out, "The configuration can be used.")?;
        }
        Command::PrintConfig => out.write_all(load()?.print().as_bytes())?,
        Command::DefaultConfig => out.write_all(config::DEFAULTS.as_bytes())?,
        Command::Decode { id } => {
            let text = decode::explain(&load()?, id).map_err(|text| Failure(text, 1))?;
            out.write_all(text.as_bytes())?;
        }
        Command::Healthcheck => {
            let text = healthcheck::ask(&load()?).map_err(|text| Failure(text, 1))?;
            writeln!(out, "{text}")?;
        }
        Command::Completions { shell } => clap_complete::generate(shell, &mut Cli::command(), "idgen", out),
        Command::Man => clap_mangen::Man::new(Cli::command()).render(out)?,
    }
    Ok(())
}

/// Where the configuration comes from, as the options say.
fn sources(options: &Options, environment: Environment) -> Sources {
    let mut flags: Vec<_> =
        options.set.iter().map(|(key, text)| ("--set".to_owned(), key.clone(), text.clone())).collect();
    if let Some(addr) = &options.addr {
        flags.push(("--addr".to_owned(), "server.addr".to_owned(), addr.clone()));
    }
    if let Some(folder) = &options.data {
        let dsn = format!("sqlite://{}/idgen.db", folder.trim_end_matches('/'));
        flags.push(("--data".to_owned(), "database.dsn".to_owned(), dsn));
    }
    Sources { file: options.config.clone(), environment, flags, ..Sources::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(args: &[&str]) -> Result<String, Failure> {
        let cli = Cli::try_parse_from([&["idgen"], args].concat()).expect("usage");
        let mut out = Vec::new();
        // So that a file of this machine changes nothing.
        let empty = tempfile::Builder::new().suffix(".yaml").tempfile().expect("a file");
        let environment = Environment::from([("IDGEN_CONFIG", empty.path().to_str().expect("text"))]);
        run(cli, environment, &mut out)?;
        Ok(String::from_utf8(out).expect("text"))
    }

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_may_stand_before_and_after_the_command() {
        for args in
            [["idgen", "--addr", "127.0.0.1:1", "print-config"], ["idgen", "print-config", "--addr", "127.0.0.1:1"]]
        {
            let cli = Cli::try_parse_from(args).expect("usage");
            assert_eq!(cli.options.addr.as_deref(), Some("127.0.0.1:1"));
        }
        assert!(Cli::try_parse_from(["idgen"]).expect("usage").command.is_none());
    }

    #[test]
    fn wrong_usage_exits_with_2() {
        for args in
            [&["idgen", "--set", "addr"][..], &["idgen", "decode", "x"], &["idgen", "fly"], &["idgen", "--set", "a=b"]]
        {
            assert_eq!(Cli::try_parse_from(args).expect_err("refused").exit_code(), 2, "{args:?}");
        }
    }

    #[test]
    fn flags_are_the_strongest_layer_and_are_named_as_origins() {
        let args = ["print-config", "--data", "/srv/ids/", "--set", "server.max_count=7", "--set", "log.level=warn"];
        let text = output(&args).expect("printed");
        for line in [
            "dsn: \"sqlite:///srv/ids/idgen.db\" # flag --data",
            "max_count: \"7\" # flag --set",
            "max_clients: 10000 # default",
        ] {
            let found = text.lines().any(|given| given.split_whitespace().collect::<Vec<_>>().join(" ") == line);
            assert!(found, "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn a_bad_configuration_exits_with_78() {
        let Failure(text, code) = output(&["check-config", "--addr", "0.0.0.0:6390"]).expect_err("refused");
        assert_eq!(code, 78);
        assert!(text.contains("server.addr") && text.contains("allow_unauthenticated"), "{text}");
        assert_eq!(output(&["check-config", "--config", "/nonexistent.yaml"]).expect_err("refused").1, 78);
        assert_eq!(output(&["check-config"]).expect("accepted"), "The configuration can be used.\n");
    }

    #[test]
    fn help_names_examples_environment_and_exit_codes() {
        let help = Cli::command().render_long_help().to_string();
        for word in ["redis-cli -p 6390 IDGET order", "IDGEN_CONFIG", "Exit codes", "after-restore"] {
            assert!(help.contains(word), "{word} is missing in\n{help}");
        }
    }

    #[test]
    fn completions_and_the_manual_page_are_printed() {
        assert!(output(&["completions", "bash"]).expect("printed").contains("_idgen"));
        assert!(output(&["man"]).expect("printed").contains(".TH idgen"));
        assert_eq!(output(&["default-config"]).expect("printed"), config::DEFAULTS);
    }
}
