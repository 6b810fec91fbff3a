// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Directed routes (IBTA 14.2.2).

use super::smp::{Smp, PERMISSIVE_LID};

/// Where a directed datagram goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To the management agent of this node.
    Agent,
    /// To whoever manages the subnet on this node.
    Manager,
    /// Out of a port.
    Out(u8),
    /// Out of the port that leads to a LID: the directed part of the route ends here.
    Lid(u16),
    /// Nowhere.
    Discard,
}

/// Takes a datagram that has come in on a port of a node, and updates its hop pointer and return path (IBTA 14.2.2.2 and
/// 14.2.2.4).
pub fn receive(smp: &mut Smp, port: u8, is_switch: bool) -> Step {
    let [pointer, count] = smp.head.hops;
    if count > Smp::MAX_HOPS {
        return Step::Discard;
    }
    if smp.is_returning() {
        return receive_returning(smp, is_switch);
    }
    let at = usize::from(pointer);
    // C14-9, second case: a switch on the way.
    if pointer != 0 && pointer < count {
        if !is_switch {
            return Step::Discard;
        }
        smp.return_path[at] = port;
        smp.head.hops[0] = pointer + 1;
        return Step::Out(smp.initial_path[at + 1]);
    }
    // Third case: the end of the directed part.
    if pointer == count {
        if count != 0 {
            smp.return_path[at] = port;
        }
        smp.head.hops[0] = pointer + 1;
        return match smp.directed_dlid.get() {
            PERMISSIVE_LID => Step::Agent,
            lid if is_switch => Step::Lid(lid),
            _ => Step::Discard,
        };
    }
    // Fourth case: routed by LID behind the directed part.
    if pointer == count + 1 {
        Step::Agent
    } else {
        Step::Discard
    }
}

fn receive_returning(smp: &mut Smp, is_switch: bool) -> Step {
    let [pointer, count] = smp.head.hops;
    // C14-13, first case: routed by LID up to here.
    if count != 0 && pointer == count + 1 {
        return if is_switch {
            step_back(smp)
        } else {
            Step::Discard
        };
    }
    // Second case: a switch on the way.
    if (2..=count).contains(&pointer) {
        return if is_switch {
            step_back(smp)
        } else {
            Step::Discard
        };
    }
    // Third case: the end of the directed part.
    if pointer == 1 {
        return match smp.directed_slid.get() {
            // The pointer stays: software on the host does this step itself.
            PERMISSIVE_LID => Step::Manager,
            lid if is_switch => {
                smp.head.hops[0] = 0;
                Step::Lid(lid)
            }
            _ => Step::Discard,
        };
    }
    if pointer == 0 {
        Step::Manager
    } else {
        Step::Discard
    }
}

fn step_back(smp: &mut Smp) -> Step {
    let pointer = smp.head.hops[0] - 1;
    smp.head.hops[0] = pointer;
    Step::Out(smp.return_path[usize::from(pointer)])
}

/// Starts a response of this node on its way back (IBTA 14.2.2.3); `slid` is the LID from which the request came.
/// [`Step::Manager`] means that it came from this node.
pub fn reply(smp: &mut Smp, slid: u16) -> Step {
    let [pointer, count] = smp.head.hops;
    if smp.directed_dlid.get() != PERMISSIVE_LID {
        return Step::Lid(slid);
    }
    if count == 0 || pointer != count + 1 {
        return Step::Manager;
    }
    step_back(smp)
}

#[cfg(test)]
mod tests {
    use super::super::{attribute, method};
    use super::*;

    /// From port 1 of an HCA over a switch (in at 3, out at 5) to another HCA (in at 1).
    #[test]
    fn a_datagram_goes_there_and_back() {
        let mut smp = Smp::directed(&[1, 5], method::GET, attribute::NODE_INFO, 0);
        // What the sender does: C14-9, first case.
        smp.head.hops[0] = 1;
        assert_eq!(receive(&mut smp, 3, true), Step::Out(5));
        assert_eq!(receive(&mut smp, 1, false), Step::Agent);
        assert_eq!(smp.return_path[1..3], [3, 1]);
        smp.respond(0);
        assert_eq!(reply(&mut smp, PERMISSIVE_LID), Step::Out(1));
        assert_eq!(receive(&mut smp, 5, true), Step::Out(3));
        assert_eq!(receive(&mut smp, 1, false), Step::Manager);
        assert_eq!(smp.head.hops, [1, 2]);
    }

    #[test]
    fn a_route_to_the_sender_itself_has_no_hop() {
        let mut smp = Smp::directed(&[], method::GET, attribute::NODE_INFO, 0);
        assert_eq!(receive(&mut smp, 0, true), Step::Agent);
        smp.respond(0);
        assert_eq!(reply(&mut smp, PERMISSIVE_LID), Step::Manager);
    }

    #[test]
    fn a_part_may_be_routed_by_lid() {
        let mut smp = Smp::directed(&[1], method::GET, attribute::NODE_INFO, 0);
        smp.directed_dlid.set(9);
        smp.head.hops[0] = 1;
        assert_eq!(receive(&mut smp.clone(), 2, false), Step::Discard);
        assert_eq!(receive(&mut smp, 2, true), Step::Lid(9));
        assert_eq!(receive(&mut smp, 1, false), Step::Agent);
        smp.respond(0);
        assert_eq!(reply(&mut smp, 4), Step::Lid(4));
        // Back to the switch by LID, and from there directed.
        assert_eq!(receive(&mut smp, 7, true), Step::Out(2));
        assert_eq!(receive(&mut smp, 1, false), Step::Manager);
    }

    #[test]
    fn wrong_pointers_are_discarded() {
        for returning in [false, true] {
            for is_switch in [false, true] {
                for (pointer, count) in [(5, 3), (64, 64), (255, 64), (255, 3)] {
                    let mut smp = Smp::directed(&[], method::GET, attribute::NODE_INFO, 0);
                    if returning {
                        smp.respond(0);
                    }
                    smp.head.hops = [pointer, count];
                    assert_eq!(receive(&mut smp, 1, is_switch), Step::Discard);
                }
            }
        }
        // An end node is no place on the way.
        let mut smp = Smp::directed(&[1, 2, 3], method::GET, attribute::NODE_INFO, 0);
        smp.head.hops[0] = 2;
        assert_eq!(receive(&mut smp.clone(), 1, false), Step::Discard);
        smp.respond(0);
        assert_eq!(receive(&mut smp, 1, false), Step::Discard);
    }
}
