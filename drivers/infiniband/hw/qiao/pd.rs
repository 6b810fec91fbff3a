// SPDX-License-Identifier: GPL-2.0

//! Protection domains.

use crate::device::{
    destroyed,
    Qiao, //
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
        let id = hca.pds().reserve()?;
        let mut cmd = AllocPd::zeroed();
        cmd.pdn.set(id.get());
        let (_, id) = hca.cmd().exec_with(&cmd, id)?;
        let pd = Self { id };
        let Some(udata) = udata else {
            return Ok(pd);
        };
        let resp = qiao_alloc_pd_resp {
            pdn: pd.pdn(),
            reserved: 0,
        };
        let responded = udata.no_request().and_then(|()| udata.respond(&resp));
        if let Err(e) = responded {
            pd.undo(cx);
            return Err(e);
        }
        Ok(pd)
    }

    fn dealloc_hw(&self, cx: &Cx<'_, Qiao>) -> Destroyed {
        let mut cmd = DeallocPd::zeroed();
        cmd.pdn.set(self.pdn());
        destroyed(cx.data().hca().cmd().exec(&cmd))
    }

    fn undo(self, cx: &Cx<'_, Qiao>) {
        if self.dealloc_hw(cx) == Destroyed::Abandoned {
            core::mem::forget(self);
        }
    }
}

impl rdma::PdOps for Pd {
    type Driver = Qiao;

    fn alloc(cx: &Cx<'_, Qiao>, udata: Option<&mut Udata>) -> impl PinInit<Self, Error> {
        Self::new(cx, udata)
    }

    fn dealloc(pd: &rdma::Pd<Qiao>, cx: &Cx<'_, Qiao>) -> Destroyed {
        pd.dealloc_hw(cx)
    }
}
