// SPDX-License-Identifier: GPL-2.0

//! Which commands are outstanding.
//!
//! No kernel in here: the tests are those of `qemu/driver`.

/// What is in one entry of the command ring.
///
/// The id of a command is its index in the ring, which runs freely: an id comes back after 2^32
/// commands. One that was given up never does, since its entry is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing; the next command may be written there.
    Free,
    /// A command that the device has not completed.
    Outstanding(u32),
    /// A command that the device has completed, and whose results were not fetched.
    Completed,
    /// A command that was given up. The device may still complete it, or read the entry.
    Abandoned,
}

impl Place {
    /// Puts the command `id` here; false if there is one.
    #[must_use]
    pub(crate) fn start(&mut self, id: u32) -> bool {
        let free = *self == Self::Free;
        if free {
            *self = Self::Outstanding(id);
        }
        free
    }

    /// The device says that it has completed `id`; false if that is not outstanding.
    #[must_use]
    pub(crate) fn complete(&mut self, id: u32) -> bool {
        let expected = *self == Self::Outstanding(id);
        if expected {
            *self = Self::Completed;
        }
        expected
    }

    /// Takes the command away, to fetch its results; false if it has none, and is given up.
    #[must_use]
    pub(crate) fn finish(&mut self) -> bool {
        let completed = *self == Self::Completed;
        *self = if completed {
            Self::Free
        } else {
            Self::Abandoned
        };
        completed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_goes_round() {
        let mut place = Place::Free;
        for id in [7, 7 + 64, u32::MAX] {
            assert!(place.start(id));
            assert!(!place.start(id));
            assert!(place.complete(id));
            assert!(place.finish());
            assert_eq!(place, Place::Free);
        }
    }

    #[test]
    fn a_second_answer_is_refused() {
        let mut place = Place::Free;
        assert!(place.start(1));
        assert!(place.complete(1));
        assert!(!place.complete(1));
        assert!(place.finish());
        assert!(!place.complete(1));
        assert_eq!(place, Place::Free);
    }

    #[test]
    fn an_answer_to_another_command_of_the_same_entry_is_refused() {
        let mut place = Place::Free;
        assert!(!place.complete(0));
        assert!(place.start(64));
        assert!(!place.complete(0));
        assert!(!place.complete(128));
        assert_eq!(place, Place::Outstanding(64));
    }

    #[test]
    fn an_abandoned_entry_is_never_used_again() {
        let mut place = Place::Free;
        assert!(place.start(3));
        assert!(!place.finish());
        assert!(!place.complete(3));
        assert!(!place.start(67));
        assert!(!place.finish());
        assert_eq!(place, Place::Abandoned);
    }
}
