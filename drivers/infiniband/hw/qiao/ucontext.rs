// SPDX-License-Identifier: GPL-2.0

//! Contexts of user space.

use crate::{
    device::Qiao,
    doorbell::{
        Slot,
        SlotSet,
        Take, //
    },
    hca::Hca, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::Mutex, //
};
use qiao_abi::qiao_alloc_ucontext_resp;
use qiao_hw::{
    bar,
    caps::Caps, //
};
use rdma::{
    Cx,
    IoPages,
    MmapHandle,
    UcontextHandle,
    Udata, //
};

/// Doorbell slots of a context, with the offset that their page is mapped by.
pub(crate) type UserSlot = Slot<u64>;

/// A context of user space.
#[pin_data]
pub(crate) struct Context {
    handle: UcontextHandle,
    /// These go with the context, whatever becomes of the slots.
    #[pin]
    maps: Mutex<KVec<MmapHandle>>,
    #[pin]
    slots: SlotSet<u64>,
}

impl Context {
    /// Takes doorbell slots, in a page that only this context maps.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the device has no page left, `ENOMEM`.
    pub(crate) fn take_slots(&self, hca: &Hca<'_>, take: Take) -> Result<UserSlot> {
        self.slots.take(take, |page| {
            let pages = IoPages::from_bar(hca.pdev(), bar::pci::BAR_DOORBELL, page, 1)?;
            let map = self.handle.mmap_insert(pages)?;
            let offset = map.offset();
            self.maps.lock().push(map, GFP_KERNEL)?;
            Ok(offset)
        })
    }
}

/// Tells the library what it may ask for.
fn response(caps: &Caps) -> qiao_alloc_ucontext_resp {
    qiao_alloc_ucontext_resp {
        comp_mask: 0,
        features: caps.features.get(),
        max_inline: u32::from(caps.max_inline.get()),
        max_sge: u32::from(caps.max_sge.get()),
        log_max_sq_blocks: caps.log_max_sq_blocks,
        log_max_rq_wqes: caps.log_max_rq_wqes,
        log_max_cqe: caps.log_max_cqe,
        reserved: [0; 5],
    }
}

impl rdma::UcontextOps for Context {
    type Driver = Qiao;

    fn alloc(
        cx: &Cx<'_, Qiao>,
        handle: &UcontextHandle,
        udata: &mut Udata,
    ) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let hca = cx.data().hca();
            udata.no_request()?;
            udata.respond(&response(hca.caps()))?;
            // Nothing fails from here on.
            Ok(try_pin_init!(Self {
                handle: handle.clone(),
                maps <- new_mutex!(KVec::new()),
                slots <- SlotSet::new(hca.doorbells().clone()),
            }))
        })
    }
}
