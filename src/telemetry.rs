//! The log: what the program tells about itself, on standard error.
//!
//! Whoever logs never waits: lines go through a short queue to a thread of their own, and where the sink is blocked (a
//! full pipe, a full disk) they are dropped and counted. A panic is counted and told by its place alone, since its text
//! may hold what a client sent. Rejected: a file with rotation, which the place that runs the program does better.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// How many lines may wait for the sink.
const QUEUE_LINES: usize = 1024;

/// The longest line, in bytes; the rest is cut off. It bounds the queue's memory.
const MAX_LINE: usize = 8 * 1024;

/// How long a stop waits for the last lines to be written.
const FLUSH_WAIT: Duration = Duration::from_secs(1);

static PANICS: AtomicU64 = AtomicU64::new(0);

/// Section `log`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What is told: `error`, `warn`, `info`, `debug`, `trace`, also by part (`info,idgen::store=debug`). Default `info`.
    pub level: String,
    /// How it is told. Default `auto`.
    pub format: Format,
}

impl Default for Config {
    fn default() -> Self {
        Self { level: "info".into(), format: Format::Auto }
    }
}

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// For people.
    Text,
    /// For machines: one object a line.
    Json,
}

impl Config {
    /// Whether the section can be used.
    ///
    /// # Errors
    /// In words, naming the key and the fix.
    pub fn validate(&self) -> Result<(), String> {
        let fix = "write a level such as info, or levels by part such as \"info,idgen::store=debug\"";
        filter(&self.level).map(drop).map_err(|error| format!("log.level: {error}; {fix}"))
    }
}

fn filter(level: &str) -> Result<EnvFilter, String> {
    if level.trim().is_empty() {
        return Err("it is empty".into());
    }
    // A filter takes any word for the name of a part, and numbers for levels; a bare word that is no level and a number
    // are slips of the pen.
    for part in level.split(',').map(str::trim).filter(|part| !part.contains('[')) {
        let word = part.rsplit('=').next().unwrap_or_default().trim();
        let number = word.parse::<u64>().is_ok();
        if number || word.parse::<tracing_subscriber::filter::LevelFilter>().is_err() {
            return Err(format!("{word:?} is not a level"));
        }
    }
    EnvFilter::builder().parse(level).map_err(|error| format!("{level:?} can't be used: {error}"))
}

/// The log of the process. Dropping it waits shortly for the last lines.
#[derive(Debug)]
pub struct Telemetry {
    lines: Lines,
}

impl Telemetry {
    /// Starts the log on standard error and counts panics from here on. `color`: whether a terminal may be coloured.
    ///
    /// # Errors
    /// When the level is none, the thread can't be started, or the process has a log already.
    pub fn start(config: &Config, color: bool) -> Result<Self, Error> {
        let terminal = io::stderr().is_terminal();
        let json = match config.format {
            Format::Auto => !terminal,
            Format::Text => false,
            Format::Json => true,
        };
        let filter = filter(&config.level).map_err(|text| Error(format!("log.level: {text}")))?;
        let lines = Lines::start(io::stderr()).map_err(|error| Error(format!("the log's thread: {error}")))?;
        let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(lines.clone());
        let set = if json {
            tracing::subscriber::set_global_default(subscriber.json().flatten_event(true).finish())
        } else {
            tracing::subscriber::set_global_default(subscriber.with_ansi(terminal && color).with_target(false).finish())
        };
        set.map_err(|_| Error("the process has a log already".into()))?;
        count_panics();
        Ok(Self { lines })
    }

    /// A reader of how many lines were dropped (`idgen_log_dropped_total`), for the metrics.
    pub fn dropped(&self) -> impl Fn() -> u64 + Send + Sync + use<> {
        let dropped = Arc::clone(&self.lines.dropped);
        move || dropped.load(Ordering::Relaxed)
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        self.lines.flush(FLUSH_WAIT);
    }
}

/// Why there is no log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

/// How many panics there were (`idgen_panics_total`).
#[must_use]
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// Counts panics and logs their place. The text of a panic is left out unless it is a constant of the program.
fn count_panics() {
    std::panic::set_hook(Box::new(|panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        let text =
            panic.payload().downcast_ref::<&'static str>().copied().unwrap_or("its text may hold data of a client");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, text, error_kind = "system", "panic: this is a defect of idgen, please report it");
    }));
}

enum Item {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

/// The near end of the queue to the sink.
#[derive(Clone, Debug)]
struct Lines {
    queue: SyncSender<Item>,
    dropped: Arc<AtomicU64>,
}

impl Lines {
    fn start(sink: impl Write + Send + 'static) -> io::Result<Self> {
        let (queue, items) = sync_channel(QUEUE_LINES);
        let dropped = Arc::new(AtomicU64::new(0));
        let lost = Arc::clone(&dropped);
        std::thread::Builder::new().name("idgen-log".into()).spawn(move || write(&items, sink, &lost))?;
        Ok(Self { queue, dropped })
    }

    fn flush(&self, wait: Duration) {
        let (done, end) = sync_channel(1);
        // A full queue means a blocked sink: nothing to wait for.
        if self.queue.try_send(Item::Flush(done)).is_ok() {
            let _ = end.recv_timeout(wait);
        }
    }
}

fn write(items: &Receiver<Item>, mut sink: impl Write, lost: &AtomicU64) {
    for item in items {
        match item {
            Item::Line(line) => {
                if sink.write_all(&line).and_then(|()| sink.flush()).is_err() {
                    lost.fetch_add(1, Ordering::Relaxed);
                }
            }
            Item::Flush(done) => drop(done),
        }
    }
}

/// One line on its way: an event is written in one or more pieces and goes into the queue when the writer is dropped.
#[derive(Debug)]
struct Line<'a> {
    to: &'a Lines,
    text: Vec<u8>,
}

impl Write for Line<'_> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let room = MAX_LINE.saturating_sub(self.text.len());
        self.text.extend(piece.iter().take(room));
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let mut text = std::mem::take(&mut self.text);
        while text.last().is_some_and(u8::is_ascii_whitespace) {
            text.pop();
        }
        if text.is_empty() {
            return;
        }
        // One event is one line, whatever a text in it holds.
        for byte in &mut text {
            if matches!(byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
        text.push(b'\n');
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.to.queue.try_send(Item::Line(text)) {
            self.to.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { to: self, text: Vec::with_capacity(256) }
    }
}

/// Thins out a line that repeats: one in [`Self::EVERY`], with how many were held back since.
#[derive(Clone, Copy, Debug, Default)]
pub struct Throttle {
    last: Option<Duration>,
    held_back: u64,
}

impl Throttle {
    /// At most one line in this time.
    pub const EVERY: Duration = Duration::from_secs(10);

    /// Whether the line may be logged `now` (a reading of one clock that does not go back), and then how many were held
    /// back since the last one.
    pub fn permit(&mut self, now: Duration) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_sub(last) < Self::EVERY) {
            self.held_back += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.held_back))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(piece)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A sink that says when it is reached and then takes nothing until it is let go.
    struct Blocked(Sender<()>, Receiver<()>);

    impl Write for Blocked {
        fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
            self.0.send(()).ok();
            self.1.recv().ok();
            Ok(piece.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Broken;

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::other("no space left"))
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const WAIT: Duration = Duration::from_secs(10);

    #[test]
    fn an_event_becomes_one_line_and_a_long_one_is_cut() {
        let kept = Kept::default();
        let lines = Lines::start(kept.clone()).unwrap();
        let subscriber = tracing_subscriber::fmt().with_writer(lines.clone()).without_time().with_ansi(false).finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(biz_tag = "order", "a\nFORGED line");
            tracing::info!("{}", "x".repeat(2 * MAX_LINE));
        });
        lines.flush(WAIT);
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let rows: Vec<_> = text.lines().collect();
        assert_eq!(rows.len(), 2, "{text}");
        assert!(rows[0].contains("FORGED line") && rows[0].contains("biz_tag=\"order\""), "{}", rows[0]);
        assert!(rows[1].len() <= MAX_LINE);
    }

    #[test]
    fn a_blocked_sink_costs_lines_and_no_time() {
        let ((reached, wait), (go, held)) = (channel(), channel());
        let lines = Lines::start(Blocked(reached, held)).unwrap();
        let say = || lines.make_writer().write_all(b"line").unwrap();
        say();
        wait.recv_timeout(WAIT).unwrap();
        for _ in 0..QUEUE_LINES + 5 {
            say();
        }
        assert_eq!(lines.dropped.load(Ordering::Relaxed), 5);
        drop(go);
    }

    #[test]
    fn a_broken_sink_is_counted() {
        let lines = Lines::start(Broken).unwrap();
        lines.make_writer().write_all(b"line").unwrap();
        lines.flush(WAIT);
        assert_eq!(lines.dropped.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_repeated_line_is_thinned_out_and_tells_how_many_were_held_back() {
        let mut throttle = Throttle::default();
        let seconds = Duration::from_secs;
        assert_eq!(throttle.permit(seconds(100)), Some(0));
        assert_eq!(throttle.permit(seconds(101)), None);
        assert_eq!(throttle.permit(seconds(109)), None);
        assert_eq!(throttle.permit(seconds(110)), Some(2));
        assert_eq!(throttle.permit(seconds(119)), None);
        assert_eq!(throttle.permit(seconds(120)), Some(1));
    }

    #[test]
    fn a_level_is_checked() {
        let with = |level: &str| Config { level: level.into(), ..Config::default() }.validate();
        assert_eq!(with("info"), Ok(()));
        assert_eq!(with("warn,idgen::store=debug"), Ok(()));
        for bad in ["loud", "info,idgen=loud", "", "3", "info,idgen=3"] {
            assert!(with(bad).expect_err("refused").starts_with("log.level: "), "{bad:?}");
        }
    }
}
