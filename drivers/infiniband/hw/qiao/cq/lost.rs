// SPDX-License-Identifier: GPL-2.0

//! Completion queues of the kernel when the device is lost.
//!
//! A lost device raises no event. Who has asked for one and has requests outstanding may wait for
//! it for ever, as `ib_drain_qp()` does; hence the driver raises it, and the consumer polls what is
//! flushed.

use super::KernelCq;
use kernel::{
    new_mutex,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        Arc,
        Mutex, //
    }, //
};
use rdma::sync::Job;

/// A completion queue of the kernel, by its number.
pub(crate) type Entry = RBTreeNode<u32, Arc<KernelCq>>;

/// All completion queues of the kernel.
#[pin_data]
pub(crate) struct KernelCqs {
    #[pin]
    all: Mutex<RBTree<u32, Arc<KernelCq>>>,
}

impl KernelCqs {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            all <- new_mutex!(RBTree::new()),
        })
    }

    pub(super) fn insert(&self, entry: Entry) {
        let old = self.all.lock().insert(entry);
        drop(old);
    }

    pub(super) fn remove(&self, cqn: u32) {
        let entry = self.all.lock().remove_node(&cqn);
        drop(entry);
    }
}

/// When the device is lost.
impl Job for KernelCqs {
    fn run(&self) {
        self.all.lock().values().for_each(|cq| cq.raise_if_due());
    }
}
