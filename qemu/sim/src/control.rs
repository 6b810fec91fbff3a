// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The congestion control of hosts: what adapters add up, when drivers see it, and what happens
//! without them.

use qiao_cc::{fall_back, fallback, on_event, Event, FALLBACK_NS};

use crate::queue::{Time, NEVER};
use crate::workload::uniform;
use crate::world::{kind, World, RIVAL};

/// After this time an adapter raises an event that the host has not answered once more.
const RAISE_AGAIN: Time = 100_000_000;

impl World {
    /// The timer of a flow's congestion control.
    pub fn wake(&mut self, index: u32) {
        let now = self.now();
        if self.flows[index as usize].timer != now {
            return;
        }
        self.flows[index as usize].timer = NEVER;
        let flow = &self.flows[index as usize];
        let event = Event {
            now_ns: now / 1000,
            acked_to: flow.acked as u32,
            sent_to: flow.next as u32,
            ..Event::default()
        };
        let src = flow.message.src;
        let before = (flow.rate, flow.window);
        self.give_event(index, &event);
        let flow = &self.flows[index as usize];
        if (flow.rate, flow.window) != before {
            self.update_slot(index);
            self.transmit_host(src);
        }
    }

    /// Hands an event to the congestion control: at once, or through the host.
    pub fn report(&mut self, index: u32, event: &Event) {
        let src = self.flows[index as usize].message.src;
        if self.config.host == 0 || self.hosts[src as usize].alone {
            self.give_event(index, event);
            return;
        }
        let now = self.now();
        let flow = &mut self.flows[index as usize];
        flow.pending.absorb(event);
        if flow.raised_at == NEVER {
            flow.raised_at = now;
            let delay = self.host_delay();
            self.events.push(delay, kind::READ, index, 0);
        }
    }

    /// Time until the host reacts: its latency, the rest of a stall, or, when the event is lost,
    /// the time after which the adapter raises it again.
    fn host_delay(&mut self) -> Time {
        let now = self.now();
        let stalled = match self.config.stall {
            Some((from, length)) if (from..from + length).contains(&now) => from + length - now,
            _ => 0,
        };
        let mut delay = self.config.host + stalled;
        while self.config.event_loss > 0.0 && uniform(&mut self.rng) < self.config.event_loss {
            delay += RAISE_AGAIN;
        }
        delay
    }

    /// The host reads what the adapter has added up for a flow, if its driver lives.
    pub fn read_event(&mut self, index: u32) {
        let now = self.now();
        let flow = &mut self.flows[index as usize];
        let src = flow.message.src;
        if flow.raised_at == NEVER {
            return;
        }
        if self.config.death.is_some_and(|death| now >= death) {
            if now - flow.raised_at < 1000 * u64::from(FALLBACK_NS) {
                self.events.push(RAISE_AGAIN, kind::READ, index, 0);
            } else {
                let waited = now - flow.raised_at;
                let slowest = &mut self.counters.slowest_fallback;
                *slowest = waited.max(*slowest);
                self.go_alone(src);
            }
            return;
        }
        flow.raised_at = NEVER;
        let event = std::mem::take(&mut flow.pending);
        self.give_event(index, &event);
        self.update_slot(index);
        self.transmit_host(src);
    }

    /// The adapter of `host` does without its driver from now on.
    fn go_alone(&mut self, host: u32) {
        let alone = &mut self.hosts[host as usize].alone;
        if std::mem::replace(alone, true) {
            return;
        }
        self.counters.fallbacks += 1;
        for index in self.running(host) {
            let flow = &mut self.flows[index as usize];
            flow.raised_at = NEVER;
            flow.pending = Event::default();
            flow.timer = NEVER;
            flow.cc = fall_back(flow.rate);
        }
    }

    /// Gives an event to the congestion control of a flow, and takes its answer.
    pub fn give_event(&mut self, index: u32, event: &Event) {
        self.counters.cc_events += 1;
        let now = self.now();
        let flow = &mut self.flows[index as usize];
        let own = if flow.message.tag == RIVAL {
            &self.rival
        } else {
            &self.params
        };
        let action = if self.hosts[flow.message.src as usize].alone {
            on_event(&fallback(&own.port), &mut flow.cc, event)
        } else {
            on_event(own, &mut flow.cc, event)
        };
        let pace_again = self.config.pace_again && flow.rate != action.rate;
        flow.rate = action.rate;
        flow.window = action.window;
        if action.wake_ns != 0 {
            // The algorithm counts whole nanoseconds from the one in which the event was.
            let at = (now / 1000 + u64::from(action.wake_ns)) * 1000;
            if at < flow.timer {
                flow.timer = at;
                self.events.push(at - now, kind::WAKE, index, 0);
            }
        }
        if pace_again {
            self.pace(index);
        }
    }
}
