// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A model in the process of the test.

use super::{Guest, POLLED};
use qiao_fabric::link::Faults;
use qiao_model::config::Config;
use qiao_model::model::Model;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

/// Name of the thread that runs the engine.
pub const ENGINE: &str = "engine";

/// A model in this process.
pub struct World {
    pub dir: tempfile::TempDir,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl World {
    /// Two HCAs `a` and `b` on a link with faults; `extra` is appended to the configuration of `a`.
    pub fn new(faults: Faults, extra: &str) -> Self {
        Self::with_topology("[[link]]\nends = [\"a:1\", \"b:1\"]\n", faults, extra)
    }

    /// As [`World::new`] with switches and links of their own, and captures in the folder `pcap`.
    pub fn with_topology(topology: &str, faults: Faults, extra: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("q").tempdir().unwrap();
        let mut text = format!("seed = 7\ncontrol = {:?}\n", dir.path().join("control"));
        if topology.contains("switch") {
            text += &format!("capture.dir = {:?}\n", dir.path().join("pcap"));
        }
        for name in ["a", "b"] {
            let socket = dir.path().join(name);
            text += &format!("[[hca]]\nname = \"{name}\"\nsocket = {socket:?}\n");
            if POLLED {
                text += "doorbells = \"polled\"\n";
            }
            if name == "a" {
                text += extra;
            }
        }
        text += topology;
        let mut config: Config = toml::from_str(&text).unwrap();
        config.faults = faults;
        let model = Model::new(&config).unwrap();
        let (reader, writer) = UnixStream::pair().unwrap();
        let thread = std::thread::Builder::new()
            .name(ENGINE.into())
            .spawn(move || model.run(reader.as_fd()).unwrap())
            .unwrap();
        let stop = Some(writer);
        Self {
            dir,
            stop,
            thread: Some(thread),
        }
    }

    /// Sends a line to the control socket and returns the answer.
    pub fn control(&self, line: &str) -> serde_json::Value {
        let mut stream = UnixStream::connect(self.dir.path().join("control")).unwrap();
        writeln!(stream, "{line}").unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    pub fn guest(&self, name: &str) -> Guest {
        Guest::new(&self.dir.path().join(name))
    }

    /// Ends the model, which completes the captures.
    pub fn stop(&mut self) {
        // The other end of a closed pair is readable.
        self.stop = None;
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))), "the model ends cleanly");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop();
        }
    }
}
