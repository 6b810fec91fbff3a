// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A host channel adapter of the Qiao interface.

pub mod transport;
