//! Signals that end the process: the first asks for a clean stop, the second ends it at once.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Listens for SIGTERM and SIGINT: the first cancels `stop`, the second ends the process with 128 + its number, the way a
/// shell reports a process that a signal has ended.
///
/// # Errors
/// When the process can't listen for signals.
pub fn stop_signals(stop: CancellationToken) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        let mut stopping = false;
        loop {
            let (name, number) = tokio::select! {
                _ = terminate.recv() => ("SIGTERM", SignalKind::terminate().as_raw_value()),
                _ = interrupt.recv() => ("SIGINT", SignalKind::interrupt().as_raw_value()),
            };
            if stopping {
                tracing::warn!("{name} again: stopping at once");
                std::process::exit(128 + number);
            }
            tracing::info!("{name}: stopping; once more stops at once");
            stopping = true;
            stop.cancel();
        }
    });
    Ok(())
}
