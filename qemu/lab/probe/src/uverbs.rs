// SPDX-License-Identifier: GPL-2.0 OR MIT

//! System calls of `/dev/infiniband/uverbs*` by `write()`, as `rdma/ib_user_verbs.h` describes them, with no library between
//! that would refuse to be called wrongly.
//!
//! The requests of the core are written down here anew: their C types end in flexible arrays, which no safe Rust type has. A
//! mistake in them makes the calls fail that must work.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use memmap2::{MmapOptions, MmapRaw};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{
    abi::{
        qiao_alloc_pd_resp, qiao_alloc_ucontext_resp, qiao_create_cq_req, qiao_create_cq_resp,
        qiao_create_qp_req, qiao_create_qp_resp,
    },
    memory::{Arena, PAGE},
};

pub mod srq;

/// Numbers of the commands, `IB_USER_VERBS_CMD_*`.
pub mod command {
    pub const GET_CONTEXT: u32 = 0;
    pub const ALLOC_PD: u32 = 3;
    pub const DEALLOC_PD: u32 = 4;
    pub const REG_MR: u32 = 9;
    pub const DEREG_MR: u32 = 13;
    pub const CREATE_CQ: u32 = 18;
    pub const DESTROY_CQ: u32 = 20;
    pub const CREATE_QP: u32 = 24;
    pub const MODIFY_QP: u32 = 26;
    pub const DESTROY_QP: u32 = 27;
    pub const CREATE_SRQ: u32 = 32;
    pub const MODIFY_SRQ: u32 = 33;
    pub const DESTROY_SRQ: u32 = 35;
    /// In the command word: one with a longer header.
    pub const EXTENDED: u32 = 0x8000_0000;
}

/// Bits of `access_flags`, `IB_UVERBS_ACCESS_*`.
pub mod access {
    pub const LOCAL_WRITE: u32 = 1 << 0;
    pub const REMOTE_WRITE: u32 = 1 << 1;
    pub const REMOTE_READ: u32 = 1 << 2;
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    pub const MW_BIND: u32 = 1 << 4;
    pub const ZERO_BASED: u32 = 1 << 5;
    pub const ON_DEMAND: u32 = 1 << 6;
    pub const FLUSH_GLOBAL: u32 = 1 << 8;
    pub const FLUSH_PERSISTENT: u32 = 1 << 9;
    /// The first of those that a kernel may ignore.
    pub const RELAXED_ORDERING: u32 = 1 << 20;
}

/// Bits of `attr_mask` and values of states, as in `enum ib_qp_attr_mask` and `enum ib_qp_state`.
pub mod qp {
    pub const STATE: u32 = 1 << 0;
    pub const ACCESS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const DEST_QPN: u32 = 1 << 20;
    /// Beyond all that the kernel has.
    pub const UNKNOWN: u32 = 1 << 30;
    pub const TO_INIT: u32 = STATE | PKEY_INDEX | PORT | ACCESS;
    pub const TO_RTR: u32 =
        STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;

    pub const INIT: u8 = 1;
    pub const RTR: u8 = 2;
    pub const RTS: u8 = 3;
    pub const ERR: u8 = 6;
}

/// `IB_UVERBS_QPT_RC`.
pub const QPT_RC: u8 = 2;

/// A command before it is sent. Everything may be changed to what is not allowed.
#[derive(Clone, Debug)]
pub struct Call {
    /// The command word.
    pub command: u32,
    /// Request of the core, without the address of the response.
    pub request: Vec<u8>,
    /// Request of the driver.
    pub driver: Vec<u8>,
    /// Bytes of the responses of the core and of the driver, if the command has one.
    pub response: Option<(usize, usize)>,
    /// Where the response goes, if not to a good place.
    pub response_at: Option<u64>,
}

impl Call {
    fn new(command: u32, request: &(impl IntoBytes + Immutable)) -> Self {
        Self {
            command,
            request: request.as_bytes().to_vec(),
            driver: Vec::new(),
            response: None,
            response_at: None,
        }
    }

    fn with_driver(mut self, request: &(impl IntoBytes + Immutable)) -> Self {
        self.driver = request.as_bytes().to_vec();
        self
    }

    fn answered<Core, Driver>(mut self) -> Self {
        self.response = Some((size_of::<Core>(), size_of::<Driver>()));
        self
    }

    /// The same with the response at `address`.
    pub fn to(&self, address: u64) -> Self {
        Self {
            response_at: Some(address),
            ..self.clone()
        }
    }

    fn encode(&self, good_response: u64) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        let mut out = 0;
        if let Some((core, driver)) = self.response {
            out = core + driver;
            bytes.extend(self.response_at.unwrap_or(good_response).to_le_bytes());
        }
        bytes.extend(&self.request);
        bytes.extend(&self.driver);
        let words = |bytes: usize| (bytes / 4) as u16;
        let in_words = words(bytes.len());
        bytes[..4].copy_from_slice(&self.command.to_le_bytes());
        bytes[4..6].copy_from_slice(&in_words.to_le_bytes());
        bytes[6..8].copy_from_slice(&words(out).to_le_bytes());
        bytes
    }
}

/// `struct ib_uverbs_alloc_pd_resp` and others that are a handle and nothing else.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Handle {
    pub handle: u32,
}

/// `struct ib_uverbs_get_context_resp`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub struct ContextResponse {
    pub async_fd: u32,
    pub num_comp_vectors: u32,
}

/// `struct ib_uverbs_reg_mr`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct RegMr {
    pub start: u64,
    pub length: u64,
    pub hca_va: u64,
    pub pd_handle: u32,
    pub access_flags: u32,
}

/// `struct ib_uverbs_reg_mr_resp`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub struct RegMrResponse {
    pub mr_handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

impl RegMr {
    /// The call.
    pub fn call(&self) -> Call {
        Call::new(command::REG_MR, self).answered::<RegMrResponse, ()>()
    }
}

/// `struct ib_uverbs_create_cq`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
struct CreateCqCore {
    user_handle: u64,
    cqe: u32,
    comp_vector: u32,
    comp_channel: i32,
    reserved: u32,
}

/// `struct ib_uverbs_create_cq_resp`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub struct CreateCqResponse {
    pub cq_handle: u32,
    pub cqe: u32,
}

/// What a CQ is made of.
#[derive(Clone, Copy, Debug)]
pub struct CreateCq {
    pub cqe: u32,
    pub comp_vector: u32,
    pub comp_channel: i32,
    pub driver: qiao_create_cq_req,
}

impl CreateCq {
    /// A good one of 16 entries at `buffer`.
    pub fn good(buffer: u64) -> Self {
        Self {
            cqe: 16,
            comp_vector: 0,
            comp_channel: -1,
            driver: qiao_create_cq_req {
                comp_mask: 0,
                buf_addr: buffer,
                log_entries: 4,
                reserved: [0; 7],
            },
        }
    }

    /// The call.
    pub fn call(&self) -> Call {
        let core = CreateCqCore {
            user_handle: 0,
            cqe: self.cqe,
            comp_vector: self.comp_vector,
            comp_channel: self.comp_channel,
            reserved: 0,
        };
        Call::new(command::CREATE_CQ, &core)
            .with_driver(&self.driver)
            .answered::<CreateCqResponse, qiao_create_cq_resp>()
    }
}

/// `struct ib_uverbs_create_qp`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct CreateQpCore {
    pub user_handle: u64,
    pub pd_handle: u32,
    pub send_cq_handle: u32,
    pub recv_cq_handle: u32,
    pub srq_handle: u32,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
    pub sq_sig_all: u8,
    pub qp_type: u8,
    pub is_srq: u8,
    pub reserved: u8,
}

/// `struct ib_uverbs_create_qp_resp`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub struct CreateQpResponse {
    pub qp_handle: u32,
    pub qpn: u32,
    pub caps: [u32; 5],
    pub reserved: u32,
}

/// What a QP is made of.
#[derive(Clone, Copy, Debug)]
pub struct CreateQp {
    pub core: CreateQpCore,
    pub driver: qiao_create_qp_req,
}

impl CreateQp {
    /// A good RC QP of 16 small send requests and 16 small receive requests, with its rings at `buffer`.
    pub fn good(pd: u32, cq: u32, buffer: u64) -> Self {
        Self {
            core: CreateQpCore {
                user_handle: 0,
                pd_handle: pd,
                send_cq_handle: cq,
                recv_cq_handle: cq,
                srq_handle: 0,
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
                sq_sig_all: 0,
                qp_type: QPT_RC,
                is_srq: 0,
                reserved: 0,
            },
            driver: qiao_create_qp_req {
                comp_mask: 0,
                buf_addr: buffer,
                log_sq_blocks: 4,
                log_rq_wqes: 4,
                log_rq_stride: 5,
                reserved: [0; 5],
            },
        }
    }

    /// The call.
    pub fn call(&self) -> Call {
        Call::new(command::CREATE_QP, &self.core)
            .with_driver(&self.driver)
            .answered::<CreateQpResponse, qiao_create_qp_resp>()
    }
}

/// `struct ib_uverbs_qp_dest`.
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub struct QpDest {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub dlid: u16,
    pub reserved: u16,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ib_uverbs_modify_qp`.
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub struct ModifyQp {
    pub dest: QpDest,
    pub alt_dest: QpDest,
    pub qp_handle: u32,
    pub attr_mask: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub qp_state: u8,
    pub cur_qp_state: u8,
    pub path_mtu: u8,
    pub path_mig_state: u8,
    pub en_sqd_async_notify: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub reserved: [u8; 2],
}

impl ModifyQp {
    /// From RESET to INIT on port 1.
    pub fn to_init(qp: u32) -> Self {
        Self {
            qp_handle: qp,
            attr_mask: qp::TO_INIT,
            qp_state: qp::INIT,
            port_num: 1,
            qp_access_flags: access::REMOTE_WRITE,
            ..Self::default()
        }
    }

    /// From INIT to RTR, connected to some QP.
    pub fn to_rtr(qp: u32) -> Self {
        Self {
            qp_handle: qp,
            attr_mask: qp::TO_RTR,
            qp_state: qp::RTR,
            path_mtu: 3,
            dest_qp_num: 0x1234,
            max_dest_rd_atomic: 1,
            dest: QpDest {
                dlid: 1,
                port_num: 1,
                ..QpDest::default()
            },
            ..Self::default()
        }
    }

    /// To ERR, from any state.
    pub fn to_err(qp: u32) -> Self {
        Self {
            qp_handle: qp,
            attr_mask: qp::STATE,
            qp_state: qp::ERR,
            ..Self::default()
        }
    }

    /// The call.
    pub fn call(&self) -> Call {
        Call::new(command::MODIFY_QP, self)
    }
}

/// Allocates a PD.
pub fn alloc_pd() -> Call {
    Call::new(command::ALLOC_PD, &[0u8; 0]).answered::<Handle, qiao_alloc_pd_resp>()
}

/// Gets a context.
pub fn get_context() -> Call {
    Call::new(command::GET_CONTEXT, &[0u8; 0])
        .answered::<ContextResponse, qiao_alloc_ucontext_resp>()
}

/// Frees a PD.
pub fn dealloc_pd(handle: u32) -> Call {
    Call::new(command::DEALLOC_PD, &Handle { handle })
}

/// Deregisters an MR.
pub fn dereg_mr(handle: u32) -> Call {
    Call::new(command::DEREG_MR, &Handle { handle })
}

/// Destroys a CQ.
pub fn destroy_cq(handle: u32) -> Call {
    Call::new(command::DESTROY_CQ, &[handle, 0]).answered::<[u32; 2], ()>()
}

/// Destroys a QP.
pub fn destroy_qp(handle: u32) -> Call {
    Call::new(command::DESTROY_QP, &[handle, 0]).answered::<u32, ()>()
}

/// An open device file.
#[derive(Debug)]
pub struct Uverbs {
    file: File,
    responses: Arena,
}

impl Uverbs {
    /// Opens the device file without getting a context.
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .with_context(|| format!("opening {}", path.display()))?;
        Ok(Self {
            file,
            responses: Arena::new()?,
        })
    }

    /// Writes `bytes` as they are.
    pub fn write(&self, bytes: &[u8]) -> Result<(), Errno> {
        match (&self.file).write(bytes) {
            Ok(written) => {
                assert_eq!(written, bytes.len(), "the core takes a command whole");
                Ok(())
            }
            Err(error) => Err(Errno::from_io_error(&error).expect("write() fails with an errno")),
        }
    }

    /// The bytes that [`call`](Self::call) writes.
    pub fn encode(&self, call: &Call) -> Vec<u8> {
        call.encode(self.responses.writable())
    }

    /// Makes a call; the responses of the core and of the driver.
    pub fn call(&mut self, call: &Call) -> Result<Vec<u8>, Errno> {
        self.write(&self.encode(call))?;
        let (core, driver) = call.response.unwrap_or_default();
        Ok(self.responses.bytes()[..core + driver].to_vec())
    }

    /// Makes a call with a response that starts with a `T`.
    pub fn ask<T: FromBytes>(&mut self, call: &Call) -> Result<T, Errno> {
        let bytes = self.call(call)?;
        let (value, _) =
            T::read_from_prefix(&bytes).expect("calls name the size of their response");
        Ok(value)
    }

    /// Makes a call with a response of the core, and one of the driver.
    pub fn ask_both<C: FromBytes, D: FromBytes>(&mut self, call: &Call) -> Result<(C, D), Errno> {
        let bytes = self.call(call)?;
        let (core, rest) =
            C::read_from_prefix(&bytes).expect("calls name the size of their response");
        let (driver, _) = D::read_from_prefix(rest).expect("calls name the size of their response");
        Ok((core, driver))
    }

    /// Maps `pages` pages at `offset`.
    pub fn map(&self, offset: u64, pages: u64) -> Result<MmapRaw, Errno> {
        MmapOptions::new()
            .offset(offset)
            .len((pages * PAGE) as usize)
            .map_raw(&self.file)
            .map_err(|error| Errno::from_io_error(&error).expect("mmap() fails with an errno"))
    }
}

/// An open device file with a context.
#[derive(Debug)]
pub struct Context {
    /// The file.
    pub dev: Uverbs,
    /// Number of the file that asynchronous events come from.
    pub async_fd: i32,
    /// What the driver says that may be asked for.
    pub limits: qiao_alloc_ucontext_resp,
}

impl Context {
    /// Opens the device file and gets a context.
    pub fn open(path: &Path) -> Result<Self> {
        let mut dev = Uverbs::open(path)?;
        let (core, limits): (ContextResponse, _) =
            dev.ask_both(&get_context()).context("getting a context")?;
        Ok(Self {
            dev,
            async_fd: i32::try_from(core.async_fd)?,
            limits,
        })
    }

    /// Allocates a PD and returns its handle.
    pub fn pd(&mut self) -> Result<u32, Errno> {
        Ok(self.dev.ask::<Handle>(&alloc_pd())?.handle)
    }

    /// Creates a CQ and returns its handle.
    pub fn cq(&mut self, cq: &CreateCq) -> Result<u32, Errno> {
        Ok(self.dev.ask::<CreateCqResponse>(&cq.call())?.cq_handle)
    }

    /// Creates a QP and returns its handle.
    pub fn qp(&mut self, qp: &CreateQp) -> Result<u32, Errno> {
        Ok(self.dev.ask::<CreateQpResponse>(&qp.call())?.qp_handle)
    }

    /// Creates an SRQ and returns its handle.
    pub fn srq(&mut self, srq: &srq::CreateSrq) -> Result<u32, Errno> {
        let response: srq::CreateSrqResponse = self.dev.ask(&srq.call())?;
        Ok(response.srq_handle)
    }

    /// Registers memory and returns the handle of the MR.
    pub fn mr(&mut self, mr: &RegMr) -> Result<u32, Errno> {
        Ok(self.dev.ask::<RegMrResponse>(&mr.call())?.mr_handle)
    }
}

/// The device file of an RDMA device, by its name in sysfs.
pub fn device_file(name: &str) -> Result<PathBuf> {
    let dir = PathBuf::from(format!(
        "/sys/class/infiniband/{name}/device/infiniband_verbs"
    ));
    let entry = std::fs::read_dir(&dir)
        .with_context(|| format!("reading {}", dir.display()))?
        .next()
        .context("the device has no file for user space")??;
    Ok(Path::new("/dev/infiniband").join(entry.file_name()))
}
