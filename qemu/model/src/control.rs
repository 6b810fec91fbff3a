// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The control socket: one JSON object per line, one answer per line.
//!
//! ```json
//! {"op": "dump"}
//! {"op": "topology"}
//! {"op": "link", "link": 0, "up": false}
//! {"op": "flap", "link": 0}
//! {"op": "switch", "switch": "s", "alive": false}
//! {"op": "faults", "link": 0, "faults": {"drop": 0.01}}
//! {"op": "gone", "hca": "a", "gone": true}
//! {"op": "command-fault", "hca": "a", "fault": {"opcode": "CreateCq", "kind": "drop"}}
//! {"op": "fatal", "hca": "a"}
//! {"op": "event", "hca": "a", "event": "GidChange", "port": 1}
//! ```

use crate::fabric::Topology;
use crate::hca::dump::HcaDump;
use crate::hca::CommandFault;
use crate::shared::Mailbox;
use qiao_fabric::link::Faults;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Sender};
use std::sync::Arc;

/// What a client asks for.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Describe all HCAs.
    Dump,
    /// Describe switches, links and subnet managers.
    Topology,
    /// Take a link up or down.
    Link {
        /// Index in the configuration.
        link: usize,
        /// Up or down.
        up: bool,
    },
    /// Take a link down and up again at once.
    Flap {
        /// Index in the configuration.
        link: usize,
    },
    /// Switch a switch off or on.
    Switch {
        /// Its name.
        switch: String,
        /// On.
        alive: bool,
    },
    /// Replace the faults of a link.
    Faults {
        /// Index in the configuration.
        link: usize,
        /// The faults.
        faults: Faults,
    },
    /// Pull a function, or put it back.
    Gone {
        /// Name of the HCA.
        hca: String,
        /// Whether it is gone.
        gone: bool,
    },
    /// Answer commands wrongly.
    CommandFault {
        /// Name of the HCA.
        hca: String,
        /// How.
        fault: CommandFault,
    },
    /// Raise an asynchronous event without a cause.
    Event {
        /// Name of the HCA.
        hca: String,
        /// Name of the type.
        event: String,
        /// Port, from 1, of a port event.
        #[serde(default)]
        port: u8,
        /// Number of the object.
        #[serde(default)]
        id: u32,
    },
    /// Fail a device.
    Fatal {
        /// Name of the HCA.
        hca: String,
    },
}

/// What a client gets.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Done.
    Done,
    /// The HCAs.
    Dump(Vec<HcaDump>),
    /// The fabric.
    Topology(Topology),
    /// What was wrong.
    Error(String),
}

/// A command and where its answer goes.
#[derive(Debug)]
pub struct Order {
    /// The command.
    pub command: Command,
    /// Where the answer goes.
    pub answer: Sender<Answer>,
}

/// The socket. Its file is removed when this is dropped; clients that are connected are served until
/// the process ends.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
}

impl Control {
    /// Listens at `path`, which must not exist, and passes commands on to `orders`.
    ///
    /// # Errors
    ///
    /// If the socket cannot be made.
    pub fn start(path: &Path, orders: Sender<Order>, mailbox: Arc<Mailbox>) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (orders, mailbox) = (orders.clone(), Arc::clone(&mailbox));
                match client {
                    Ok(client) => {
                        std::thread::spawn(move || {
                            if let Err(error) = serve(&client, &orders, &mailbox) {
                                log::warn!("control client: {error}");
                            }
                        });
                    }
                    Err(error) => log::warn!("control socket: {error}"),
                }
            }
        });
        Ok(Self {
            path: path.to_owned(),
        })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            log::warn!("{}: {error}", self.path.display());
        }
    }
}

fn serve(client: &UnixStream, orders: &Sender<Order>, mailbox: &Mailbox) -> io::Result<()> {
    let mut out = client;
    for line in BufReader::new(client).lines() {
        let answer = match serde_json::from_str(&line?) {
            Err(error) => Answer::Error(error.to_string()),
            Ok(command) => {
                let (answer, answers) = channel();
                let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
                orders
                    .send(Order { command, answer })
                    .map_err(|_| io::ErrorKind::BrokenPipe)?;
                mailbox.wake();
                answers.recv().map_err(gone)?
            }
        };
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        out.write_all(&text)?;
    }
    Ok(())
}
