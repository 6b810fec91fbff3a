// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device-model process that a session's HCAs attach to.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use anyhow::{bail, ensure, Context, Result};
use serde_json::{json, Value};

use crate::{
    process::{Priority, Process, Stdout},
    topology::ModelConfig,
};

/// What the model prints once every socket listens.
const READY: &str = "ready";
/// It opens sockets and nothing else before that.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// What every line in the log begins with, behind the time, that says of DMA which the client has not allowed.
const BREACH: &str = "DMA breach: ";

/// The log of the model of a run.
pub fn log_file(run: &Path) -> PathBuf {
    run.join("model.log")
}

/// What the model's log says of DMA that was not allowed.
pub fn breaches(log: &str) -> Vec<&str> {
    log.lines()
        .filter_map(|line| line.split_once(BREACH).map(|(_, breach)| breach))
        .collect()
}

/// A running `qiao-model`.
#[derive(Debug)]
pub struct Model {
    process: Process,
    control: PathBuf,
}

impl Model {
    /// Starts `program` and waits until QEMU can connect. Configuration and logs go to `dir`.
    pub fn start(program: &Path, config: &ModelConfig, dir: &Path) -> Result<Self> {
        let config_file = dir.join("model.toml");
        fs::write(&config_file, toml::to_string(config)?)?;
        let arguments = ["--config".to_owned(), config_file.display().to_string()];
        let log = log_file(dir);
        let mut process = Process::start(
            "the device model",
            Priority::Device,
            program,
            &arguments,
            &log,
            Stdout::Piped,
        )?;
        let stdout = process
            .take_stdout()
            .context("standard output was asked for as a pipe")?;
        let mut copy = File::create(dir.join("model.out"))?;
        let (sender, ready) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if line == READY {
                    // Nobody waits for a second one.
                    let _ = sender.send(());
                }
                if let Err(error) = writeln!(copy, "{line}") {
                    eprintln!("lab: writing model.out: {error}");
                }
            }
        });
        match ready.recv_timeout(READY_TIMEOUT) {
            Ok(()) => Ok(Self {
                process,
                control: config.control.clone(),
            }),
            Err(RecvTimeoutError::Timeout) => bail!(
                "the device model is not ready after {} s",
                READY_TIMEOUT.as_secs()
            ),
            Err(RecvTimeoutError::Disconnected) => {
                bail!(
                    "the device model ended before it was ready; it said:\n{}",
                    fs::read_to_string(&log)?
                )
            }
        }
    }

    /// Gives the running model an order, and waits until it is done.
    pub fn order(&self, order: &Value) -> Result<()> {
        let answer = self.ask(order)?;
        ensure!(
            answer == "done",
            "the device model answers {answer} to {order}"
        );
        Ok(())
    }

    /// Its HCAs with all that they have, as the model describes them.
    pub fn dump(&self) -> Result<Value> {
        let answer = self.ask(&json!({ "op": "dump" }))?;
        let dump = answer.get("dump");
        dump.cloned()
            .with_context(|| format!("the device model answers {answer}"))
    }

    /// Gives the running model an order and returns its answer.
    pub fn ask(&self, order: &Value) -> Result<Value> {
        let socket = UnixStream::connect(&self.control)
            .with_context(|| format!("connecting to {}", self.control.display()))?;
        writeln!(&socket, "{order}")?;
        let mut answer = String::new();
        BufReader::new(&socket).read_line(&mut answer)?;
        serde_json::from_str(&answer)
            .with_context(|| format!("the device model answers {answer:?}"))
    }

    /// An error if the model is gone.
    pub fn ensure_alive(&mut self) -> Result<()> {
        self.process.ensure_alive()
    }

    /// Ends the model; an error if it had died or does not end cleanly.
    pub fn stop(&mut self) -> Result<()> {
        self.process.terminate(STOP_TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaches_are_found_in_the_log() {
        let log = "[2026-01-01T00:00:00Z WARN  qiao_model::mem::breach] DMA breach: a0: read at 0x1000: not mapped\n\
                   [2026-01-01T00:00:00Z INFO  qiao_model] something else\n";
        assert_eq!(breaches(log), ["a0: read at 0x1000: not mapped"]);
    }
}
