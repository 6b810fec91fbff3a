// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The protocol between the lab and the agent in a guest: JSON values, one per line, over a virtio-serial port.
//!
//! The lab sends [`Request`]s, the agent sends [`Event`]s. Commands run side by side; the lab chooses their ids.

use serde::{Deserialize, Serialize};

/// Name of the virtio-serial port of the agent, as given to QEMU and seen in the guest's sysfs.
pub const PORT_NAME: &str = "qiao.agent";

/// The terminal of the interactive shell: the guest's first virtio console.
pub const SHELL_TTY: &str = "/dev/hvc0";

/// Folder of the initramfs whose contents the agent copies over the guest's root before anything runs.
pub const PAYLOAD_DIR: &str = "payload";

/// Folder of the initramfs with the modules that mounting the root needs, loaded in the order of their names.
pub const MODULES_DIR: &str = "modules";

/// Word of the kernel command line that makes the agent print [`PROBE_OK`] on the console and power off.
pub const PROBE_ARGUMENT: &str = "qiao.probe";

/// What a probed guest prints once user space runs.
pub const PROBE_OK: &str = "qiao-agent: user space runs";

/// What the lab asks of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Run a command in its own process group. Answered by any number of [`Event::Output`] and one [`Event::Exit`].
    Run {
        /// Chosen by the lab; unique among the commands that run.
        id: u64,
        /// Program and arguments; looked up in `PATH`.
        argv: Vec<String>,
        /// After this many milliseconds the group is killed.
        timeout_ms: u64,
    },
    /// Kill the process group of a running command, which then exits as usual.
    Kill {
        /// The id given to [`Request::Run`].
        id: u64,
    },
    /// Answer with one [`Event::Exit`] (status 0) as soon as a TCP socket listens on a port.
    WaitListen {
        /// As for [`Request::Run`].
        id: u64,
        /// The TCP port, of any address and family.
        port: u16,
        /// After this many milliseconds the answer says that the time is over.
        timeout_ms: u64,
    },
    /// Keep a login shell on [`SHELL_TTY`].
    Shell,
    /// Power the guest off.
    PowerOff,
}

/// Which of the two output streams of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It exited with this code.
    Code(i32),
    /// A signal with this number ended it.
    Signal(i32),
    /// Its time was over and the agent killed it.
    TimedOut,
    /// It could not be started; the text says why.
    NotStarted(String),
}

/// What the agent tells the lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The agent is ready; sent once.
    Ready {
        /// Release of the running kernel.
        kernel: String,
    },
    /// A piece of a command's output; bytes that are not UTF-8 are replaced.
    Output {
        /// The command.
        id: u64,
        /// Where it was written to.
        stream: Stream,
        /// At least one character; lines may be split.
        text: String,
    },
    /// A command ended; nothing more comes for its id.
    Exit {
        /// The command.
        id: u64,
        /// How it ended.
        status: Status,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line() {
        let event = Event::Output {
            id: 7,
            stream: Stream::Stderr,
            text: "two\nlines \u{fffd}".into(),
        };
        let line = serde_json::to_string(&event).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
    }
}
