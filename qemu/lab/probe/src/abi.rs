// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The driver's part of the requests and responses: what bindgen makes of `uapi/rdma/qiao-abi.h`.
#![allow(dead_code, missing_docs, non_camel_case_types)]

include!(concat!(env!("OUT_DIR"), "/qiao_abi.rs"));
