// SPDX-License-Identifier: GPL-2.0

//! Synchronisation: what [`kernel::sync`] lacks.

mod completion;
mod id_table;
mod work;

pub use self::{
    completion::Completion,
    id_table::{
        Id,
        IdTable, //
    },
    work::{
        Job,
        Work, //
    }, //
};
