// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Hostile devices: the driver leaves them alone, or gives them up, and everybody else goes on.

use std::mem::offset_of;

use anyhow::{ensure, Context, Result};
use qiao_hw::{
    bar,
    caps::{feature, Caps},
};
use serde_json::json;

use super::{cases, driver, function::Function, Part, Scenario};
use crate::{
    report::Report,
    session::{Guest, Session, LONG, SHORT},
    topology::Topology,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "device",
    about:
        "devices that are something else, make no sense, never answer, answer wrongly, or vanish",
    alarm: None,
    parts: &[Part::Driver, Part::Model, Part::Probe],
    topology,
    run,
};

/// Time in which such a device must answer.
const TIMEOUT: &str = "cmd_timeout_ms = 200";
/// A major version that will never be.
const OTHER_MAJOR: u16 = 0xfffe;

/// A device that the driver does not take.
struct Refused {
    hca: &'static str,
    settings: fn() -> String,
    /// What the one line about it has; none if it is left alone silently.
    line: Option<&'static str>,
}

/// `overrides` that replace the byte at `offset` of the capability block, and those after it.
fn patch(offset: usize, bytes: &[u8]) -> String {
    format!("overrides = {{ caps = [{{ offset = {offset}, bytes = {bytes:?} }}] }}")
}

/// Of each kind of nonsense one; the ranges of all fields are the matter of unit tests.
const REFUSED: &[Refused] = &[
    Refused {
        hca: "magic",
        settings: || "overrides = { magic = 0x12345678 }".into(),
        line: None,
    },
    Refused {
        hca: "version",
        settings: || {
            let version = (u32::from(OTHER_MAJOR) << 16) | 7;
            format!("overrides = {{ version = {version} }}")
        },
        line: Some("interface version 65534.7 is not supported"),
    },
    Refused {
        hca: "control",
        settings: || {
            format!(
                "overrides = {{ bar_control = {} }}",
                bar::size::BAR_CONTROL_MIN / 2
            )
        },
        line: Some("BAR 0 has 0x1000 bytes"),
    },
    Refused {
        hca: "doorbell",
        settings: || {
            format!(
                "overrides = {{ bar_doorbell = {} }}",
                bar::size::BAR_DOORBELL_MIN / 2
            )
        },
        line: Some("BAR 2 has 0x10000 bytes"),
    },
    Refused {
        hca: "offset",
        settings: || {
            format!(
                "overrides = {{ caps_offset = {} }}",
                bar::size::BAR_CONTROL_MIN - 4
            )
        },
        line: Some("capability block is not where it can be"),
    },
    Refused {
        hca: "short",
        settings: || "overrides = { caps_length = 64 }".into(),
        line: Some("capability block is not where it can be"),
    },
    Refused {
        hca: "features",
        settings: || patch(offset_of!(Caps, features), &(!feature::RC).to_le_bytes()),
        line: Some("capability block makes no sense: features (RC)"),
    },
    Refused {
        hca: "ports",
        settings: || patch(offset_of!(Caps, num_ports), &[0]),
        line: Some("capability block makes no sense: num_ports is 0x0"),
    },
    Refused {
        hca: "objects",
        settings: || patch(offset_of!(Caps, log_max_qp), &[0xff]),
        line: Some("capability block makes no sense: log_max_qp is 0xff"),
    },
    Refused {
        hca: "timeout",
        settings: || patch(offset_of!(Caps, cmd_timeout_ms), &[0xff; 4]),
        line: Some("capability block makes no sense: cmd_timeout_ms is 0xffffffff"),
    },
    Refused {
        hca: "ones",
        settings: || patch(0, &[0xff; size_of::<Caps>()]),
        line: Some("capability block makes no sense"),
    },
];

/// Devices after the refused ones, in this order.
const MUTE: &str = "mute";
const TWICE: &str = "twice";
const STRAY: &str = "stray";
const HANG: &str = "hang";
const FATAL: &str = "fatal";
const PULLED: &str = "pulled";
const MASKED: &str = "masked";
const GOOD: &str = "good";
const TAKEN: [&str; 8] = [MUTE, TWICE, STRAY, HANG, FATAL, PULLED, MASKED, GOOD];

/// More events than the driver takes in a row, so that it gives up a device that raises them by itself.
const EVENTS: u32 = 70_000;

fn topology() -> Topology {
    let hcas: Vec<&'static str> = REFUSED
        .iter()
        .map(|refused| refused.hca)
        .chain(TAKEN)
        .collect();
    let mut topology = Topology::default().guest("a", &hcas);
    for refused in REFUSED {
        topology = topology.hca_settings(refused.hca, &(refused.settings)());
    }
    let impatient = format!("overrides = {{ {TIMEOUT} }}");
    for hca in [STRAY, HANG, PULLED, MASKED] {
        topology = topology.hca_settings(hca, &impatient);
    }
    topology
        .hca_settings(
            MUTE,
            &format!("{impatient}\ncommand_faults = [{{ kind = \"hang\" }}]"),
        )
        .hca_settings(
            TWICE,
            "command_faults = [{ kind = \"duplicate\", count = 8 }]",
        )
}

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let guest = &session.guests[0];
    driver::load(guest)?;
    let functions = Function::all(guest, REFUSED.len() + TAKEN.len())?;
    let (refused, taken) = functions.split_at(REFUSED.len());
    for (function, expected) in refused.iter().zip(REFUSED) {
        report.test(format!("refused: {}", expected.hca), || {
            is_refused(function, expected)
        });
    }
    let [mute, twice, stray, hang, fatal, pulled, masked, good] = taken else {
        unreachable!("all functions are there");
    };
    report.test("never answers", || {
        ensure!(mute.rdma_device()?.is_none(), "it has an RDMA device");
        says(mute, "a command was not answered in time")
    });
    report.test("answers twice", || {
        calls(guest, &twice.require_rdma_device()?)?;
        says(twice, "completes a command that is not outstanding")
    });
    let lost = Lost { session, guest };
    let no_answer = "device is lost: a command was not answered in time";
    let wrong_id = json!({ "kind": "wrong-id" });
    lost.try_it(
        report,
        "answers an unknown id",
        stray,
        &|| lost.order(fault(STRAY, &wrong_id)),
        no_answer,
    );
    lost.try_it(
        report,
        "stops to answer",
        hang,
        &|| lost.order(fault(HANG, &json!({ "kind": "hang" }))),
        no_answer,
    );
    lost.try_it(
        report,
        "fails",
        fatal,
        &|| lost.order(json!({ "op": "fatal", "hca": FATAL })),
        "device is lost: it reports a failure",
    );
    lost.try_it(
        report,
        "vanishes",
        pulled,
        &|| lost.order(pull(true)),
        "device is lost: it is gone",
    );
    lost.try_it(
        report,
        "raises no interrupts",
        masked,
        &|| {
            // Masks all vectors behind the driver's back.
            let command = format!("setpci -s {} CAP_MSIX+2.w=4000:4000", masked.address);
            guest.run(&command, SHORT).map(drop)
        },
        "device is lost: its interrupts do not arrive",
    );

    for (name, function) in [
        ("after a failure", fatal),
        ("after silence", hang),
        ("after it vanished", pulled),
    ] {
        report.test(format!("unbind {name}"), || function.unbind().map(|()| ""));
    }
    report.test("bind after a failure", || {
        fatal.bind()?;
        calls(guest, &fatal.require_rdma_device()?)
    });
    report.test("bind what was pulled and put back", || {
        lost.order(pull(false))?;
        pulled.bind()?;
        calls(guest, &pulled.require_rdma_device()?)
    });
    report.test("all the while, the good one", || {
        calls(guest, &good.require_rdma_device()?)
    });
    report.test("a user who causes more events than are credible", || {
        let device = good.require_rdma_device()?;
        guest.run(&format!("qiao-probe {device} flood {EVENTS}"), LONG)?;
        calls(guest, &device)
    });
    report.test("rmmod", || guest.run("rmmod qiao", SHORT).map(|_| ""));
    Ok(())
}

/// The driver does not take the function, and says so in one line, or in none.
fn is_refused(function: &Function<'_>, expected: &Refused) -> Result<String> {
    ensure!(function.rdma_device()?.is_none(), "it has an RDMA device");
    let lines = function.kernel_lines()?;
    match (lines.as_slice(), expected.line) {
        ([], None) => Ok(String::new()),
        ([line], Some(text)) if line.contains(text) => Ok(line.clone()),
        _ => anyhow::bail!(
            "{:?} was expected, the kernel says:\n{}",
            expected.line,
            lines.join("\n")
        ),
    }
}

/// A line about the function has `text`.
fn says(function: &Function<'_>, text: &str) -> Result<String> {
    let lines = function.kernel_lines()?;
    let line = lines.iter().find(|line| line.contains(text));
    line.cloned()
        .with_context(|| format!("no line says \"{text}\":\n{}", lines.join("\n")))
}

/// The device makes objects of every kind.
fn calls(guest: &Guest, device: &str) -> Result<&'static str> {
    guest
        .run(&format!("qiao-probe {device} abandon"), SHORT)
        .map(|_| "")
}

fn pull(gone: bool) -> serde_json::Value {
    json!({ "op": "gone", "hca": PULLED, "gone": gone })
}

fn fault(hca: &str, fault: &serde_json::Value) -> serde_json::Value {
    json!({ "op": "command-fault", "hca": hca, "fault": fault })
}

/// Devices that are lost while a program has objects of every kind.
struct Lost<'a> {
    session: &'a Session,
    guest: &'a Guest,
}

impl Lost<'_> {
    fn order(&self, order: serde_json::Value) -> Result<()> {
        self.session.model()?.order(&order)
    }

    /// `ruin` does to a device what the driver says in `line`.
    fn try_it(
        &self,
        report: &mut Report,
        name: &str,
        function: &Function<'_>,
        ruin: &dyn Fn() -> Result<()>,
        line: &str,
    ) {
        let mut rows = Report::new();
        rows.test("one line", || {
            let device = function.require_rdma_device()?;
            let log = format!("/run/{device}.log");
            let command = format!("qiao-probe {device} outlive >{log}");
            let program = self.guest.start(&command, SHORT)?;
            self.guest.run(
                &format!("until grep -q open {log}; do sleep 0.1; done"),
                SHORT,
            )?;
            ruin()?;
            // Somebody must use the device to find out; whether that fails is the matter of the program.
            self.guest
                .run(&format!("qiao-probe {device} abandon || true"), SHORT)?;
            program.wait()?;
            says(function, line)
        });
        report.absorb(&format!("{name}: "), rows);
        let mut rows = Report::new();
        let result = function.rdma_device().and_then(|device| {
            let log = format!("/run/{}.log", device.context("it has no RDMA device")?);
            let output = self.guest.run(&format!("cat {log}"), SHORT)?.stdout;
            cases::add(&mut rows, &output)
        });
        if let Err(error) = result {
            rows.add("program", false, format!("{error:#}"));
        }
        report.absorb(&format!("{name}: "), rows);
    }
}
