// SPDX-License-Identifier: GPL-2.0 OR MIT

//! When a device asks for an acknowledgment.
//!
//! The bit AckReq of the BTH is the requester's to set. An acknowledgment per packet takes 5 % of a
//! link that is used both ways with packets of 1 KB; too few leave a window without a clock.

/// Packets of a message from one that asks to the next, at most.
pub const ACK_EVERY: u32 = 32;

/// Parts of a window that are acknowledged one by one, at least. A window holds a bandwidth-delay
/// product and a quarter: what waits for an acknowledgment that nothing asked for must be less than
/// that quarter, or the link runs dry.
const PER_WINDOW: u32 = 6;

/// Whether a packet asks, with `packets` and `bytes` since the last one that did, its own included,
/// and the flow's window in bytes.
///
/// The last packet of a message asks in any case, and so does one before which nothing in flight
/// asks. A device lets that one out of a window that is closed as well: the window may have shrunk
/// below what is in flight and has not asked.
#[inline]
pub const fn asks(packets: u32, bytes: u32, window: u32) -> bool {
    packets >= ACK_EVERY || bytes >= window / PER_WINDOW
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Action;

    #[test]
    fn a_window_has_six_acknowledgments_and_a_long_one_more() {
        assert!(!asks(2, 1999, 12_000) && asks(2, 2000, 12_000));
        assert!(asks(1, 1, 1));
        let unlimited = |packets: u32| asks(packets, packets << 12, Action::UNLIMITED);
        assert!(!unlimited(ACK_EVERY - 1) && unlimited(ACK_EVERY));
    }
}
