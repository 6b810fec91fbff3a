// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Events from a fixed sequence and what every build must make of them: a part of the tests of
//! whoever compiles the algorithms, who names the crate `cc` above this module.

use super::cc::{
    on_event, Action, DcqcnTuning, DctcpTuning, Event, FlowState, HpccTuning, IbCcaTuning, Params,
    Port, SwiftTuning, Telemetry, Tuning,
};

/// A port whose base round trip is that of one switch.
pub(super) const PORT: Port = Port {
    link_mbps: 100_000,
    base_rtt_ns: 4160,
    mtu: 1000,
};

/// Rate in Q24 and window in bytes of each of [`all`] after 1000 events.
pub(super) const GOLDEN: [(u32, u32); 7] = [
    (10_485_760, 32_500),
    (167_772, 519),
    (2_048, u32::MAX),
    (231_623, 717),
    (1_879_312, 5_824),
    (1_150_289, 9_533),
    (131_072, u32::MAX),
];

/// All algorithms, DCQCN with the timers of adapters and a window, and as in its paper.
pub(super) fn all() -> [Tuning; 7] {
    [
        Tuning::Auto,
        Tuning::Dcqcn(DcqcnTuning::vendor(100_000, true)),
        Tuning::Dcqcn(DcqcnTuning::paper(100_000, false)),
        Tuning::Dctcp(DctcpTuning::new(&PORT, 13_000)),
        Tuning::Hpcc(HpccTuning::new(100_000, 95)),
        Tuning::Swift(SwiftTuning::new(&PORT)),
        Tuning::IbCca(IbCcaTuning::EXAMPLE),
    ]
}

/// The event number `step`; together they cover every input but stalls.
pub(super) fn script(step: u32) -> Event {
    let x = step.wrapping_mul(0x9e37_79b9);
    let acked = 1000u32.saturating_mul(x >> 30);
    let to = step.wrapping_mul(1500);
    Event {
        now_ns: u64::from(step).wrapping_mul(700),
        acked,
        marked: if x & 0x30 == 0 { acked } else { 0 },
        notifications: u32::from(x & 0x30 == 0),
        acked_to: to,
        sent_to: to.wrapping_add(30_000),
        rtt_min_ns: 4200u32.saturating_add(x & 0x1fff),
        rtt_last_ns: 4300u32.saturating_add(x & 0x1fff),
        losses: u32::from(x & 0xff00 == 0),
        telemetry: Some(Telemetry {
            utilisation: x & 0x1_ffff,
            span_ns: 700,
            queue_ns: x & 0xfff,
        }),
        ..Event::default()
    }
}

/// What this build makes of them, to be compared with [`GOLDEN`].
pub(super) fn answers() -> [(u32, u32); 7] {
    all().map(|tuning| {
        let params = Params { port: PORT, tuning };
        let mut flow = FlowState::start(&params, 0);
        let mut last = Action::LINE;
        for step in 1..=1000 {
            last = on_event(&params, &mut flow, &script(step));
        }
        (last.rate.raw(), last.window)
    })
}
