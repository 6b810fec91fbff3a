// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A consumer in the kernel that tests the verbs, and has the device open when it goes.

use anyhow::{bail, ensure, Context, Result};
use serde_json::json;

use super::{driver, function::Function, Part, Scenario};
use crate::{
    kernel::guest_module_dir,
    report::Report,
    session::{Guest, Session, LONG, SHORT},
    topology::Topology,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "kernel",
    about: "a consumer in the kernel: every operation, every error, and a device that goes while it is open",
    alarm: None,
    parts: &[Part::Driver, Part::Provider, Part::Model, Part::Client],
    topology: || Topology::default().guest("a", &[FIRST, "a1"]).link(FIRST, "a1"),
    run,
};

pub(super) const PAIR: Scenario = Scenario {
    name: "kernel-pair",
    about: "consumers in the kernels of two guests: RC, UC and UD between them, every byte compared on both sides",
    topology: || Topology::default().guest("a", &["a0"]).guest("b", &["b0"]).link("a0", "b0"),
    run: run_pair,
    ..SCENARIO
};

/// The HCA that is lost.
const FIRST: &str = "a0";

/// What the client begins each line with.
const PREFIX: &str = "qiao_kclient: ";

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let guest = &session.guests[0];
    driver::load(guest)?;
    let functions = Function::all(guest, 2)?;
    let [one, other] = functions.as_slice() else {
        unreachable!("all functions are there");
    };
    load_client(guest)?;
    let names = [one.require_rdma_device()?, other.require_rdma_device()?];
    run_tests(report, guest, "two devices", &names[0], &names[1]);
    run_tests(report, guest, "one device", &names[0], &names[0]);

    lose(report, session, one);
    report.test("unbind of a lost device under the client", || {
        let from = log_length(guest)?;
        one.unbind()?;
        one.bind()?;
        removed(guest, from, 1)
    });
    report.test("removal of a pulled device under the client", || {
        let model = session.model()?;
        let gone = |gone| json!({ "op": "gone", "hca": FIRST, "gone": gone });
        let from = log_length(guest)?;
        model.order(&gone(true))?;
        one.remove()?;
        let result = removed(guest, from, 1);
        model.order(&gone(false))?;
        one.rescan()?;
        result
    });
    report.test(
        "unbind of a pulled device, and bind when it is back",
        || {
            let model = session.model()?;
            let gone = |gone| json!({ "op": "gone", "hca": FIRST, "gone": gone });
            let from = log_length(guest)?;
            model.order(&gone(true))?;
            one.unbind()?;
            let result = removed(guest, from, 1);
            model.order(&gone(false))?;
            one.bind()?;
            one.require_rdma_device()?;
            result
        },
    );
    report.test("unbind under the client", || {
        let from = log_length(guest)?;
        one.unbind()?;
        one.bind()?;
        removed(guest, from, 1)
    });
    report.test("rmmod under the client", || {
        let from = log_length(guest)?;
        guest.run("rmmod qiao", SHORT)?;
        driver::devices(guest, 0)?;
        removed(guest, from, 2)
    });
    report.test("rmmod of the client with devices", || {
        driver::load(guest)?;
        driver::devices(guest, 2)?;
        let from = log_length(guest)?;
        guest.run("rmmod qiao_kclient", SHORT)?;
        removed(guest, from, 2)
    });
    report.test("rmmod", || guest.run("rmmod qiao", SHORT).map(|_| ""));
    Ok(())
}

fn run_pair(session: &Session, report: &mut Report) -> Result<()> {
    let mut peers = Vec::new();
    for guest in &session.guests {
        driver::load(guest)?;
        load_client(guest)?;
        let device = driver::devices(guest, 1)?.remove(0);
        peers.push(Peer { guest, device });
    }
    for transport in ["RC", "UC", "UD"] {
        for context in ["direct", "softirq", "workqueue"] {
            let title = format!("{transport} {context}");
            report.doing(&title);
            if let Err(error) = exchange(report, &peers, &title) {
                report.add(title, false, format!("{error:#}"));
            }
        }
    }
    report.test("rmmod under the clients", || {
        for peer in &peers {
            peer.order(&format!("open {} RC softirq", peer.device))?;
            let from = log_length(peer.guest)?;
            peer.guest.run("rmmod qiao", SHORT)?;
            removed(peer.guest, from, 1)?;
        }
        Ok("")
    });
    Ok(())
}

/// A guest whose client has an end of a connection to another guest's.
struct Peer<'a> {
    guest: &'a Guest,
    device: String,
}

impl Peer<'_> {
    /// Has the client obey a command of `kunit/kclient/remote.c`.
    fn order(&self, command: &str) -> Result<()> {
        let line = format!("echo '{command}' >/sys/module/qiao_kclient/parameters/remote");
        self.guest.run(&line, LONG).map(drop)
    }

    /// The address of the client's end, as the other one's command takes it.
    fn address(&self) -> Result<String> {
        let command = "cat /sys/module/qiao_kclient/parameters/remote";
        Ok(self.guest.run(command, SHORT)?.stdout.trim().to_owned())
    }

    /// Has the client run tests: a row for each.
    fn tests(&self, report: &mut Report, command: &str) -> Result<()> {
        let from = log_length(self.guest)?;
        let obeyed = self.order(command);
        let lines = log_from(self.guest, from)?;
        add_results(report, &format!("{}, {command}", self.guest.name), &lines)?;
        obeyed
    }
}

/// Connects two clients, has both send, and has both look at what has come.
fn exchange(report: &mut Report, peers: &[Peer<'_>], title: &str) -> Result<()> {
    let mut addresses = Vec::new();
    for peer in peers {
        peer.order(&format!("open {} {title}", peer.device))?;
        addresses.push(peer.address()?);
    }
    for (peer, address) in peers.iter().zip(addresses.iter().rev()) {
        peer.order(&format!("join {address}"))?;
    }
    for command in ["send", "check"] {
        for peer in peers {
            peer.tests(report, command)?;
        }
    }
    peers.iter().try_for_each(|peer| peer.order("close"))
}

/// Loads the client, whose modules the driver has loaded.
fn load_client(guest: &Guest) -> Result<()> {
    let release = guest.run("uname -r", SHORT)?.stdout;
    let module = guest_module_dir(release.trim()).join("qiao_kclient.ko");
    guest
        .run(&format!("insmod /{}", module.display()), SHORT)
        .map(drop)
}

/// Has the client run its tests between two devices: a row for each, and one more if they did not come to their end.
fn run_tests(report: &mut Report, guest: &Guest, title: &str, one: &str, other: &str) {
    report.doing(&format!("kernel client on {title}"));
    let result = log_length(guest).and_then(|from| {
        let start = format!("echo '{one} {other}' >/sys/module/qiao_kclient/parameters/run");
        let started = guest.run(&start, LONG).map(drop);
        let added = add_results(report, title, &log_from(guest, from)?);
        started.and(added)
    });
    if let Err(error) = result {
        report.add(title, false, format!("{error:#}"));
    }
}

/// Has the client use the first device while it fails: rows as [`run_tests`].
fn lose(report: &mut Report, session: &Session, function: &Function<'_>) {
    report.doing("kernel client on a device that fails");
    let title = "a device that fails";
    let guest = &session.guests[0];
    let result = log_length(guest).and_then(|from| {
        let device = function.require_rdma_device()?;
        let start = format!("echo {device} >/sys/module/qiao_kclient/parameters/lose");
        let client = guest.start(&start, LONG)?;
        let waits = format!(
            "until dmesg | grep -q 'qiao_kclient: waiting for the end of {device}'; do sleep 0.1; done"
        );
        guest.run(&waits, SHORT)?;
        let order = json!({ "op": "fatal", "hca": FIRST });
        session.model()?.order(&order)?;
        let ended = client.wait().map(drop);
        let added = add_results(report, title, &log_from(guest, from)?);
        ended.and(added)
    });
    if let Err(error) = result {
        report.add(title, false, format!("{error:#}"));
    }
}

/// Adds a row for each result in KTAP lines; an error unless there are as many as the plan says.
fn add_results(report: &mut Report, title: &str, lines: &str) -> Result<()> {
    let mut plan = None;
    let mut results = 0;
    for line in lines.lines() {
        if let Some(count) = line.strip_prefix("1..") {
            plan = Some(count.parse::<usize>()?);
            continue;
        }
        let (passed, rest) = match line.strip_prefix("not ok ") {
            Some(rest) => (false, rest),
            None => match line.strip_prefix("ok ") {
                Some(rest) => (true, rest),
                None => continue,
            },
        };
        results += 1;
        let (number, test) = rest.split_once(' ').context("a result without a name")?;
        ensure!(
            number.parse() == Ok(results),
            "result {number} where {results} was expected"
        );
        let (name, why) = test.split_once(" # ").unwrap_or((test, ""));
        report.add(format!("{title}: {name}"), passed, why);
    }
    ensure!(
        plan == Some(results),
        "{results} results where the plan says {plan:?}"
    );
    Ok(())
}

/// The number of lines that the client has written to the kernel log.
fn log_length(guest: &Guest) -> Result<usize> {
    Ok(log_from(guest, 0)?.lines().count())
}

/// What the client has written to the kernel log after its first `skipped` lines.
fn log_from(guest: &Guest, skipped: usize) -> Result<String> {
    let log = guest.run("dmesg --notime", SHORT)?.stdout;
    let lines: Vec<&str> = log
        .lines()
        .filter_map(|line| line.strip_prefix(PREFIX))
        .skip(skipped)
        .collect();
    Ok(lines.join("\n"))
}

/// An error unless the client has lost so many devices since, and got each of its requests back once.
fn removed(guest: &Guest, from: usize, devices: usize) -> Result<String> {
    let log = log_from(guest, from)?;
    let lines: Vec<&str> = log
        .lines()
        .filter(|line| line.starts_with("removed "))
        .collect();
    if lines.len() != devices || lines.iter().any(|line| !line.contains(", 0 of ")) {
        bail!("{devices} devices went:\n{log}");
    }
    Ok(format!("{devices} devices"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_result_is_a_row() {
        let mut report = Report::new();
        let lines =
            "KTAP version 1\n1..2\nok 1 RC direct: send\nnot ok 2 RC direct: read # byte 3\n";
        add_results(&mut report, "x", lines).unwrap();
        assert_eq!(report.summary(), "1 passed, 1 failed");
        assert!(report.failures().contains("x: RC direct: read: byte 3"));
    }

    #[test]
    fn results_that_are_missing_are_noticed() {
        assert!(add_results(&mut Report::new(), "x", "").is_err());
        assert!(add_results(&mut Report::new(), "x", "1..1\n").is_err());
        assert!(add_results(&mut Report::new(), "x", "1..1\nok 2 a\n").is_err());
    }
}
