// SPDX-License-Identifier: GPL-2.0

//! Congestion control. The algorithms are in crate `qiao_cc`; that they compute the same in a
//! kernel as in the simulator is tested here.

use kernel::prelude::*;

#[cfg(CONFIG_KUNIT = "y")]
use qiao_cc as cc;

#[cfg(CONFIG_KUNIT = "y")]
#[path = "cc/golden.rs"]
mod golden;

#[kunit_tests(qiao_cc)]
mod tests {
    use super::golden::{answers, GOLDEN};

    #[test]
    fn golden_vectors() {
        assert_eq!(answers(), GOLDEN);
    }
}
