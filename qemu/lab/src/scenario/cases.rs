// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Programs in a guest that try many cases and print a line for each: `ok NAME: FOUND` or `FAIL NAME: FOUND`, and `done COUNT`
//! when all were tried.

use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};

use crate::{report::Report, session::Guest};

/// The program that calls the kernel with no library between; relative to a guest's root.
pub(super) const PROBE: &str = "usr/local/bin/qiao-probe";

/// Scripts that use libibverbs, by their place relative to a guest's root. They import each other.
pub(super) const SCRIPTS: [(&str, &str); 7] = [
    (EVENTS, include_str!("events.py")),
    (FORKS, include_str!("forks.py")),
    (NOTICES, include_str!("notices.py")),
    (POSTS, include_str!("posts.py")),
    (RESIZES, include_str!("resizes.py")),
    (SUITE, include_str!("suite.py")),
    (UNRELIABLE, include_str!("unreliable.py")),
];
/// Waits for events.
pub(super) const EVENTS: &str = "usr/local/lib/qiao/events.py";
/// Forks while the device works.
pub(super) const FORKS: &str = "usr/local/lib/qiao/forks.py";
/// For which completions a program is woken.
pub(super) const NOTICES: &str = "usr/local/lib/qiao/notices.py";
/// Work requests that fail, over reliable connections.
pub(super) const POSTS: &str = "usr/local/lib/qiao/posts.py";
/// Resizes completion queues under traffic.
pub(super) const RESIZES: &str = "usr/local/lib/qiao/resizes.py";
/// The tests of rdma-core.
pub(super) const SUITE: &str = "usr/local/lib/qiao/suite.py";
/// What unreliable services do.
pub(super) const UNRELIABLE: &str = "usr/local/lib/qiao/unreliable.py";

/// Programs that use the device as others do. They import each other.
pub(super) const PROGRAMS: [(&str, &str); 3] = [
    (ALLREDUCE, include_str!("allreduce.py")),
    (
        "usr/local/lib/qiao/connection.py",
        include_str!("connection.py"),
    ),
    (STREAM, include_str!("stream.py")),
];
/// A rank of an all-reduce.
pub(super) const ALLREDUCE: &str = "usr/local/lib/qiao/allreduce.py";
/// Sender or receiver of checked writes.
pub(super) const STREAM: &str = "usr/local/lib/qiao/stream.py";

/// The script that tells the transport's peer what to do; relative to a guest's root.
pub(super) const PEER: &str = "usr/local/lib/qiao/peer.py";

/// Runs such a program, a row for each case, and one more if it did not come to its end.
pub(super) fn run(report: &mut Report, guest: &Guest, command: &str, timeout: Duration) {
    report.doing(command);
    let result = guest.start(command, timeout).and_then(|running| {
        let (status, output) = running.wait_status()?;
        add(report, &output.stdout)
            .with_context(|| format!("it ended with {status:?} and said:\n{}", output.stderr))
    });
    if let Err(error) = result {
        report.add(command, false, format!("{error:#}"));
    }
}

/// Adds a row for each case in the output of such a program.
pub(super) fn add(report: &mut Report, output: &str) -> Result<()> {
    let mut cases = 0;
    for line in output.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "ok" | "FAIL" => {
                let (name, found) = rest.rsplit_once(": ").unwrap_or((rest, ""));
                report.add(name, word == "ok", found);
                cases += 1;
            }
            "done" => {
                ensure!(
                    rest.parse() == Ok(cases),
                    "{cases} cases were seen of {rest}"
                );
                return Ok(());
            }
            _ => {}
        }
    }
    bail!("the program ended after {cases} cases")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_counts() {
        let mut report = Report::new();
        let output = "open\nok CQ: no entries: Invalid argument\nFAIL CQ: huge: done\ndone 2\n";
        add(&mut report, output).unwrap();
        assert_eq!(report.summary(), "1 passed, 1 failed");
        assert!(report.failures().contains("CQ: huge: done"));
    }

    #[test]
    fn a_program_that_dies_is_noticed() {
        assert!(add(&mut Report::new(), "ok a: b\n").is_err());
        assert!(add(&mut Report::new(), "").is_err());
        assert!(add(&mut Report::new(), "ok a: b\ndone 2\n").is_err());
    }
}
