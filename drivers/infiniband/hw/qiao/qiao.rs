// SPDX-License-Identifier: GPL-2.0

//! Qiao.
#![deny(unsafe_code)]
use kernel::prelude::*;
struct M;
impl kernel::Module for M {
    fn init(_m: &'static ThisModule) -> Result<Self> {
        Ok(M)
    }
}
module! {
    type: M,
    name: "qiao",
    authors: ["x"],
    description: "probe",
    license: "GPL",
}
