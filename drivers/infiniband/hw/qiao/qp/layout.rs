// SPDX-License-Identifier: GPL-2.0

//! Sizes of the rings of a queue pair.

use kernel::prelude::*;
use qiao_abi::qiao_create_qp_req;
use qiao_hw::{
    caps::Caps,
    cmd::CreateQp,
    wqe::{
        self,
        DataSeg,
        RecvCtrl,
        SendOpcode, //
    }, //
};
use rdma::{
    QpCap,
    QpType, //
};

/// Log2 of the bytes that a receive request may have.
const LOG_RQ_STRIDE: core::ops::RangeInclusive<u8> = 5..=12;

/// How the buffer of a queue pair is divided: the receive ring, and behind it the send ring.
pub(super) struct Layout {
    log_sq_blocks: u8,
    log_rq_wqes: u8,
    log_rq_stride: u8,
    sq_offset: u32,
    /// Bytes of the largest send request.
    max_sq_wqe: u32,
    /// Bytes of the buffer.
    pub(super) size: usize,
}

impl Layout {
    /// Checks what a user asks for.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is more than the part has, or if the rings are too small for it.
    pub(super) fn new(
        caps: &Caps,
        ty: QpType,
        cap: &QpCap,
        req: &qiao_create_qp_req,
    ) -> Result<Self> {
        let max_sge = u32::from(caps.max_sge.get());
        if req.log_sq_blocks > caps.log_max_sq_blocks
            || req.log_rq_wqes > caps.log_max_rq_wqes
            || !LOG_RQ_STRIDE.contains(&req.log_rq_stride)
            || cap.max_send_sge > max_sge
            || cap.max_recv_sge > max_sge
            || cap.max_inline_data > u32::from(caps.max_inline.get())
        {
            return Err(EINVAL);
        }
        let rq_bytes = Self::rq_bytes(cap, req)?;
        let max_sq_wqe = max_send_request(ty, cap)?;
        let sq_bytes = Self::sq_bytes(cap, req, max_sq_wqe)?;
        Ok(Self {
            log_sq_blocks: req.log_sq_blocks,
            log_rq_wqes: req.log_rq_wqes,
            log_rq_stride: req.log_rq_stride,
            sq_offset: u32::try_from(rq_bytes)?,
            max_sq_wqe: u32::try_from(max_sq_wqe)?,
            size: rq_bytes.checked_add(sq_bytes).ok_or(EINVAL)?,
        })
    }

    fn rq_bytes(cap: &QpCap, req: &qiao_create_qp_req) -> Result<usize> {
        let requests = power(req.log_rq_wqes)?;
        let stride = power(req.log_rq_stride)?;
        let needed = size_of::<DataSeg>()
            .checked_mul(usize::try_from(cap.max_recv_sge)?)
            .and_then(|n| n.checked_add(size_of::<RecvCtrl>()))
            .ok_or(EINVAL)?;
        if usize::try_from(cap.max_recv_wr)? > requests || needed > stride {
            return Err(EINVAL);
        }
        let bytes = requests.checked_mul(stride).ok_or(EINVAL)?;
        // The send ring starts behind.
        if bytes % wqe::BLOCK_SIZE != 0 {
            return Err(EINVAL);
        }
        Ok(bytes)
    }

    fn sq_bytes(cap: &QpCap, req: &qiao_create_qp_req, max_sq_wqe: usize) -> Result<usize> {
        let blocks = power(req.log_sq_blocks)?;
        if usize::try_from(cap.max_send_wr)? > blocks || wqe::blocks(max_sq_wqe) > blocks {
            return Err(EINVAL);
        }
        blocks.checked_mul(wqe::BLOCK_SIZE).ok_or(EINVAL)
    }

    /// Fills in the fields of the command that are about the rings.
    pub(super) fn fill(&self, cmd: &mut CreateQp) {
        cmd.log_sq_blocks = self.log_sq_blocks;
        cmd.log_rq_wqes = self.log_rq_wqes;
        cmd.log_rq_stride = self.log_rq_stride;
        cmd.rq_offset.set(0);
        cmd.sq_offset.set(self.sq_offset);
        cmd.max_sq_wqe.set(self.max_sq_wqe);
    }
}

fn power(log: u8) -> Result<usize> {
    1usize.checked_shl(u32::from(log)).ok_or(EINVAL)
}

/// Returns the bytes of the largest send request, be it by its data segments, its inline data, or
/// as an atomic operation.
///
/// # Errors
///
/// `EINVAL` if that is more than the size field of a request can say.
fn max_send_request(ty: QpType, cap: &QpCap) -> Result<usize> {
    let sges = usize::try_from(cap.max_send_sge)?;
    let inline = usize::try_from(cap.max_inline_data)?;
    let datagram = ty == QpType::Ud;
    let opcode = if datagram {
        SendOpcode::Send
    } else {
        SendOpcode::RdmaWrite
    };
    let mut bytes = wqe::sge_size(opcode, datagram, sges);
    if inline > 0 {
        bytes = bytes.max(wqe::inline_size(opcode, datagram, inline));
    }
    if ty == QpType::Rc && sges > 0 {
        bytes = bytes.max(wqe::sge_size(SendOpcode::CompareSwap, datagram, 1));
    }
    if bytes > wqe::SIZE_UNIT * usize::from(u8::MAX) {
        return Err(EINVAL);
    }
    Ok(bytes)
}
