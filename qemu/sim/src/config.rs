// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is the same for a whole fabric.

use qiao_cc::{Port as CcPort, Tuning};

use crate::queue::Time;
use crate::world::Port;

/// ECN marking of a port that is `gbps` fast: thresholds in bytes per 25 Gb/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Red {
    /// No mark up to here.
    pub min: u64,
    /// All marked above.
    pub max: u64,
    /// Probability at `max`.
    pub p_max: f64,
}

/// What is the same for the whole fabric.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Payload of a full packet.
    pub mtu: u32,
    /// Headers of a data packet without telemetry.
    pub header: u32,
    /// Size of an acknowledgement without telemetry.
    pub ack: u32,
    /// Whether switches write telemetry, which costs 42 bytes in data and acknowledgements.
    pub telemetry: bool,
    /// Marking, or none.
    pub red: Option<Red>,
    /// Whether acknowledgements have a class of their own above data.
    pub ack_class: bool,
    /// Whether a rate change also moves the packet that already waits for its turn.
    pub pace_again: bool,
    /// Native InfiniBand: link-level credits of this many bytes per port and virtual lane, and FECN
    /// instead of ECN. `None` is Ethernet with priority pause.
    pub credits: Option<u64>,
    /// Whether switches take the shortest queue of all shortest paths, per packet.
    pub adaptive: bool,
    /// Time from the end of an event in the adapter to its effect, through the host; 0 makes the
    /// adapter decide per acknowledgement.
    pub host: Time,
    /// Share of events that the host never sees. Their content stays in the adapter.
    pub event_loss: f64,
    /// From when, and for how long, the host does nothing.
    pub stall: Option<(Time, Time)>,
    /// Whether adapters measure round trips.
    pub rtt: bool,
    /// Serialisation and pacing in whole nanoseconds, rounded down, as ns-3 does it.
    pub floor_ns: bool,
    /// Shared buffer of a switch in bytes.
    pub buffer: u64,
    /// Share of data packets that are lost on the last link.
    pub loss: f64,
    /// Selective repeat instead of go-back-N. It is what adaptive routing needs: packets that
    /// come out of order are then no sign of a loss, so only a timeout is.
    pub selective: bool,
    /// Acknowledgements are for the packets that ask, as Qiao devices do it ([`qiao_cc::asks`]). The
    /// reference simulator acknowledges every packet.
    pub device_acks: bool,
    /// A host that does not take packets as fast as its link brings them.
    pub slow: Option<Slow>,
    /// Shortest time between two notifications of a flow (the notification point of DCQCN); 0
    /// notifies with every marked packet, as the reference simulator does.
    pub notify_interval: Time,
    /// When the drivers of all hosts die.
    pub death: Option<Time>,
    /// Congestion control of the messages with [`RIVAL`], if that is another one.
    pub rival: Option<fn(&CcPort) -> Tuning>,
    /// The congestion control; its base round trip is set from the topology.
    pub tuning: fn(&CcPort) -> Tuning,
}

/// Tag of messages that run the congestion control of [`Config::rival`].
pub const RIVAL: u8 = 9;

/// A slow receiver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slow {
    /// The host.
    pub host: u32,
    /// Percent of the link rate at which its memory takes packets.
    pub percent: u64,
    /// From when, and for how long, it takes none.
    pub stop: Option<(Time, Time)>,
}

/// Telemetry header of an acknowledgement in bytes: five hops of eight bytes and two bytes more.
const TELEMETRY_BYTES: u32 = 42;

impl Config {
    /// Wire bytes of a data packet.
    #[inline]
    pub fn data_size(&self, payload: u32) -> u32 {
        payload + self.header + if self.telemetry { TELEMETRY_BYTES } else { 0 }
    }

    /// Wire bytes of an acknowledgement.
    #[inline]
    pub fn ack_size(&self) -> u32 {
        // Without telemetry an acknowledgement is padded to the smallest frame.
        if self.telemetry {
            46 + TELEMETRY_BYTES
        } else {
            self.ack
        }
    }

    /// Serialisation time.
    #[inline]
    pub fn tx_time(&self, port: &Port, size: u32) -> Time {
        self.round(u64::from(size) * port.byte_ps)
    }

    /// Rounds as the reference simulator does, if asked to.
    #[inline]
    pub fn round(&self, time: Time) -> Time {
        if self.floor_ns {
            time / 1000 * 1000
        } else {
            time
        }
    }
}
