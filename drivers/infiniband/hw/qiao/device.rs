// SPDX-License-Identifier: GPL-2.0

//! The RDMA device.

use crate::{
    ah::Ah,
    counters,
    cq::Cq,
    hca::Hca,
    mad,
    mr::{
        KeyVariants,
        Mr, //
    },
    pd::Pd,
    port::Ports,
    qp::Qp,
    srq::Srq,
    table::{
        FIRST_KEY,
        FIRST_QPN,
        FIRST_SRQN, //
    },
    ucontext::Context, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use qiao_hw::caps::feature;
use rdma::{
    AtomicCap,
    Cx,
    DeviceAttr,
    DeviceInfo,
    FwVersion,
    Gid,
    Guid,
    Mad,
    MadRequest,
    PortAttr,
    PortCounter,
    PortImmutable,
    PortModify, //
};

/// The driver as the RDMA core knows it.
pub(crate) struct Qiao;

/// What operations of the RDMA device work with.
pub(crate) struct Data<'a> {
    hca: Arc<Hca<'a>>,
    ports: Ports,
    key_variants: KeyVariants,
}

impl<'a> Data<'a> {
    /// # Errors
    ///
    /// As for [`Ports::new`].
    pub(crate) fn new(hca: Arc<Hca<'a>>) -> Result<Self> {
        let ports = Ports::new(&hca)?;
        Ok(Self {
            hca,
            ports,
            key_variants: KeyVariants::new(),
        })
    }

    pub(crate) fn hca(&self) -> &Hca<'a> {
        &self.hca
    }

    pub(crate) fn key_variants(&self) -> &KeyVariants {
        &self.key_variants
    }

    /// Returns what the registration says about the device.
    pub(crate) fn info(&self) -> DeviceInfo {
        let caps = self.hca.caps();
        DeviceInfo {
            node_guid: Guid(caps.node_guid.get()),
            ports: caps.num_ports,
            comp_vectors: self.hca.comp_vectors(),
        }
    }
}

/// Returns `2^log`, or the largest number below that of the type.
fn pow2(log: u8) -> u32 {
    1u32.checked_shl(u32::from(log)).unwrap_or(u32::MAX)
}

impl rdma::Driver for Qiao {
    type Data<'a> = Data<'a>;
    type Ucontext = Context;
    type Pd = Pd;
    type Ah = Ah;
    type Cq = Cq;
    type Qp = Qp;
    type Srq = Srq;
    type Mr = Mr;
    type OwnerModule = crate::LocalModule;

    const NAME: &'static CStr = c"qiao_%d";
    const UVERBS_ABI_VER: u32 = qiao_abi::QIAO_ABI_VERSION;
    const PORT_COUNTERS: &'static [PortCounter] = &counters::NAMES;

    fn query_device(cx: &Cx<'_, Self>) -> Result<DeviceAttr> {
        let caps = cx.data().hca().caps();
        let max_qp = pow2(caps.log_max_qp).saturating_sub(FIRST_QPN);
        let max_sge = u32::from(caps.max_sge.get());
        let has = |feature| cx.data().hca().has(feature);
        let srq = |n| if has(feature::SRQ) { n } else { 0 };
        Ok(DeviceAttr {
            fw_ver: caps.fw_version.get(),
            sys_image_guid: Guid(caps.sys_image_guid.get()),
            vendor_id: caps.vendor_id.get(),
            vendor_part_id: caps.vendor_part.get(),
            hw_ver: caps.hw_version.get(),
            max_mr_size: caps.max_mr_size.get(),
            page_size_cap: caps.page_sizes.get(),
            max_qp,
            max_qp_wr: pow2(caps.log_max_sq_blocks.min(caps.log_max_rq_wqes)),
            max_send_sge: max_sge,
            max_recv_sge: max_sge,
            max_sge_rd: max_sge,
            max_cq: pow2(caps.log_max_cq),
            max_cqe: pow2(caps.log_max_cqe),
            max_mr: pow2(caps.log_max_key).saturating_sub(FIRST_KEY),
            max_srq: srq(pow2(caps.log_max_srq).saturating_sub(FIRST_SRQN)),
            max_srq_wr: srq(pow2(caps.log_max_rq_wqes)),
            max_srq_sge: srq(max_sge),
            max_pd: pow2(caps.log_max_pd),
            // Only memory limits them; the core and libraries take this as signed.
            max_ah: i32::MAX.unsigned_abs(),
            max_qp_rd_atom: u32::from(caps.max_dest_rd_atomic),
            max_res_rd_atom: max_qp.saturating_mul(u32::from(caps.max_dest_rd_atomic)),
            max_qp_init_rd_atom: u32::from(caps.max_rd_atomic),
            atomic_cap: if has(feature::ATOMIC) {
                AtomicCap::Device
            } else {
                AtomicCap::None
            },
            atomic_write: has(feature::ATOMIC_WRITE),
            flush_global: has(feature::FLUSH),
            max_pkeys: cx.data().ports.max_pkeys(),
            local_ca_ack_delay: caps.local_ack_delay,
        })
    }

    fn fw_version(cx: &Cx<'_, Self>) -> FwVersion {
        let version = cx.data().hca().caps().fw_version.get();
        // CAST: Each to the bits that the interface gives it.
        FwVersion {
            major: (version >> 32) as u32,
            minor: (version >> 16) as u16,
            patch: version as u16,
        }
    }

    fn query_port(cx: &Cx<'_, Self>, port: u32) -> Result<PortAttr> {
        cx.data().ports.query(cx.data().hca(), port)
    }

    fn port_immutable(cx: &Cx<'_, Self>, port: u32) -> Result<PortImmutable> {
        cx.data().ports.immutable(cx.data().hca(), port)
    }

    fn query_gid(cx: &Cx<'_, Self>, port: u32, index: u32) -> Result<Gid> {
        cx.data().ports.gid(cx.data().hca(), port, index)
    }

    fn query_pkey(cx: &Cx<'_, Self>, port: u32, index: u16) -> Result<u16> {
        cx.data().ports.pkey(cx.data().hca(), port, index)
    }

    fn query_port_counters(cx: &Cx<'_, Self>, port: u32, values: &mut [u64]) -> Result {
        counters::read(cx.data().hca(), u8::try_from(port)?, values)
    }

    fn modify_port(cx: &Cx<'_, Self>, port: u32, modify: &PortModify) -> Result {
        cx.data().ports.modify(cx.data().hca(), port, modify)
    }

    fn process_mad(cx: &Cx<'_, Self>, port: u32, request: &MadRequest) -> Result<Option<Mad>> {
        mad::process(cx.data().hca(), u8::try_from(port)?, request)
    }
}
