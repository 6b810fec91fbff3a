// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Qiao beside soft-RoCE over virtio-net: the same programs in the same two guests, by turns, so that whatever else the machine
//! does hits both. Only the ratios mean anything.

use anyhow::{Context, Result};

use super::{
    clients::{End, Pair},
    demo, driver, softroce, Part, Scenario,
};
use crate::{
    figures,
    report::{Comparison, Report, Series},
    session::{Guest, Session, SHORT},
    topology::Topology,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "bench",
    about: "bandwidth, message rate, latency and processor time of Qiao beside soft-RoCE in the same guests",
    alarm: None,
    parts: &[Part::Driver, Part::Provider, Part::Model],
    topology: || Topology::default().guest("a", &["a0"]).guest("b", &["b0"]).link("a0", "b0").measured(),
    run,
};

/// Each test is run so often with each device, by turns; the median counts.
const ROUNDS: usize = 3;
/// How many times more a run with Qiao moves than one with soft-RoCE, so that both take seconds.
const FASTER: u32 = 15;
/// Ticks of `/proc/stat` in a second (USER_HZ, the same on every kernel for x86).
const TICKS: f64 = 100.0;
const GIB: f64 = (1_u64 << 30) as f64;

#[derive(Clone, Copy)]
enum Unit {
    MibPerSecond,
    MessagesPerSecond,
    Microseconds,
    /// Microseconds of a way there and back.
    RoundTrip,
    /// Processor seconds of both guests for a GiB that moved.
    CpuPerGib,
}

/// One row of the table.
#[derive(Clone, Copy)]
struct Test {
    what: &'static str,
    program: &'static str,
    bytes: u32,
    /// Messages of a run with soft-RoCE.
    count: u32,
    unit: Unit,
    must: Option<f64>,
    goal: Option<f64>,
}

const BANDWIDTH: (Option<f64>, Option<f64>) = (Some(10.0), Some(40.0));
const RATE: (Option<f64>, Option<f64>) = (Some(5.0), Some(15.0));
const LATENCY: (Option<f64>, Option<f64>) = (Some(2.0), Some(5.0));
const NONE: (Option<f64>, Option<f64>) = (None, None);

const fn test(
    what: &'static str,
    program: &'static str,
    bytes: u32,
    count: u32,
    unit: Unit,
    (must, goal): (Option<f64>, Option<f64>),
) -> Test {
    Test {
        what,
        program,
        bytes,
        count,
        unit,
        must,
        goal,
    }
}

const KIB_64: u32 = 64 << 10;
const MIB: u32 = 1 << 20;

const TESTS: [Test; 12] = {
    use Unit::*;
    [
        test(
            "write, 64 KiB",
            "ib_write_bw",
            KIB_64,
            400,
            MibPerSecond,
            BANDWIDTH,
        ),
        test(
            "write, 1 MiB",
            "ib_write_bw",
            MIB,
            30,
            MibPerSecond,
            BANDWIDTH,
        ),
        test(
            "read, 64 KiB",
            "ib_read_bw",
            KIB_64,
            400,
            MibPerSecond,
            BANDWIDTH,
        ),
        test(
            "read, 1 MiB",
            "ib_read_bw",
            MIB,
            30,
            MibPerSecond,
            BANDWIDTH,
        ),
        test(
            "send, 64 KiB",
            "ib_send_bw",
            KIB_64,
            400,
            MibPerSecond,
            BANDWIDTH,
        ),
        test(
            "send, 1 MiB",
            "ib_send_bw",
            MIB,
            30,
            MibPerSecond,
            BANDWIDTH,
        ),
        test(
            "sends of 8 bytes",
            "ib_send_bw",
            8,
            5000,
            MessagesPerSecond,
            RATE,
        ),
        test(
            "latency of 8-byte writes, polled",
            "ib_write_lat",
            8,
            600,
            Microseconds,
            LATENCY,
        ),
        test(
            "latency of 8-byte sends, polled",
            "ib_send_lat",
            8,
            600,
            Microseconds,
            LATENCY,
        ),
        test(
            "round trip of 8-byte sends, by events",
            "ibv_rc_pingpong -e",
            8,
            600,
            RoundTrip,
            LATENCY,
        ),
        test(
            "guests' processor time, 1 MiB writes, polled",
            "ib_write_bw",
            MIB,
            30,
            CpuPerGib,
            NONE,
        ),
        test(
            "guests' processor time, 1 MiB sends, by events",
            "ib_send_bw -e",
            MIB,
            30,
            CpuPerGib,
            NONE,
        ),
    ]
};

/// A device that is measured.
struct Contestant<'a> {
    pair: Pair<'a>,
    faster: u32,
}

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let guests = [&session.guests[0], &session.guests[1]];
    let devices = driver::load_all(session)?;
    for guest in guests {
        softroce::start(guest)?;
    }
    let qiao = Contestant {
        pair: pair(guests, [&devices[0], &devices[1]], None),
        faster: FASTER,
    };
    let rxe = Contestant {
        pair: pair(guests, [softroce::DEVICE; 2], Some(softroce::IPV4_GID)),
        faster: 1,
    };
    for test in &TESTS {
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        for round in 1..=ROUNDS {
            report.doing(&format!("{} ({round} of {ROUNDS})", test.what));
            ours.push(measure(test, &qiao, &guests)?);
            theirs.push(measure(test, &rxe, &guests)?);
        }
        report.compare(comparison(test, median(ours), median(theirs)));
    }
    sizes(&qiao, report)?;
    demo::unload(&guests, report);
    Ok(())
}

/// Bandwidth of Qiao alone by message size.
fn sizes(qiao: &Contestant, report: &mut Report) -> Result<()> {
    let mut points = Vec::new();
    for log_size in (10..=20).step_by(2) {
        let size = 1_u32 << log_size;
        report.doing(&format!("writes of {size} bytes"));
        // The same number of bytes each, but not too many messages.
        let count = ((64 * MIB) / size).min(10_000);
        let output = qiao
            .pair
            .perftest(&format!("ib_write_bw -s {size} -n {count}"))?;
        points.push((f64::from(size), figures::bandwidth(&output)?));
    }
    report.series(Series {
        title: "write bandwidth by message size".into(),
        x: "bytes",
        y: "MiB/s",
        points,
    });
    Ok(())
}

fn pair<'a>(guests: [&'a Guest; 2], devices: [&'a str; 2], gid_index: Option<u8>) -> Pair<'a> {
    let end = |n: usize| End {
        guest: guests[n],
        device: devices[n],
    };
    Pair {
        server: end(0),
        client: end(1),
        gid_index,
    }
}

fn measure(test: &Test, contestant: &Contestant, guests: &[&Guest]) -> Result<f64> {
    let Test { program, bytes, .. } = *test;
    // A latency is that of one message, however many there are.
    let times = match test.unit {
        Unit::Microseconds | Unit::RoundTrip => 1,
        _ => contestant.faster,
    };
    let count = test.count * times;
    let command = format!("{program} -s {bytes} -n {count}");
    let pair = contestant.pair;
    if let Unit::RoundTrip = test.unit {
        return Ok(pair.round_trips(&command).context(test.what)?.0);
    }
    let before = busy(guests)?;
    let output = pair.perftest(&command).context(test.what)?;
    let seconds = (busy(guests)? - before) / TICKS;
    match test.unit {
        Unit::MibPerSecond => figures::bandwidth(&output),
        Unit::MessagesPerSecond => figures::message_rate(&output),
        Unit::Microseconds | Unit::RoundTrip => figures::latency(&output),
        Unit::CpuPerGib => {
            // An error unless it is the usual output.
            figures::bandwidth(&output)?;
            Ok(seconds / (f64::from(bytes) * f64::from(count) / GIB))
        }
    }
}

/// Ticks that all processors of the guests have worked.
fn busy(guests: &[&Guest]) -> Result<f64> {
    guests.iter().try_fold(0.0, |sum, guest| {
        let stat = guest.run("head -n 1 /proc/stat", SHORT)?.stdout;
        Ok(sum + figures::busy_ticks(&stat)?)
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn comparison(test: &Test, ours: f64, theirs: f64) -> Comparison {
    let (unit, ratio) = match test.unit {
        Unit::MibPerSecond => ("MiB/s", ours / theirs),
        Unit::MessagesPerSecond => ("/s", ours / theirs),
        Unit::Microseconds | Unit::RoundTrip => ("us", theirs / ours),
        Unit::CpuPerGib => ("s/GiB", theirs / ours),
    };
    Comparison {
        what: test.what.into(),
        unit,
        ours,
        theirs,
        other: "soft-RoCE",
        ratio,
        must: test.must,
        goal: test.goal,
    }
}
