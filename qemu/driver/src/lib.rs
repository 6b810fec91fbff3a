// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Those sources of the kernel driver that know no kernel, for their tests. Kbuild compiles the
//! same files as modules of the driver.

#![cfg(test)]

#[path = "../../../drivers/infiniband/hw/qiao/caps.rs"]
mod caps;
#[path = "../../../drivers/infiniband/hw/qiao/cmdq/ledger.rs"]
mod ledger;
#[path = "../../../drivers/infiniband/hw/qiao/doorbell/map.rs"]
mod map;
#[path = "../../../drivers/infiniband/hw/qiao/eq/pace.rs"]
mod pace;
