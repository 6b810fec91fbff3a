// SPDX-License-Identifier: GPL-2.0

//! Driver of host channel adapters of the Qiao interface.

#![deny(unsafe_code)]

mod ah;
mod caps;
mod cc;
mod cmdq;
mod counters;
mod cq;
mod device;
mod doorbell;
mod driver;
mod eq;
mod fatal;
mod hal;
mod hca;
mod mad;
mod mr;
mod object;
mod page_list;
mod pd;
mod port;
mod qp;
mod recv;
mod srq;
mod table;
mod ucontext;

kernel::module_driver! {
    <T>, rdma::pci::Adapter<T>, {
        type: driver::QiaoDriver,
        name: "qiao",
        authors: ["The Qiao maintainers"],
        description: "Host channel adapters of the Qiao interface",
        license: "GPL",
    }
}
