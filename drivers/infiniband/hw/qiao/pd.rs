// SPDX-License-Identifier: GPL-2.0

//! Protection domains.

use crate::{
    device::Qiao,
    object::{
        self,
        Object, //
    }, //
};
use core::convert::Infallible;
use kernel::prelude::*;
use qiao_abi::qiao_alloc_pd_resp;
use qiao_hw::cmd::{
    AllocPd,
    DeallocPd, //
};
use rdma::{
    sync::Id,
    Cx,
    Destroyed,
    Udata, //
};

/// A protection domain.
pub(crate) struct Pd {
    id: Id<Infallible>,
}

impl Pd {
    /// Returns the number of the domain.
    pub(crate) fn pdn(&self) -> u32 {
        self.id.get()
    }

    fn new(cx: &Cx<'_, Qiao>, udata: Option<&mut Udata>) -> Result<Self> {
        let hca = cx.data().hca();
        let pd = Self {
            id: hca.pds().reserve()?,
        };
        let mut cmd = AllocPd::zeroed();
        cmd.pdn.set(pd.pdn());
        object::create(hca, &cmd, pd, (), |pd| {
            let Some(udata) = udata else {
                return Ok(());
            };
            udata.no_request()?;
            udata.respond(&qiao_alloc_pd_resp {
                pdn: pd.pdn(),
                reserved: 0,
            })
        })
    }
}

impl Object for Pd {
    type Destroy = DeallocPd;

    fn destroy_command(&self) -> DeallocPd {
        let mut cmd = DeallocPd::zeroed();
        cmd.pdn.set(self.pdn());
        cmd
    }
}

impl rdma::PdOps for Pd {
    type Driver = Qiao;

    fn alloc(cx: &Cx<'_, Qiao>, udata: Option<&mut Udata>) -> impl PinInit<Self, Error> {
        Self::new(cx, udata)
    }

    fn dealloc(pd: &rdma::Pd<Qiao>, cx: &Cx<'_, Qiao>) -> Destroyed {
        object::destroy::<Self>(cx.data().hca(), pd)
    }
}
