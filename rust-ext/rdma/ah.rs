// SPDX-License-Identifier: GPL-2.0

//! Address handles, and the addresses in them.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    device::Shims,
    Cx,
    Driver,
    Gid,
    Obj,
    Udata, //
};
use crate::bindings;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// An address handle.
pub type Ah<T> = Obj<bindings::ib_ah, <T as Driver>::Ah>;

/// The driver's part of an [`Ah`].
///
/// All methods but [`create`](Self::create) for user space may be called from any context and must
/// not sleep.
pub trait AhOps: Sized + Send + Sync + 'static {
    /// The driver.
    type Driver: Driver<Ah = Self>;

    /// Creates an address handle; for the kernel if there is no `udata`.
    fn create(
        cx: &Cx<'_, Self::Driver>,
        attr: &AhAttr,
        udata: Option<&mut Udata>,
    ) -> impl PinInit<Self, Error>;

    /// Returns the address.
    fn query(ah: &Ah<Self::Driver>) -> AhAttr;
}

/// The way to a port (IBTA vol. 1, 11.2.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AhAttr {
    /// Number of the local port, from 1.
    pub port: u32,
    /// Destination LID.
    pub dlid: u32,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// Path bits of the source LID.
    pub path_bits: u8,
    /// Largest rate, `enum ib_rate`; 0 for that of the port.
    pub static_rate: u8,
    /// What a global route header says, if there is one.
    pub grh: Option<GlobalRoute>,
}

/// A global route (IBTA vol. 1, 8.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalRoute {
    /// Destination GID.
    pub dgid: Gid,
    /// Index of the source GID.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

impl AhAttr {
    /// # Errors
    ///
    /// `EOPNOTSUPP` if this is not the address of an InfiniBand port, `EINVAL` if a field does not
    /// fit its header.
    pub(super) fn from_raw(raw: &bindings::rdma_ah_attr) -> Result<Self> {
        if raw.type_ != bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_IB {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: The type says which member of the union it is.
        let ib = unsafe { raw.__bindgen_anon_1.ib };
        if raw.sl > 15 {
            return Err(EINVAL);
        }
        Ok(Self {
            port: raw.port_num,
            dlid: u32::from(ib.dlid),
            sl: raw.sl,
            path_bits: ib.src_path_bits,
            static_rate: raw.static_rate,
            grh: Self::grh_from_raw(raw)?,
        })
    }

    fn grh_from_raw(raw: &bindings::rdma_ah_attr) -> Result<Option<GlobalRoute>> {
        // CAST: A small flag.
        if raw.ah_flags & bindings::ib_ah_flags_IB_AH_GRH as u8 == 0 {
            return Ok(None);
        }
        let grh = &raw.grh;
        if grh.flow_label >> 20 != 0 {
            return Err(EINVAL);
        }
        Ok(Some(GlobalRoute {
            dgid: Gid::from_raw(&grh.dgid),
            sgid_index: grh.sgid_index,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
            flow_label: grh.flow_label,
        }))
    }

    /// Writes to the fields of `raw`, which the core has cleared.
    pub(super) fn write_to(&self, raw: &mut bindings::rdma_ah_attr) {
        raw.type_ = bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_IB;
        raw.port_num = self.port;
        raw.sl = self.sl;
        raw.static_rate = self.static_rate;
        raw.__bindgen_anon_1.ib = bindings::ib_ah_attr {
            // CAST: From a 16-bit field in `from_raw`.
            dlid: self.dlid as u16,
            src_path_bits: self.path_bits,
        };
        let Some(grh) = self.grh else {
            return;
        };
        // CAST: A small flag.
        raw.ah_flags = bindings::ib_ah_flags_IB_AH_GRH as u8;
        raw.grh.dgid = grh.dgid.to_raw();
        raw.grh.sgid_index = grh.sgid_index;
        raw.grh.hop_limit = grh.hop_limit;
        raw.grh.traffic_class = grh.traffic_class;
        raw.grh.flow_label = grh.flow_label;
    }
}

impl<T: Driver> Shims<T> {
    /// # Safety
    ///
    /// As the device operations `create_ah` and `create_user_ah`.
    pub(super) unsafe extern "C" fn create_ah(
        raw: *mut bindings::ib_ah,
        attr: *mut bindings::rdma_ah_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core passes valid attributes, which it does not change meanwhile.
            let attr = AhAttr::from_raw(unsafe { &*(*attr).ah_attr })?;
            // SAFETY: The core sets the device before it calls this.
            let device = unsafe { (*raw).device };
            // SAFETY: The core passes null, or the udata of the running system call.
            let udata = unsafe { Udata::from_raw(udata) };
            let create = |cx: &Cx<'_, T>| {
                // SAFETY: The core allocated `size_ib_ah` bytes for this call.
                unsafe { Ah::<T>::init(raw, (), T::Ah::create(cx, &attr, udata)) }
            };
            // SAFETY: A device operation is running.
            unsafe { Self::with_cx(device, create) }.map(|()| 0)
        })
    }

    /// # Safety
    ///
    /// As the device operation `query_ah`.
    pub(super) unsafe extern "C" fn query_ah(
        raw: *mut bindings::ib_ah,
        attr: *mut bindings::rdma_ah_attr,
    ) -> c_int {
        // SAFETY: The core passes what `create_ah` made.
        let ah = unsafe { Ah::<T>::from_raw(raw) };
        // SAFETY: The core passes attributes for this call to write.
        T::Ah::query(ah).write_to(unsafe { &mut *attr });
        0
    }

    /// # Safety
    ///
    /// As the device operation `destroy_ah`.
    pub(super) unsafe extern "C" fn destroy_ah(raw: *mut bindings::ib_ah, _flags: u32) -> c_int {
        // SAFETY: The core destroys what `create_ah` made, once.
        unsafe { Ah::<T>::drop_in_place(raw) };
        0
    }
}
