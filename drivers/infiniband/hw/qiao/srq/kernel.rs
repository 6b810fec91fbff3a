// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues of the kernel.
//!
//! The device is hostile: a completion counts only if the request that it names is outstanding.
//! Which of the queue pairs has taken it only the device knows.

use crate::{
    doorbell::{
        Slot,
        Take, //
    },
    hca::Hca,
    recv::{
        Places,
        Request, //
    }, //
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    }, //
};
use qiao_hw::{
    queue::SrqLayout,
    slots::{
        self,
        SlotTable, //
    },
    U32, //
};
use rdma::{
    dma::{
        Ring,
        RingMemory, //
    },
    RecvWr,
    RecvWrs, //
};

/// The requests of a shared receive queue of the kernel.
#[pin_data]
pub(crate) struct KernelSrq {
    slot: Slot<()>,
    memory: Arc<RingMemory>,
    #[pin]
    state: SpinLockIrq<State>,
}

struct State {
    places: Places,
    order: Ring<U32>,
    /// Free-running index of the next word of the order ring.
    head: u32,
    requests: SlotTable<KVVec<slots::Slot<Request>>>,
}

impl KernelSrq {
    /// # Errors
    ///
    /// `ENOMEM`, or `ENOSPC` if there is no doorbell slot left.
    pub(super) fn new(hca: &Hca<'_>, layout: &SrqLayout, max_sge: u32) -> Result<Arc<Self>> {
        let memory = RingMemory::new(hca.pdev().as_ref(), layout.size())?;
        let size = layout.requests().size();
        let free = slots::Slot::Free(0);
        let state = State {
            places: Places::new(&memory, layout.requests(), max_sge)?,
            order: Ring::within(memory.clone(), layout.order_offset(0), size.log())?,
            head: 0,
            requests: SlotTable::new(KVVec::from_elem(free, size.entries() as usize, GFP_KERNEL)?),
        };
        Arc::pin_init(
            try_pin_init!(Self {
                slot: hca.kernel_slots(Take::One)?,
                memory,
                state <- new_spinlock_irq!(state),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the number of the doorbell slot, and the memory of the queue.
    pub(super) fn place(&self) -> (u32, &RingMemory) {
        (self.slot.number(), &self.memory)
    }

    /// Posts requests, up to the first that can not be.
    pub(super) fn post(&self, hca: &Hca<'_>, wrs: &mut RecvWrs<'_>) -> Result {
        let mut state = self.state.lock();
        let before = state.head;
        let ret = wrs.post_each(|wr| state.post(wr));
        if state.head != before {
            // With the lock held, since the last value that is written counts.
            hca.ring_doorbell(self.slot.number(), state.head.into());
        }
        ret
    }

    /// Frees the request of the number `place`; [`None`] if it is not outstanding.
    pub(crate) fn complete(&self, place: u32) -> Option<Request> {
        self.state.lock().requests.give(place)
    }
}

impl State {
    /// # Errors
    ///
    /// `EINVAL` if the request is malformed or larger than the consumer has said, `ENOMEM` if there
    /// is no room.
    fn post(&mut self, wr: &RecvWr<'_>) -> Result {
        let (request, sges) = self.places.check(wr)?;
        let place = self.requests.take(request).ok_or(ENOMEM)?;
        self.places.write(place, self.head, sges)?;
        self.order.write(self.head, &place.into());
        self.head = self.head.wrapping_add(1);
        Ok(())
    }
}
