// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Streams of writes whose data is checked, from some guests to another, as long as a scenario wants.

use anyhow::{ensure, Context, Result};

use super::cases::STREAM;
use crate::{
    agent::Running,
    session::{Guest, LONG, SHORT},
};

/// Where the receiver awaits the senders, as the program has it.
const PORT: u16 = 18600;
/// The file that ends the streams, as the program has it.
const STOP: &str = "/run/qiao-stop";

/// Streams that run.
pub(super) struct Streams<'a> {
    receiver: (&'a Guest, Running<'a>),
    senders: Vec<Running<'a>>,
}

impl<'a> Streams<'a> {
    /// Starts a stream from each of `senders` to `receiver`, guests with the names of their devices. All begin when the last is
    /// ready.
    pub fn start(receiver: (&'a Guest, &str), senders: &[(&'a Guest, &str)]) -> Result<Self> {
        let (guest, device) = receiver;
        let command = format!("python3 /{STREAM} serve {device} {}", senders.len());
        let running = guest.start(&command, LONG)?;
        guest.wait_listen(PORT)?;
        let address = &guest.address;
        let start = |(sender, device): &(&'a Guest, &str)| {
            let name = sender.name;
            sender.start(
                &format!("python3 /{STREAM} send {device} {address} {name}"),
                LONG,
            )
        };
        Ok(Self {
            receiver: (guest, running),
            senders: senders.iter().map(start).collect::<Result<_>>()?,
        })
    }

    /// Ends the streams, and has the receiver compare what has come. How many messages of each sender were acknowledged, in the
    /// order of the guests' names.
    pub fn stop(self) -> Result<Vec<u64>> {
        let (guest, running) = self.receiver;
        guest.run(&format!("touch {STOP}"), SHORT)?;
        let count = self.senders.len();
        let received = running.wait();
        for sender in self.senders {
            sender.wait()?;
        }
        messages(&received?.stdout, count)
    }
}

/// What the receiver prints.
fn messages(output: &str, senders: usize) -> Result<Vec<u64>> {
    let (numbers, end) = output.trim_end().rsplit_once('\n').unwrap_or(("", output));
    let messages = numbers
        .lines()
        .map(|line| line.parse().with_context(|| format!("{line:?}")))
        .collect::<Result<Vec<u64>>>()?;
    ensure!(
        end == format!("done {senders}") && messages.len() == senders,
        "the receiver did not come to its end:\n{output}"
    );
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_that_stops_early_is_an_error() {
        assert_eq!(messages("7\n9\ndone 2\n", 2).unwrap(), [7, 9]);
        for bad in ["", "7\n9\n", "7\ndone 2\n", "7\n9\ndone 1\n", "done 2\n"] {
            assert!(messages(bad, 2).is_err(), "{bad:?}");
        }
    }
}
