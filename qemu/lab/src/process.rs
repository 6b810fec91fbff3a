// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Child processes that never outlive the lab.

use std::{
    fs::File,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{bail, Context, Result};
use nix::{
    sys::signal::{kill, Signal},
    unistd::Pid,
};

const POLL: Duration = Duration::from_millis(20);

/// A process that is killed when this value, or the lab, goes away.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
}

/// How much of the processor a process may have compared to its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// The device model. A device does not wait for its turn: whatever wakes it preempts guests that spin, and QEMU gives a device up
    /// that answers later than 5 seconds.
    Device,
    /// Guests, which can wait.
    Low,
}

impl Process {
    /// Starts `program` with what it says on standard error, and on standard output unless `stdout` is piped, going to `log`.
    ///
    /// The kernel kills the process when the thread that called this ends, so call it on the main thread.
    pub fn start(
        name: &str,
        priority: Priority,
        program: &Path,
        arguments: &[String],
        log: &Path,
        stdout: Stdout,
    ) -> Result<Self> {
        let log = File::create(log).with_context(|| format!("creating {}", log.display()))?;
        let out = match stdout {
            Stdout::Log => Stdio::from(log.try_clone()?),
            Stdout::Piped => Stdio::piped(),
        };
        let prefix = match priority {
            // A slice of 0.1 ms instead of some: the kernel (6.12 or later) then runs it soon and not for long.
            Priority::Device => ["chrt", "--other", "--sched-runtime", "100000", "0"].as_slice(),
            Priority::Low => &["nice", "-n", "5"],
        };
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .args(prefix)
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        Ok(Self {
            name: name.into(),
            child,
        })
    }

    /// The pipe from its standard output, once, if it was started with one.
    pub fn take_stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// An error if the process has ended.
    pub fn ensure_alive(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended early ({status})", self.name);
        }
        Ok(())
    }

    /// Waits until the process ends by itself; `None` if it does not within `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<ExitStatus>> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if start.elapsed() >= timeout {
                return Ok(None);
            }
            thread::sleep(POLL);
        }
    }

    /// Kills the process, which must be running.
    pub fn kill(&mut self) -> Result<()> {
        self.ensure_alive()?;
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks the process to end (SIGTERM) and waits; an error if it does not, or reports failure.
    pub fn terminate(&mut self, timeout: Duration) -> Result<()> {
        self.ensure_alive()?;
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM)?;
        match self.wait(timeout)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => bail!("{} did not end cleanly ({status})", self.name),
            None => bail!(
                "{} did not end within {} s of SIGTERM",
                self.name,
                timeout.as_secs()
            ),
        }
    }
}

/// Where standard output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdout {
    /// To the log.
    Log,
    /// To [`Process::take_stdout`].
    Piped,
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has ended and was waited for, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
