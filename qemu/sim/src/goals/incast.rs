// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rows 1 to 4: incasts.

use super::{Lines, Options};
use crate::micro::{Case, Outcome};
use crate::scheme::Scheme;
use crate::topo::Topology;
use crate::workload::Message;
use crate::world::Config;

/// Rows 1 to 3. Queues are bound in time: at 400 Gb/s by four times the bytes.
pub fn small(lines: &mut Lines, options: &Options) {
    for gbps in [100, 400] {
        let scale = f64::from(gbps) / 100.0;
        let run = |n, scheme: Scheme| Case::Incast(n).run_at(gbps, options.config(scheme), 1);
        let o = run(2, Scheme::Auto);
        let name = format!("{gbps}G 2:1");
        lines.at_least(1, &format!("{name} E goodput %"), o.goodput, 94.0);
        lines.at_most(1, &format!("{name} E queue p99 KB"), o.q_p99, 60.0 * scale);
        lines.at_least(1, &format!("{name} E Jain"), o.jain, 0.99);
        let o = run(2, Scheme::AutoInt);
        lines.at_least(1, &format!("{name} I goodput %"), o.goodput, 90.0);
        lines.at_most(1, &format!("{name} I queue p99 KB"), o.q_p99, 20.0 * scale);
        let o = run(8, Scheme::Auto);
        let name = format!("{gbps}G 8:1");
        lines.at_least(2, &format!("{name} E goodput %"), o.goodput, 94.0);
        lines.at_most(2, &format!("{name} E queue p99 KB"), o.q_p99, 200.0 * scale);
        lines.at_most(2, &format!("{name} E pauses"), o.pauses as f64, 0.0);
        let o = run(8, Scheme::AutoInt);
        lines.at_least(2, &format!("{name} I goodput %"), o.goodput, 90.0);
        lines.at_most(2, &format!("{name} I queue p99 KB"), o.q_p99, 83.0 * scale);
        let o = run(64, Scheme::Auto);
        let name = format!("{gbps}G 64:1 E");
        lines.at_least(3, &format!("{name} goodput %"), o.goodput, 94.0);
        lines.at_most(3, &format!("{name} queue p95 KB"), o.q_p95, 400.0 * scale);
        lines.at_most(3, &format!("{name} queue max KB"), o.q_max, 3500.0 * scale);
        let spread = o.fct_max / o.fct_min;
        lines.at_most(3, &format!("{name} slowest over fastest"), spread, 1.15);
        lines.at_least(3, &format!("{name} Jain"), o.jain, 0.995);
        let held = (o.pauses + o.drops) as f64;
        lines.at_most(3, &format!("{name} pauses and drops"), held, 0.0);
    }
}

/// Row 4: from 64 to 1024 senders, spread over a fat-tree so that no switch has 1025 ports.
pub fn graceful(lines: &mut Lines, options: &Options) {
    let mut last = f64::NAN;
    for fan_in in [64u32, 128, 256, 512, 1024] {
        let o = wide_incast(fan_in, options.config(Scheme::Auto));
        lines.at_least(4, &format!("{fan_in}:1 E goodput %"), o.goodput, 90.0);
        lines.at_most(4, &format!("{fan_in}:1 E pauses"), o.pauses as f64, 0.0);
        lines.at_most(4, &format!("{fan_in}:1 E sent again %"), o.resent, 0.1);
        if !last.is_nan() {
            let what = format!("{fan_in}:1 E points lost by doubling");
            lines.at_most(4, &what, last - o.goodput, 2.0);
        }
        last = o.goodput;
    }
    let lossy = Config {
        loss: 1e-4,
        selective: true,
        ..options.config(Scheme::Auto)
    };
    let o = wide_incast(256, lossy);
    lines.at_least(
        4,
        "256:1 E goodput %, 0.01 % of packets lost",
        o.goodput,
        90.0,
    );
    lines.at_most(
        4,
        "256:1 E sent again %, 0.01 % of packets lost",
        o.resent,
        1.0,
    );
}

/// `fan_in` hosts of a fat-tree with 1,280 hosts send 1 MB each to its last host.
fn wide_incast(fan_in: u32, config: Config) -> Outcome {
    let topology = Topology::fat_tree(10, 8, 16, 100, 400);
    let dst = topology.hosts - 1;
    let message = |i| Message {
        start: 0,
        src: i * (dst / fan_in),
        dst,
        bytes: 1_000_000,
        tag: 0,
    };
    let messages: Vec<_> = (0..fan_in).map(message).collect();
    Case::Incast(fan_in).run_on(&topology, messages, dst, config, 1)
}
