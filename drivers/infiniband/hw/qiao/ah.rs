// SPDX-License-Identifier: GPL-2.0

//! Address handles, and addresses as the device takes them.
//!
//! The device has no address handles: requests carry the address.

use crate::device::Qiao;
use kernel::prelude::*;
use qiao_hw::qp::{
    path_flag,
    Path, //
};
use rdma::{
    AhAttr,
    Cx,
    Udata, //
};

/// An address handle.
pub(crate) struct Ah {
    attr: AhAttr,
    path: Path,
}

impl Ah {
    /// Returns the address as requests carry it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn new(attr: &AhAttr, udata: Option<&mut Udata>) -> Result<Self> {
        udata.map_or(Ok(()), Udata::no_io)?;
        Ok(Self {
            attr: *attr,
            path: to_path(attr)?,
        })
    }
}

impl rdma::AhOps for Ah {
    type Driver = Qiao;

    fn create(
        _cx: &Cx<'_, Qiao>,
        attr: &AhAttr,
        udata: Option<&mut Udata>,
    ) -> impl PinInit<Self, Error> {
        Self::new(attr, udata)
    }

    fn query(ah: &rdma::Ah<Qiao>) -> AhAttr {
        ah.attr
    }
}

/// Makes a path from an address.
///
/// # Errors
///
/// `EINVAL` if the device has no such port.
pub(crate) fn to_path(attr: &AhAttr) -> Result<Path> {
    let mut path = Path::zeroed();
    path.dlid.set(attr.dlid);
    path.sl = attr.sl;
    path.src_path_bits = attr.path_bits;
    path.static_rate = attr.static_rate;
    path.port = u8::try_from(attr.port)?;
    if let Some(grh) = attr.grh {
        path.flags = path_flag::GRH;
        path.flow_label.set(grh.flow_label);
        path.sgid_index.set(u16::from(grh.sgid_index));
        path.hop_limit = grh.hop_limit;
        path.traffic_class = grh.traffic_class;
        path.dgid = grh.dgid.0;
    }
    Ok(path)
}
