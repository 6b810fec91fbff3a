// SPDX-License-Identifier: GPL-2.0

//! Management datagrams that agents of the device answer.

use crate::hca::Hca;
use kernel::prelude::*;
use qiao_hw::cmd::{
    mad_flag,
    ExecMad,
    MAD_SIZE, //
};
use rdma::{
    dma::Ring,
    Mad,
    MadRequest, //
};

static_assert!(Mad::SIZE == MAD_SIZE);

/// Attribute of subnet managers (IBTA vol. 1, 14.2.5.13), which no agent has.
const SM_INFO: u16 = 0x20;

/// Where the host's own datagrams come from: the permissive LID (IBTA vol. 1, 4.1.3).
const PERMISSIVE_LID: u32 = 0xffff;

/// Places of the request and of the response in their buffer.
const REQUEST: u32 = 0;
const RESPONSE: u32 = 1;

/// Returns whether the device has an agent for a datagram. All others go to the host's agents, and
/// the device need not be asked.
fn is_for_agent(mad: &Mad) -> bool {
    if !matches!(mad.method(), Mad::METHOD_GET | Mad::METHOD_SET) {
        return false;
    }
    match mad.class() {
        Mad::CLASS_SUBN_LID_ROUTED | Mad::CLASS_SUBN_DIRECTED => mad.attribute() != SM_INFO,
        Mad::CLASS_PERFORMANCE => true,
        _ => false,
    }
}

/// Has an agent of the port answer a datagram; [`None`] if none does. May sleep.
///
/// # Errors
///
/// `ENOMEM`, or that of the command.
pub(crate) fn process(hca: &Hca<'_>, port: u8, request: &MadRequest) -> Result<Option<Mad>> {
    if !is_for_agent(&request.mad) {
        return Ok(None);
    }
    let buffer = Ring::<[u8; MAD_SIZE]>::new(hca.pdev().as_ref(), 1)?;
    buffer.write(REQUEST, &request.mad.0);
    let mut cmd = ExecMad::zeroed();
    cmd.port = port;
    if request.ignore_mkey {
        cmd.flags |= mad_flag::IGNORE_MKEY;
    }
    if request.ignore_bkey {
        cmd.flags |= mad_flag::IGNORE_BKEY;
    }
    cmd.slid.set(request.slid.unwrap_or(PERMISSIVE_LID));
    cmd.request.set(buffer.dma_address());
    cmd.response.set(buffer.dma_address() + MAD_SIZE as u64);
    let reply = hca.cmd().exec(&cmd)?;
    if reply.flags & mad_flag::RESPONSE == 0 {
        return Ok(None);
    }
    let mut answer = Mad(buffer.read(RESPONSE));
    if answer.class() == Mad::CLASS_SUBN_DIRECTED {
        answer.set_returning();
    }
    Ok(Some(answer))
}
