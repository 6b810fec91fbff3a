// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Named settings: an algorithm with the switch settings that the reference gives it.

use clap::ValueEnum;
use qiao_cc::{DcqcnTuning, DctcpTuning, HpccTuning, IbCcaTuning, SwiftTuning, Tuning};
use serde::Deserialize;

use crate::world::{Config, Red};

/// Round trip from which the published DCTCP runs derive their additive increase.
const DCTCP_INCREASE_RTT_NS: u32 = 13_000;

/// An algorithm as an experiment names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// HPCC with a target of 95 %.
    Hpcc,
    /// HPCC with a target of 99 %, as in the authors' result set.
    Hpcc99,
    /// DCQCN with the adapters' timers.
    Dcqcn,
    /// DCQCN with the paper's timers.
    DcqcnPaper,
    /// DCQCN with the adapters' timers and a window.
    DcqcnWindow,
    /// DCTCP.
    Dctcp,
    /// The default with marks and round trips (mode E).
    Auto,
    /// The default with round trips only (mode D).
    AutoDelay,
    /// The default with telemetry (mode I).
    AutoInt,
    /// The default with marks only.
    AutoMarks,
    /// The default with nothing but priority pause.
    AutoPause,
    /// Swift.
    Swift,
    /// No congestion control, only flow control.
    Off,
    /// InfiniBand without congestion control.
    IbOff,
    /// InfiniBand with annex A10 and the values that Qiao ships.
    IbCca,
    /// InfiniBand with annex A10 and the values of the ibccconfig(8) example.
    IbCcaExample,
    /// InfiniBand with the default.
    IbAuto,
}

impl Scheme {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hpcc => "HPCC",
            Self::Hpcc99 => "HPCC 99 %",
            Self::Dcqcn => "DCQCN vendor",
            Self::DcqcnPaper => "DCQCN paper timers",
            Self::DcqcnWindow => "DCQCN+w",
            Self::Dctcp => "DCTCP",
            Self::Auto => "auto",
            Self::AutoDelay => "auto, delay only",
            Self::AutoInt => "auto, telemetry",
            Self::AutoMarks => "auto, marks only",
            Self::AutoPause => "auto, pause only",
            Self::Swift => "swift",
            Self::Off => "flow control only",
            Self::IbOff => "IB, credits only",
            Self::IbCca => "IB, annex A10",
            Self::IbCcaExample => "IB, annex A10 example",
            Self::IbAuto => "IB, auto",
        }
    }

    /// Settings of the reference simulator.
    pub fn reference(self) -> Config {
        const KB: u64 = 1000;
        let base = Config {
            mtu: 1000,
            header: 48,
            ack: 60,
            telemetry: false,
            red: Some(Red {
                min: 100 * KB,
                max: 400 * KB,
                p_max: 0.2,
            }),
            ack_class: false,
            pace_again: false,
            credits: None,
            adaptive: false,
            host: 0,
            event_loss: 0.0,
            stall: None,
            rtt: true,
            floor_ns: true,
            buffer: 32 << 20,
            loss: 0.0,
            selective: false,
            device_acks: false,
            slow: None,
            notify_interval: 0,
            death: None,
            rival: None,
            tuning: |port| Tuning::Dcqcn(DcqcnTuning::vendor(port.link_mbps, false)),
        };
        let auto = Config {
            pace_again: true,
            tuning: |_| Tuning::Auto,
            ..base
        };
        // 4 KB packets, 128 KB per port and lane; LRH, BTH and both CRCs; marks from 16 KB on.
        let infiniband = Config {
            mtu: 4096,
            header: 26,
            ack: 30,
            ack_class: true,
            pace_again: true,
            floor_ns: false,
            red: Some(Red {
                min: 4 * KB,
                max: 4 * KB,
                p_max: 1.0,
            }),
            credits: Some(128 << 10),
            ..base
        };
        match self {
            Self::Auto => auto,
            Self::AutoDelay => Config { red: None, ..auto },
            Self::AutoInt => Config {
                telemetry: true,
                ..auto
            },
            Self::AutoMarks => Config { rtt: false, ..auto },
            Self::AutoPause => Config {
                rtt: false,
                red: None,
                ..auto
            },
            Self::Swift => Config {
                tuning: |port| Tuning::Swift(SwiftTuning::new(port)),
                ..auto
            },
            Self::Off => Config {
                red: None,
                tuning: off,
                ..base
            },
            Self::IbOff => Config {
                red: None,
                tuning: off,
                ..infiniband
            },
            Self::IbCca => Config {
                tuning: |_| Tuning::IbCca(IbCcaTuning::SHIPPED),
                ..infiniband
            },
            Self::IbCcaExample => Config {
                tuning: |_| Tuning::IbCca(IbCcaTuning::EXAMPLE),
                ..infiniband
            },
            Self::IbAuto => Config {
                tuning: |_| Tuning::Auto,
                ..infiniband
            },
            Self::Dcqcn => Config {
                ack_class: true,
                ..base
            },
            Self::DcqcnPaper => Config {
                ack_class: true,
                tuning: |port| Tuning::Dcqcn(DcqcnTuning::paper_timers(port.link_mbps, false)),
                ..base
            },
            Self::DcqcnWindow => Config {
                tuning: |port| Tuning::Dcqcn(DcqcnTuning::vendor(port.link_mbps, true)),
                ..base
            },
            Self::Dctcp => Config {
                red: Some(Red {
                    min: 75 * KB,
                    max: 75 * KB,
                    p_max: 1.0,
                }),
                tuning: |port| Tuning::Dctcp(DctcpTuning::new(port, DCTCP_INCREASE_RTT_NS)),
                ..base
            },
            Self::Hpcc => Config {
                telemetry: true,
                pace_again: true,
                tuning: |port| Tuning::Hpcc(HpccTuning::new(port.link_mbps, 95)),
                ..base
            },
            Self::Hpcc99 => Config {
                telemetry: true,
                pace_again: true,
                tuning: |port| Tuning::Hpcc(HpccTuning::new(port.link_mbps, 99)),
                ..base
            },
        }
    }
}

/// A law that never limits: annex A10 with a table of one entry.
fn off(_port: &qiao_cc::Port) -> Tuning {
    Tuning::IbCca(IbCcaTuning {
        limit: 0,
        ..IbCcaTuning::EXAMPLE
    })
}
