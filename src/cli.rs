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
use crate::ids::MAX_ID;

mod client;
mod decode;
mod healthcheck;
mod import;
mod manual;

const AFTER_HELP: &str = "\
Examples:
  idgen                                   serve on 127.0.0.1:6390, data in ./idgen-data
  redis-cli -p 6390 IDGET order           an id; any Redis client works
  idgen --data /var/lib/idgen             serve with the data in a folder of your choice
  idgen default-config > idgen.yaml       a configuration file to start from
  idgen check-config idgen.yaml           whether it can be used
  IDGEN__SERVER__MAX_COUNT=500 idgen      any key from the environment
  idgen --addr 127.0.0.1:6391 --admin-addr 127.0.0.1:9391 --data ./idgen-data-2
                                          a second server on this machine

Environment:
  IDGEN_CONFIG           the configuration file, where --config doesn't name one
  IDGEN__SECTION__KEY    one value of the configuration, such as IDGEN__SERVER__ADDR
  POD_NAME               in Kubernetes: the pod's name, for the worker id hint \"ordinal\"
  NO_COLOR               no colours in the log

Exit codes:
  0                      well
  1                      failure
  2                      wrong usage
  78                     the configuration or identity can't be used
  130, 143               a second SIGINT or SIGTERM ended it at once";

/// The help of commands that look at no configuration: without the options for it.
const PLAIN_HELP: &str = "{about-with-newline}\n{usage-heading} {usage}{after-help}";

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
    /// Address for HTTP (metrics and health), "" for none; short for --set admin.addr=…
    #[arg(long, global = true, value_name = "HOST:PORT")]
    admin_addr: Option<String>,
    /// Folder for the SQLite database; short for --set database.dsn=sqlite://DIR/idgen.db
    #[arg(long, global = true, value_name = "DIR", value_parser = folder)]
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
    CheckConfig(Checked),
    /// Print the merged configuration, with where each value comes from
    PrintConfig(Checked),
    /// Print the defaults with their documentation, a file to start from
    #[command(help_template = PLAIN_HELP, override_usage = "idgen default-config")]
    DefaultConfig,
    /// Take a Snowflake id apart: when and where it was made
    ///
    /// The layout of the configuration is used, so it must be that of the cluster the id is from.
    Decode {
        /// The id, in decimal digits
        #[arg(value_name = "ID", value_parser = id, allow_negative_numbers = true)]
        id: u64,
    },
    /// Ask the server of this configuration for a PING: exit 0 when it serves, 1 when not
    ///
    /// A server that wants a login before it says anything counts as alive.
    Healthcheck,
    Import(import::Import),
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
    #[command(
        help_template = "{about-with-newline}\n{usage-heading} {usage}\n\nArguments:\n{positionals}{after-help}",
        override_usage = "idgen completions <SHELL>",
        after_help = "For bash: idgen completions bash > /etc/bash_completion.d/idgen"
    )]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page
    #[command(help_template = PLAIN_HELP, override_usage = "idgen man", after_help = "To read it: idgen man | man -l -")]
    Man,
}

/// Which configuration a command looks at.
#[derive(Debug, Default, Args)]
struct Checked {
    /// The configuration file, as with --config
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

fn folder(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("name a folder, such as ./idgen-data".to_owned()) } else { Ok(text.to_owned()) }
}

fn id(text: &str) -> Result<u64, String> {
    let id = text.parse().ok().filter(|id| (1..=MAX_ID).contains(id));
    id.ok_or_else(|| format!("an id is an integer from 1 to {MAX_ID}"))
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

fn run(mut cli: Cli, environment: Environment, out: &mut impl Write) -> Result<(), Failure> {
    let command = cli.command.take().unwrap_or(Command::Serve);
    if let Command::CheckConfig(Checked { file: Some(file) }) | Command::PrintConfig(Checked { file: Some(file) }) =
        &command
        && let Some(other) = cli.options.config.replace(file.clone())
    {
        let text = format!("two configuration files are named, {} and {}", file.display(), other.display());
        return Err(Failure(text, 2));
    }
    let sources = sources(&cli.options, environment);
    let load = || Config::load(&sources, SystemClock.wall());
    match command {
        Command::Serve => app::serve(load()?)?,
        Command::Init => app::init(&load()?)?,
        Command::AfterRestore { skip } => app::after_restore(&load()?, skip)?,
        Command::CheckConfig(_) => {
            load()?;
            writeln!(out, "The configuration can be used.")?;
        }
        Command::PrintConfig(_) => out.write_all(load()?.print().as_bytes())?,
        Command::DefaultConfig => out.write_all(config::DEFAULTS.as_bytes())?,
        Command::Decode { id } => {
            let text = decode::explain(&load()?, id).map_err(|text| Failure(text, 1))?;
            out.write_all(text.as_bytes())?;
        }
        Command::Healthcheck => {
            let text = healthcheck::ask(&Config::listener(&sources)?).map_err(|text| Failure(text, 1))?;
            writeln!(out, "{text}")?;
        }
        Command::Import(import) => import::run(import, &sources, out)?,
        Command::Completions { shell } => {
            // The generator panics where it can't write.
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "idgen", &mut text);
            out.write_all(&text)?;
        }
        Command::Man => out.write_all(&manual::page(Cli::command(), AFTER_HELP)?)?,
    }
    out.flush()?;
    Ok(())
}

/// Where the configuration comes from, as the options say.
fn sources(options: &Options, environment: Environment) -> Sources {
    let mut flags: Vec<_> =
        options.set.iter().map(|(key, text)| ("--set".to_owned(), key.clone(), text.clone())).collect();
    if let Some(addr) = &options.addr {
        flags.push(("--addr".to_owned(), "server.addr".to_owned(), addr.clone()));
    }
    if let Some(addr) = &options.admin_addr {
        flags.push(("--admin-addr".to_owned(), "admin.addr".to_owned(), addr.clone()));
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
        for (args, text) in [
            (&["--set", "addr"][..], "SECTION.KEY=VALUE"),
            (&["decode", "x"], "an id is an integer from 1 to 9223372036854775807"),
            (&["decode", "0"], "an id is an integer from 1 to"),
            (&["decode", "-5"], "an id is an integer from 1 to"),
            (&["decode", "9223372036854775808"], "an id is an integer from 1 to"),
            (&["fly"], "fly"),
            (&["--set", "a=b"], "SECTION.KEY"),
            (&["--data", ""], "name a folder"),
            (&["import"], "leaf"),
            (&["import", "max", "--table", "t", "--column", "id"], "--tag"),
            (&["import", "leaf", "--source", "a", "--source-file", "b"], "cannot be used with"),
            (&["import", "leaf", "--margin", "x"], "--margin"),
        ] {
            let error = Cli::try_parse_from([&["idgen"], args].concat()).expect_err("refused");
            assert_eq!(error.exit_code(), 2, "{args:?}");
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn flags_are_the_strongest_layer_and_are_named_as_origins() {
        let args =
            ["print-config", "--data", "/srv/ids/", "--set", "server.max_count=7", "--admin-addr", "127.0.0.1:9"];
        let text = output(&args).expect("printed");
        for line in [
            "dsn: \"sqlite:///srv/ids/idgen.db\" # flag --data",
            "max_count: 7 # flag --set",
            "addr: \"127.0.0.1:9\" # flag --admin-addr",
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
        let page = output(&["man"]).expect("printed");
        for text in [
            ".TH idgen",
            "idgen after\\-restore",
            "\\-\\-skip",
            "idgen import tinyid",
            "\\-\\-strided",
            ".SH EXAMPLES",
            "Any Redis client",
            "IDGET order",
        ] {
            assert!(page.to_lowercase().contains(&text.to_lowercase()), "{text} is missing in\n{page}");
        }
        assert!(!page.contains("(1)") && !page.contains("EXTRA"), "{page}");
        assert_eq!(output(&["default-config"]).expect("printed"), config::DEFAULTS);
    }

    #[test]
    fn a_source_with_a_password_on_the_command_line_is_wrong_usage() {
        let args = ["import", "leaf", "--source", "mysql://root:geheim@db/leaf"];
        let Failure(text, code) = output(&args).expect_err("refused");
        assert!(code == 2 && text.contains("IDGEN_IMPORT_SOURCE") && !text.contains("geheim"), "{text}");
        assert_eq!(output(&["import", "redis"]).expect_err("no source").1, 2);
    }

    #[test]
    fn the_file_to_check_may_be_named_without_an_option() {
        let file = tempfile::Builder::new().suffix(".yaml").tempfile().expect("a file");
        std::fs::write(file.path(), "server: { max_count: 3 }").expect("written");
        let path = file.path().to_str().expect("text");
        assert!(output(&["print-config", path]).expect("printed").contains("max_count: 3 "));
        assert!(output(&["check-config", path]).is_ok());
        assert_eq!(output(&["check-config", path, "--config", path]).expect_err("refused").1, 2);
    }

    #[test]
    fn commands_that_look_at_no_configuration_offer_no_options_for_it() {
        for name in ["man", "completions", "default-config"] {
            let help = Cli::try_parse_from(["idgen", name, "--help"]).expect_err("help").to_string();
            assert!(help.contains(&format!("idgen {name}")) && !help.contains("--data"), "{help}");
        }
        assert!(Cli::try_parse_from(["idgen", "decode", "--help"]).expect_err("help").to_string().contains("--set"));
    }

    /// A disk without space.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn output_that_can_not_be_written_is_a_failure_and_no_panic() {
        for args in [&["idgen", "completions", "fish"][..], &["idgen", "man"], &["idgen", "default-config"]] {
            let cli = Cli::try_parse_from(args).expect("usage");
            assert_eq!(run(cli, Environment::default(), &mut Full).expect_err("full").1, 1, "{args:?}");
        }
    }
}
