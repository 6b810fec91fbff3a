// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Calls of shared receive queues.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{command, Call};
use crate::abi::{qiao_create_srq_req, qiao_create_srq_resp};

/// `struct ib_uverbs_create_srq`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct CreateSrqCore {
    pub user_handle: u64,
    pub pd_handle: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

/// `struct ib_uverbs_create_srq_resp`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub struct CreateSrqResponse {
    pub srq_handle: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    pub srqn: u32,
}

/// What an SRQ is made of.
#[derive(Clone, Copy, Debug)]
pub struct CreateSrq {
    pub core: CreateSrqCore,
    pub driver: qiao_create_srq_req,
}

impl CreateSrq {
    /// A good one of 16 small requests, at `buffer`.
    pub fn good(pd: u32, buffer: u64) -> Self {
        Self {
            core: CreateSrqCore {
                user_handle: 0,
                pd_handle: pd,
                max_wr: 16,
                max_sge: 1,
                // Irrelevant: ibv_create_srq(3).
                srq_limit: u32::MAX,
            },
            driver: qiao_create_srq_req {
                comp_mask: 0,
                buf_addr: buffer,
                log_wqes: 4,
                log_stride: 5,
                reserved: [0; 6],
            },
        }
    }

    /// The call.
    pub fn call(&self) -> Call {
        Call::new(command::CREATE_SRQ, &self.core)
            .with_driver(&self.driver)
            .answered::<CreateSrqResponse, qiao_create_srq_resp>()
    }
}

/// `struct ib_uverbs_modify_srq`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct ModifySrq {
    pub srq_handle: u32,
    pub attr_mask: u32,
    pub max_wr: u32,
    pub srq_limit: u32,
}

/// Bits of `attr_mask`, as in `enum ib_srq_attr_mask`.
pub mod attr {
    pub const MAX_WR: u32 = 1 << 0;
    pub const LIMIT: u32 = 1 << 1;
}

impl ModifySrq {
    /// The call.
    pub fn call(&self) -> Call {
        Call::new(command::MODIFY_SRQ, self)
    }
}

/// Destroys an SRQ.
pub fn destroy_srq(handle: u32) -> Call {
    Call::new(command::DESTROY_SRQ, &[handle, 0]).answered::<u32, ()>()
}
