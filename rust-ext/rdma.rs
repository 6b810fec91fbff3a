// SPDX-License-Identifier: GPL-2.0

//! Safe Rust over the RDMA core, and what the `kernel` crate lacks for a host channel adapter.
//!
//! The folder `rdma/` is the RDMA core; it becomes a crate of its own upstream, since `ib_core` is
//! a module in every distribution and the `kernel` crate can not call into modules. The other
//! folders are named after the modules of `kernel` that they extend.

use rdma_bindings as bindings;

pub mod dma;
pub mod pci;
mod raw;
pub mod sync;
mod rdma {
    mod ah;
    mod attr;
    mod cq;
    mod device;
    mod event;
    mod gate;
    mod mad;
    mod mr;
    mod object;
    mod pd;
    mod qp;
    mod qp_attr;
    mod srq;
    mod stats;
    mod ucontext;
    mod udata;
    mod umem;
    mod wc;
    mod wr;

    pub use self::{
        ah::{
            Ah,
            AhAttr,
            AhOps,
            GlobalRoute, //
        },
        attr::{
            Access,
            AtomicCap,
            DeviceAttr,
            FwVersion,
            Gid,
            Guid,
            Mtu,
            PhysState,
            PortAttr,
            PortImmutable,
            PortState, //
        },
        cq::{
            Cq,
            CqInitAttr,
            CqOps, //
        },
        device::{
            Cx,
            Device,
            DeviceInfo,
            Driver,
            Registration,
            UnregisteredDevice, //
        },
        event::{
            CqEvent,
            CqHandle,
            DeviceEvent,
            DeviceHandle,
            EventCx,
            PortEvent,
            QpEvent,
            QpHandle,
            SrqEvent,
            SrqHandle, //
        },
        mad::{
            Mad,
            MadRequest,
            PortModify, //
        },
        mr::{
            Mr,
            MrKeys,
            MrOps,
            UserMrAttr, //
        },
        object::{
            Lent,
            Obj,
            RawObject, //
        },
        pd::{
            Pd,
            PdOps, //
        },
        qp::{
            Qp,
            QpInitAttr,
            QpOps,
            QpQuery, //
        },
        qp_attr::{
            QpAttr,
            QpCap,
            QpMask,
            QpModify,
            QpState,
            QpType, //
        },
        srq::{
            Srq,
            SrqAttr,
            SrqOps, //
        },
        stats::PortCounter,
        ucontext::{
            IoPages,
            MmapHandle,
            Ucontext,
            UcontextHandle,
            UcontextOps, //
        },
        udata::Udata,
        umem::{
            BlockIter,
            Blocks,
            Umem, //
        },
        wc::{
            Notify,
            Wc,
            WcOpcode,
            WcSource,
            WcStatus,
            Wcs, //
        },
        wr::{
            Destination,
            RecvWr,
            RecvWrs,
            Remote,
            SendFlags,
            SendOp,
            SendWr,
            SendWrs,
            Sge, //
        }, //
    };
}

pub use self::rdma::*;
