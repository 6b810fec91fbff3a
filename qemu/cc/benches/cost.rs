// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Time per event: one event of a random flow, with tables that fit a cache and tables that do not.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion};
use qiao_cc::{
    on_event, DcqcnTuning, DctcpTuning, Event, FlowState, HpccTuning, IbCcaTuning, Params, Port,
    SwiftTuning, Telemetry, Tuning,
};

const PORT: Port = Port {
    link_mbps: 100_000,
    base_rtt_ns: 12_000,
    mtu: 1000,
};

/// Numbers of flows of the reference's table.
const FLOWS: [u32; 4] = [1, 1 << 10, 1 << 14, 1 << 18];

fn algorithms() -> [(&'static str, Tuning); 6] {
    [
        ("auto", Tuning::Auto),
        ("dcqcn", Tuning::Dcqcn(DcqcnTuning::vendor(100_000, true))),
        ("dctcp", Tuning::Dctcp(DctcpTuning::new(&PORT, 13_000))),
        ("hpcc", Tuning::Hpcc(HpccTuning::new(100_000, 95))),
        ("swift", Tuning::Swift(SwiftTuning::new(&PORT))),
        ("ibcca", Tuning::IbCca(IbCcaTuning::SHIPPED)),
    ]
}

/// The `step`-th event: a round trip in which some was marked.
fn event(step: u32, telemetry: bool) -> Event {
    let to = step.wrapping_mul(20_000);
    Event {
        now_ns: u64::from(step) * 20_000,
        acked: 20_000,
        marked: (step & 3) * 1000,
        notifications: u32::from(step & 3 == 0),
        acked_to: to,
        sent_to: to.wrapping_add(100_000),
        rtt_min_ns: 12_000 + (step & 0xfff),
        rtt_last_ns: 13_000 + (step & 0xfff),
        telemetry: telemetry.then_some(Telemetry {
            utilisation: 60_000 + (step & 0x1fff),
            span_ns: 12_000,
            queue_ns: step & 0xfff,
        }),
        ..Event::default()
    }
}

fn cost(c: &mut Criterion) {
    for (name, tuning) in algorithms() {
        let params = Params { port: PORT, tuning };
        let mut group = c.benchmark_group(name);
        for flows in FLOWS {
            let mut table = vec![FlowState::start(&params, 0); flows as usize];
            let (mut step, mut random) = (0u32, 1u32);
            group.bench_function(BenchmarkId::from_parameter(flows), |b| {
                b.iter(|| {
                    step = step.wrapping_add(1);
                    random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    // High bits: the low ones of such a generator have short periods.
                    let flow = ((u64::from(random) * u64::from(flows)) >> 32) as usize;
                    let event = event(step, name != "swift");
                    black_box(on_event(&params, &mut table[flow], &event))
                });
            });
        }
        group.finish();
    }
}

fn main() {
    // Without the macros of criterion, which make public functions that have no documentation.
    let mut criterion = Criterion::default().configure_from_args();
    cost(&mut criterion);
    criterion.final_summary();
}
