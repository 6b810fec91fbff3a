// SPDX-License-Identifier: GPL-2.0

//! Memory regions.

use crate::{
    device::Qiao,
    object::{
        self,
        Object, //
    },
    page_list::PageTables, //
};
use core::convert::Infallible;
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};
use qiao_hw::{
    caps::feature,
    cmd::{
        mkey_flag,
        CreateMkey,
        DestroyMkey, //
    },
    qp::access, //
};
use rdma::{
    sync::Id,
    Access,
    Cx,
    Lent,
    MrKeys,
    Udata,
    Umem,
    UserMrAttr, //
};

/// A registered piece of user memory, or all memory for the kernel.
pub(crate) struct Mr(Lent<Region>);

/// What the device has for a memory region.
struct Region {
    key: u32,
    _index: Id<Infallible>,
    /// None if the region is all memory.
    _umem: Option<Umem>,
}

/// Chooses the variants of keys.
///
/// A key is an index and an 8-bit variant. Indices come back after a while; that the variant
/// differs then makes the device refuse the old key.
pub(crate) struct KeyVariants(Atomic<u32>);

impl KeyVariants {
    pub(crate) fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Returns the key of `index`, 24 bits, with the next variant.
    fn key(&self, index: u32) -> u32 {
        let variant = self.0.fetch_add(1, Relaxed) & 0xff;
        index << 8 | variant
    }
}

/// Rights that the device knows. Access by the owner of the region to write is one of them, to read
/// is always allowed.
const RIGHTS: [(Access, u32); 6] = [
    (Access::LOCAL_WRITE, access::LOCAL_WRITE),
    (Access::REMOTE_WRITE, access::REMOTE_WRITE),
    (Access::REMOTE_READ, access::REMOTE_READ),
    (Access::REMOTE_ATOMIC, access::REMOTE_ATOMIC),
    (Access::FLUSH_GLOBAL, access::FLUSH_GLOBAL),
    (Access::FLUSH_PERSISTENT, access::FLUSH_PERSISTENT),
];

/// Returns all rights that the device knows.
fn known() -> Access {
    RIGHTS
        .iter()
        .fold(Access::default(), |all, (right, _)| all.union(*right))
}

fn bits(wanted: Access) -> u32 {
    RIGHTS
        .iter()
        .filter(|(right, _)| wanted.contains(*right))
        .fold(0, |bits, (_, bit)| bits | bit)
}

/// Returns rights to a region as the device takes them.
///
/// # Errors
///
/// `EOPNOTSUPP` if there is one that no region can have, and that is not a mere hint.
pub(crate) fn rights(wanted: Access) -> Result<u32> {
    // What a device has no feature for the core has refused already.
    if wanted.beyond(known()) != 0 || wanted.contains(Access::FLUSH_PERSISTENT) {
        return Err(EOPNOTSUPP);
    }
    Ok(bits(wanted))
}

/// Returns rights of the peer of a queue pair as the device takes them.
///
/// To let a peer flush is to let it do nothing if the device, with these `features`, can not.
///
/// # Errors
///
/// As for [`rights`].
pub(crate) fn peer_rights(wanted: Access, features: u64) -> Result<u32> {
    /// A local one is the business of the memory region.
    const REMOTE: u32 = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
    const FLUSH: u32 = access::FLUSH_GLOBAL | access::FLUSH_PERSISTENT;

    if wanted.beyond(known()) != 0 {
        return Err(EOPNOTSUPP);
    }
    let possible = if features & feature::FLUSH != 0 {
        REMOTE | FLUSH
    } else {
        REMOTE
    };
    Ok(bits(wanted) & possible)
}

impl Mr {
    fn reg_user(cx: &Cx<'_, Qiao>, pdn: u32, attr: &UserMrAttr, udata: &mut Udata) -> Result<Self> {
        let hca = cx.data().hca();
        let caps = hca.caps();
        let rights = rights(attr.access)?;
        // The core takes any length. The device takes 0 for an error, which must not be left to it:
        // other devices took it for "no bound".
        if attr.length == 0 || attr.length > caps.max_mr_size.get() {
            return Err(EINVAL);
        }
        let len = usize::try_from(attr.length)?;

        let index = hca.keys().reserve()?;
        let key = cx.data().key_variants().key(index.get());
        let mut umem = Umem::pin(cx.device(), attr.start, len, attr.access)?;
        let tables = PageTables::new(
            hca.pdev().as_ref(),
            &umem.blocks(caps.page_sizes.get(), attr.iova)?,
        )?;

        let mut cmd = CreateMkey::zeroed();
        cmd.key.set(key);
        cmd.pdn.set(pdn);
        cmd.access.set(rights);
        cmd.start.set(attr.iova);
        cmd.length.set(attr.length);
        cmd.pages = tables.list();
        let region = Region {
            key,
            _index: index,
            _umem: Some(umem),
        };
        object::create(hca, &cmd, region, tables, |_| udata.no_io()).map(Self)
    }

    fn get_dma(cx: &Cx<'_, Qiao>, pdn: u32, access: Access) -> Result<Self> {
        let hca = cx.data().hca();
        let index = hca.keys().reserve()?;
        let key = cx.data().key_variants().key(index.get());
        let mut cmd = CreateMkey::zeroed();
        cmd.key.set(key);
        cmd.pdn.set(pdn);
        cmd.access.set(rights(access)?);
        cmd.flags.set(mkey_flag::PHYSICAL);
        let region = Region {
            key,
            _index: index,
            _umem: None,
        };
        object::create(hca, &cmd, region, (), |_| Ok(())).map(Self)
    }
}

impl Object for Region {
    type Destroy = DestroyMkey;

    fn destroy_command(&self) -> DestroyMkey {
        let mut cmd = DestroyMkey::zeroed();
        cmd.key.set(self.key);
        cmd
    }
}

impl rdma::MrOps for Mr {
    type Driver = Qiao;

    fn reg_user(
        cx: &Cx<'_, Qiao>,
        pd: &rdma::Pd<Qiao>,
        attr: &UserMrAttr,
        udata: &mut Udata,
    ) -> impl PinInit<Self, Error> {
        Self::reg_user(cx, pd.pdn(), attr, udata)
    }

    fn get_dma(
        cx: &Cx<'_, Qiao>,
        pd: &rdma::Pd<Qiao>,
        access: Access,
    ) -> impl PinInit<Self, Error> {
        Self::get_dma(cx, pd.pdn(), access)
    }

    fn keys(&self) -> MrKeys {
        MrKeys {
            lkey: self.0.key,
            rkey: self.0.key,
        }
    }

    fn dereg(mr: &rdma::Mr<Qiao>, cx: &Cx<'_, Qiao>) {
        object::destroy(cx.data().hca(), &mr.0);
    }
}
