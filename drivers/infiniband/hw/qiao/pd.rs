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
    Lent,
    Udata, //
};

/// A protection domain.
pub(crate) struct Pd(Lent<Number>);

/// The number of a protection domain.
struct Number(Id<Infallible>);

impl Pd {
    /// Returns the number of the domain.
    pub(crate) fn pdn(&self) -> u32 {
        self.0 .0.get()
    }

    fn new(cx: &Cx<'_, Qiao>, udata: Option<&mut Udata>) -> Result<Self> {
        let hca = cx.data().hca();
        let number = Number(hca.pds().reserve()?);
        let mut cmd = AllocPd::zeroed();
        cmd.pdn.set(number.0.get());
        let number = object::create(hca, &cmd, number, (), |number| {
            let Some(udata) = udata else {
                return Ok(());
            };
            udata.no_request()?;
            udata.respond(&qiao_alloc_pd_resp {
                pdn: number.0.get(),
                reserved: 0,
            })
        })?;
        Ok(Self(number))
    }
}

impl Object for Number {
    type Destroy = DeallocPd;

    fn destroy_command(&self) -> DeallocPd {
        let mut cmd = DeallocPd::zeroed();
        cmd.pdn.set(self.0.get());
        cmd
    }
}

impl rdma::PdOps for Pd {
    type Driver = Qiao;

    fn alloc(cx: &Cx<'_, Qiao>, udata: Option<&mut Udata>) -> impl PinInit<Self, Error> {
        Self::new(cx, udata)
    }

    fn dealloc(pd: &rdma::Pd<Qiao>, cx: &Cx<'_, Qiao>) {
        object::destroy(cx.data().hca(), &pd.0);
    }
}
