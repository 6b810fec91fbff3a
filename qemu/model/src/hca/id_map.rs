// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects by their numbers, which drivers choose.

use std::collections::HashMap;

/// Looked up several times for each packet. The hash is seeded, so that a driver cannot choose numbers that slow others down.
pub type IdMap<T> = HashMap<u32, T, foldhash::fast::RandomState>;
