// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the commands do.

use super::buffer::{Buffer, WalkError};
use super::core::Pd;
use super::mkey::{key_parts, rights_are_valid, Memory, Mkey};
use super::port::{self, path_is_valid, GIDS, HOST_CAPABILITIES};
use super::qp::{QueuePair, Side};
use super::queue::{Cq, Eq};
use super::rings::{Limits, Rings, Shape};
use super::slots::SlotOwner;
use super::Hca;
use crate::transport::MAX_MESSAGE;
use crate::transport::{self, ModifyError, Special};
use qiao_fabric::node::PKEYS;
use qiao_fabric::wire::Transport;
use qiao_hw::caps::Caps;
use qiao_hw::cmd::{
    cq_flag, mkey_flag, port_change, qp_flag, AllocPd, Command, Completion, CreateCq, CreateEq,
    CreateMkey, CreateQp, DeallocPd, DestroyCq, DestroyEq, DestroyMkey, DestroyQp, Entry, EqType,
    ExecMad, Gid, ModifyCq, ModifyPort, ModifyQp, NoReply, Opcode, Pkey, PortAttr, PortCounters,
    QueryGid, QueryPkey, QueryPort, QueryPortCounters, QueryQp, QueryQpReply, ResizeCq,
    ResizeCqReply, Status,
};
use qiao_hw::describe::reserved_is_zero;
use qiao_hw::doorbell::NO_SLOT;
use qiao_hw::event::Eqe;
use qiao_hw::pages::PageList;
use qiao_hw::qp::{attr, QpAttr, QpState, QpType};
use qiao_hw::queue::{self, CqLayout, RecvRing, BUFFER_ALIGN};
use qiao_hw::ring::RingSize;
use qiao_hw::wqe::{BLOCK_SIZE, SIZE_UNIT};

mod srq;

/// How a command failed.
type Refused = Status;

impl From<WalkError> for Refused {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::Operand => Self::BadOperand,
            WalkError::Resources => Self::NoResources,
            WalkError::Dma(_) => Self::DmaFault,
        }
    }
}

impl From<ModifyError> for Refused {
    fn from(error: ModifyError) -> Self {
        match error {
            ModifyError::State => Self::BadState,
            ModifyError::Attribute => Self::BadOperand,
        }
    }
}

fn require(condition: bool, otherwise: Refused) -> Result<(), Refused> {
    if condition {
        Ok(())
    } else {
        Err(otherwise)
    }
}

/// Checks a number that a command gives to a new object.
fn free_id(id: u32, log_max: u8, taken: bool) -> Result<(), Refused> {
    require(id < 1 << log_max, Status::BadOperand)?;
    require(!taken, Status::Exists)
}

fn ring_size(log: u8, log_max: u8) -> Result<RingSize, Refused> {
    require(log <= log_max, Status::BadOperand)?;
    RingSize::from_log(log).ok_or(Status::BadOperand)
}

/// Returns the transport of a type of QP, and what it is for; [`None`] if the device does not announce it.
fn service(qp_type: u8) -> Option<(Transport, Special)> {
    match QpType::from_wire(qp_type)? {
        QpType::Rc => Some((Transport::Rc, Special::None)),
        QpType::Uc => Some((Transport::Uc, Special::None)),
        QpType::Ud => Some((Transport::Ud, Special::None)),
        QpType::Smi => Some((Transport::Ud, Special::Smi)),
        QpType::Gsi => Some((Transport::Ud, Special::Gsi)),
        QpType::XrcIni | QpType::XrcTgt => None,
    }
}

impl Hca {
    /// Executes a command and returns its completion.
    pub(super) fn execute(&mut self, entry: &Entry, now: u64) -> Completion {
        let Some(opcode) = Opcode::from_wire(entry.opcode.get()) else {
            return Completion::new(entry.id.get(), Status::BadOpcode, &NoReply {});
        };
        match opcode {
            Opcode::Nop => nop(entry),
            Opcode::CreateEq => run(entry, |c| self.create_eq(c)),
            Opcode::DestroyEq => run(entry, |c| self.destroy_eq(c)),
            Opcode::AllocPd => run(entry, |c| self.alloc_pd(c)),
            Opcode::DeallocPd => run(entry, |c| self.dealloc_pd(c)),
            Opcode::CreateMkey => run(entry, |c| self.create_mkey(c)),
            Opcode::DestroyMkey => run(entry, |c| self.destroy_mkey(c)),
            Opcode::CreateCq => run(entry, |c| self.create_cq(c)),
            Opcode::DestroyCq => run(entry, |c| self.destroy_cq(c)),
            // Needs a feature that the device does not announce.
            Opcode::ModifyCq => run(entry, |_: ModifyCq| Err(Status::BadOpcode)),
            Opcode::ResizeCq => run(entry, |c| self.resize_cq(c)),
            Opcode::CreateQp => run(entry, |c| self.create_qp(c)),
            Opcode::DestroyQp => run(entry, |c| self.destroy_qp(c)),
            Opcode::ModifyQp => run(entry, |c| self.modify_qp(c, now)),
            Opcode::QueryQp => run(entry, |c| self.query_qp(c)),
            Opcode::CreateSrq => run(entry, |c| self.create_srq(c)),
            Opcode::DestroySrq => run(entry, |c| self.destroy_srq(c)),
            Opcode::ModifySrq => run(entry, |c| self.modify_srq(c)),
            Opcode::QuerySrq => run(entry, |c| self.query_srq(c)),
            Opcode::QueryPort => run(entry, |c| self.query_port(c)),
            Opcode::QueryGid => run(entry, |c| self.query_gid(c)),
            Opcode::QueryPkey => run(entry, |c| self.query_pkey(c)),
            Opcode::QueryPortCounters => run(entry, |c| self.query_port_counters(c)),
            Opcode::ModifyPort => run(entry, |c| self.modify_port(c)),
            Opcode::ExecMad => run(entry, |c: ExecMad| self.exec_mad(&c, now)),
        }
    }

    fn caps(&self) -> Caps {
        self.core.caps
    }

    fn walk(&self, list: &PageList, length: u64, alignment: u64) -> Result<Buffer, Refused> {
        let (sizes, left) = (self.caps().page_sizes.get(), self.core.pages_left());
        let buffer = Buffer::walk(&self.core.shared.dma, list, length, sizes, left)?;
        require(buffer.is_aligned(alignment), Status::BadOperand)?;
        Ok(buffer)
    }

    /// Checks that slots exist, differ and are free.
    fn free_slots(&self, slots: &[u32]) -> Result<(), Refused> {
        for (n, slot) in slots.iter().enumerate() {
            require(*slot < self.slots.count(), Status::BadOperand)?;
            require(!slots[..n].contains(slot), Status::BadOperand)?;
            require(!self.slots.is_bound(*slot), Status::Exists)?;
        }
        Ok(())
    }

    pub(super) fn port_index(&self, port: u8) -> Result<usize, Refused> {
        let index = usize::from(port).checked_sub(1).ok_or(Status::BadOperand)?;
        require(index < self.core.counters.len(), Status::BadOperand)?;
        Ok(index)
    }

    fn create_eq(&mut self, cmd: CreateEq) -> Result<NoReply, Refused> {
        let (caps, eqn) = (self.caps(), cmd.eqn.get());
        free_id(eqn, caps.log_max_eq, self.core.eqs.contains_key(&eqn))?;
        let eq_type = EqType::from_wire(cmd.eq_type).ok_or(Status::BadOperand)?;
        // Congestion reports need a feature that the device does not announce.
        require(eq_type != EqType::Congestion, Status::BadOperand)?;
        require(
            cmd.vector.get() < caps.num_vectors.get(),
            Status::BadOperand,
        )?;
        let second = self.core.eqs.values().any(|eq| eq.eq_type == EqType::Async);
        require(eq_type != EqType::Async || !second, Status::Exists)?;
        self.free_slots(&[cmd.slot.get()])?;
        let size = ring_size(cmd.log_entries, caps.log_max_eqe)?;
        let entry = size_of::<Eqe>() as u64;
        let ring = self.walk(&cmd.ring, u64::from(size.entries()) * entry, entry)?;
        self.core.ring_pages += ring.pages();
        self.slots.bind(cmd.slot.get(), SlotOwner::Eq(eqn));
        let eq = Eq::new(cmd.slot.get(), cmd.vector.get(), eq_type, ring, size);
        self.core.eqs.insert(eqn, eq);
        Ok(NoReply {})
    }

    fn destroy_eq(&mut self, cmd: DestroyEq) -> Result<NoReply, Refused> {
        let eqn = cmd.eqn.get();
        let eq = self.core.eqs.get(&eqn).ok_or(Status::NoSuchObject)?;
        require(eq.users == 0, Status::Busy)?;
        self.slots.unbind(eq.slot);
        self.core.ring_pages -= eq.pages();
        self.core.eqs.remove(&eqn);
        Ok(NoReply {})
    }

    fn alloc_pd(&mut self, cmd: AllocPd) -> Result<NoReply, Refused> {
        let pdn = cmd.pdn.get();
        free_id(
            pdn,
            self.caps().log_max_pd,
            self.core.pds.contains_key(&pdn),
        )?;
        self.core.pds.insert(pdn, Pd::default());
        Ok(NoReply {})
    }

    fn dealloc_pd(&mut self, cmd: DeallocPd) -> Result<NoReply, Refused> {
        let pd = self
            .core
            .pds
            .get(&cmd.pdn.get())
            .ok_or(Status::NoSuchObject)?;
        require(pd.users == 0, Status::Busy)?;
        self.core.pds.remove(&cmd.pdn.get());
        Ok(NoReply {})
    }

    fn use_pd(&mut self, pdn: u32) -> Result<&mut Pd, Refused> {
        self.core.pds.get_mut(&pdn).ok_or(Status::NoSuchObject)
    }

    fn create_mkey(&mut self, cmd: CreateMkey) -> Result<NoReply, Refused> {
        let (index, variant) = key_parts(cmd.key.get());
        require(cmd.key.get() != 0, Status::BadOperand)?;
        free_id(
            index,
            self.caps().log_max_key,
            self.core.mkeys.get(index).is_some(),
        )?;
        self.use_pd(cmd.pdn.get())?;
        require(rights_are_valid(cmd.access.get()), Status::BadOperand)?;
        require(reserved_is_zero(&cmd.pages), Status::BadOperand)?;
        let memory = match cmd.flags.get() {
            0 => self.region(&cmd)?,
            mkey_flag::PHYSICAL => {
                let plain = cmd.start.get() == 0 && cmd.length.get() == 0;
                require(plain && cmd.pages == PageList::zeroed(), Status::BadOperand)?;
                Memory::Physical
            }
            // Fast registration needs a feature that the device does not announce.
            _ => return Err(Status::BadOperand),
        };
        let (pdn, access) = (cmd.pdn.get(), cmd.access.get());
        let (start, length) = (cmd.start.get(), cmd.length.get());
        let mkey = Mkey {
            variant,
            pdn,
            access,
            start,
            length,
            memory,
        };
        self.core.mkeys.insert(index, mkey);
        self.use_pd(pdn)?.users += 1;
        Ok(NoReply {})
    }

    fn region(&self, cmd: &CreateMkey) -> Result<Memory, Refused> {
        let (start, length) = (cmd.start.get(), cmd.length.get());
        // The last byte, not the one behind it, must be within the address space.
        let last = length.checked_sub(1).and_then(|n| start.checked_add(n));
        require(last.is_some(), Status::BadOperand)?;
        require(length <= self.caps().max_mr_size.get(), Status::BadOperand)?;
        Ok(Memory::Pages(self.walk(&cmd.pages, length, 1)?))
    }

    fn destroy_mkey(&mut self, cmd: DestroyMkey) -> Result<NoReply, Refused> {
        let (index, variant) = key_parts(cmd.key.get());
        let mkey = self
            .core
            .mkeys
            .get(index)
            .filter(|mkey| mkey.variant == variant);
        let pdn = mkey.ok_or(Status::NoSuchObject)?.pdn;
        self.core.mkeys.remove(index);
        self.use_pd(pdn)?.users -= 1;
        Ok(NoReply {})
    }

    fn create_cq(&mut self, cmd: CreateCq) -> Result<NoReply, Refused> {
        let (caps, cqn, eqn) = (self.caps(), cmd.cqn.get(), cmd.eqn.get());
        free_id(cqn, caps.log_max_cq, self.core.cqs.contains_key(&cqn))?;
        let eq = self.core.eqs.get(&eqn).ok_or(Status::NoSuchObject)?;
        require(eq.eq_type == EqType::Completion, Status::BadOperand)?;
        require(
            cmd.flags.get() & !cq_flag::IGNORE_OVERRUN == 0,
            Status::BadOperand,
        )?;
        let immediate = cmd.moderation_count.get() <= 1 && cmd.moderation_usec.get() == 0;
        require(immediate, Status::BadOperand)?;
        self.free_slots(&[cmd.slot.get()])?;
        let size = ring_size(cmd.log_entries, caps.log_max_cqe)?;
        let length = CqLayout::of(size).size() as u64;
        let buffer = self.walk(&cmd.buffer, length, BUFFER_ALIGN)?;
        self.core.ring_pages += buffer.pages();
        self.slots.bind(cmd.slot.get(), SlotOwner::Cq(cqn));
        let ignore_overrun = cmd.flags.get() & cq_flag::IGNORE_OVERRUN != 0;
        let cq = Cq::new(eqn, cmd.slot.get(), buffer, size, ignore_overrun);
        self.core.cqs.insert(cqn, cq);
        self.core.eqs.get_mut(&eqn).ok_or(Status::Internal)?.users += 1;
        Ok(NoReply {})
    }

    fn destroy_cq(&mut self, cmd: DestroyCq) -> Result<NoReply, Refused> {
        let cqn = cmd.cqn.get();
        let cq = self.core.cqs.get(&cqn).ok_or(Status::NoSuchObject)?;
        require(cq.users == 0, Status::Busy)?;
        let eqn = cq.eqn;
        self.slots.unbind(cq.slot);
        self.core.ring_pages -= cq.pages();
        self.core.cqs.remove(&cqn);
        self.core.forget_cq_events(eqn, cqn);
        Ok(NoReply {})
    }

    fn resize_cq(&mut self, cmd: ResizeCq) -> Result<ResizeCqReply, Refused> {
        let cqn = cmd.cqn.get();
        let cq = self.core.cqs.get(&cqn).ok_or(Status::NoSuchObject)?;
        require(cq.error.is_none(), Status::BadState)?;
        let size = ring_size(cmd.log_entries, self.caps().log_max_cqe)?;
        let length = CqLayout::of(size).size() as u64;
        let buffer = self.walk(&cmd.buffer, length, BUFFER_ALIGN)?;
        let pages = buffer.pages();
        let cq = self.core.cqs.get_mut(&cqn).ok_or(Status::Internal)?;
        let before = cq.pages();
        let base = cq
            .resize(&self.core.shared.dma, buffer, size)
            .map_err(|_| Status::DmaFault)?
            .ok_or(Status::BadState)?;
        self.core.ring_pages = self.core.ring_pages + pages - before;
        let mut reply = ResizeCqReply::zeroed();
        reply.base.set(base);
        Ok(reply)
    }

    fn create_qp(&mut self, cmd: CreateQp) -> Result<NoReply, Refused> {
        let qpn = cmd.qpn.get();
        free_id(qpn, self.caps().log_max_qp, self.qps.contains_key(&qpn))?;
        // QP0 and QP1 are for management (IBTA 3.9.1), and other types need features that the device
        // does not announce.
        require(qpn > 1, Status::BadOperand)?;
        let (service, special) = service(cmd.qp_type).ok_or(Status::BadOperand)?;
        let place = self.special_place(&cmd, special)?;
        require(cmd.xrcdn.get() == 0, Status::BadOperand)?;
        let srqn = Some(cmd.srqn.get()).filter(|&srqn| srqn != 0);
        let flags = cmd.flags.get();
        require(
            flags & !(qp_flag::SIGNAL_ALL | qp_flag::KERNEL) == 0,
            Status::BadOperand,
        )?;
        require(
            self.core.pds.contains_key(&cmd.pdn.get()),
            Status::NoSuchObject,
        )?;
        for cqn in [cmd.send_cqn.get(), cmd.recv_cqn.get()] {
            let cq = self.core.cqs.get(&cqn).ok_or(Status::NoSuchObject)?;
            require(cq.error.is_none(), Status::BadState)?;
        }
        let kernel = flags & qp_flag::KERNEL != 0;
        let mut slots = vec![cmd.sq_slot.get()];
        let recv_owner = match srqn {
            Some(srqn) => self.shared_owner(&cmd, srqn)?,
            None => {
                slots.push(cmd.rq_slot.get());
                (cmd.pdn.get(), kernel)
            }
        };
        self.free_slots(&slots)?;
        let rings = self.rings(&cmd, service, special)?;
        self.core.ring_pages += rings.pages();
        let owners = [SlotOwner::Send(qpn), SlotOwner::Recv(qpn)];
        for (slot, owner) in slots.iter().zip(owners) {
            self.slots.bind(*slot, owner);
        }
        let side = Side {
            qpn,
            wire_qpn: place.map_or(qpn, |(_, number)| number),
            pdn: cmd.pdn.get(),
            send_cqn: cmd.send_cqn.get(),
            recv_cqn: cmd.recv_cqn.get(),
            srqn,
            recv_owner,
            slots,
            kernel,
            rings,
            port: place.map_or(0, |(port, _)| port),
            state: QpState::Reset,
            timer: None,
        };
        self.change_users(&side, 1);
        let transport = match place {
            Some(place) => {
                self.special.insert(place, qpn);
                transport::Qp::new_special(special, cmd.port)
            }
            None if srqn.is_some() => transport::Qp::new_sharing(service),
            None => transport::Qp::new(service),
        };
        self.qps.insert(qpn, QueuePair { transport, side });
        Ok(NoReply {})
    }

    /// Checks that a new queue pair may use an SRQ and has no receive ring; returns the PD of the
    /// requests, and whether they belong to the kernel.
    fn shared_owner(&self, cmd: &CreateQp, srqn: u32) -> Result<(u32, bool), Refused> {
        let may = QpType::from_wire(cmd.qp_type).is_some_and(QpType::may_share);
        let no_ring = cmd.rq_slot.get() == NO_SLOT
            && (cmd.log_rq_wqes, cmd.log_rq_stride) == (0, 0)
            && cmd.rq_offset.get() == 0;
        require(may && no_ring, Status::BadOperand)?;
        let srq = self.core.srqs.get(&srqn).ok_or(Status::NoSuchObject)?;
        require(!srq.failed, Status::BadState)?;
        Ok((srq.pdn, srq.kernel))
    }

    /// Returns the index of the port of a special queue pair and its number in packets; [`None`] if it is no special one.
    fn special_place(
        &self,
        cmd: &CreateQp,
        special: Special,
    ) -> Result<Option<(usize, u32)>, Refused> {
        let number = match special {
            Special::None => {
                require(cmd.port == 0, Status::BadOperand)?;
                return Ok(None);
            }
            Special::Smi => 0,
            Special::Gsi => 1,
        };
        let place = (self.port_index(cmd.port)?, number);
        let kernel = cmd.flags.get() & qp_flag::KERNEL != 0;
        require(kernel, Status::BadOperand)?;
        require(!self.special.contains_key(&place), Status::Exists)?;
        Ok(Some(place))
    }

    /// Checks the rings of a new queue pair.
    fn rings(
        &self,
        cmd: &CreateQp,
        service: Transport,
        special: Special,
    ) -> Result<Rings, Refused> {
        let caps = self.caps();
        let (sq_offset, rq_offset) = (cmd.sq_offset.get(), cmd.rq_offset.get());
        require(
            (sq_offset | rq_offset) % BLOCK_SIZE as u32 == 0,
            Status::BadOperand,
        )?;
        let rq = if cmd.srqn.get() == 0 {
            let logs = (cmd.log_rq_wqes, cmd.log_rq_stride);
            let requests = RecvRing::new(&queue::Limits::from(&caps), logs, 0, 0);
            Some((requests.ok_or(Status::BadOperand)?, rq_offset.into()))
        } else {
            None
        };
        let shape = Shape {
            sq: ring_size(cmd.log_sq_blocks, caps.log_max_sq_blocks)?,
            sq_offset: sq_offset.into(),
            rq,
        };
        let max_sq_wqe = cmd.max_sq_wqe.get() as usize;
        let largest = (u8::MAX as usize * SIZE_UNIT).min(shape.sq.entries() as usize * BLOCK_SIZE);
        let valid = max_sq_wqe % SIZE_UNIT == 0 && (SIZE_UNIT..=largest).contains(&max_sq_wqe);
        require(valid, Status::BadOperand)?;
        let length = shape.length().ok_or(Status::BadOperand)?;
        let buffer = self.walk(&cmd.buffer, length, BLOCK_SIZE as u64)?;
        let limits = Limits {
            features: caps.features.get(),
            max_sge: caps.max_sge.get().into(),
            max_inline: caps.max_inline.get().into(),
            max_sq_wqe,
            max_message: MAX_MESSAGE,
            datagrams: service == Transport::Ud,
            pkeys: if special == Special::Gsi { PKEYS } else { 1 },
        };
        let signal_all = cmd.flags.get() & qp_flag::SIGNAL_ALL != 0;
        Ok(Rings::new(buffer, &shape, limits, signal_all))
    }

    fn change_users(&mut self, side: &Side, by: i32) {
        if let Some(pd) = self.core.pds.get_mut(&side.pdn) {
            pd.users = pd.users.wrapping_add_signed(by);
        }
        for cqn in [side.send_cqn, side.recv_cqn] {
            if let Some(cq) = self.core.cqs.get_mut(&cqn) {
                cq.users = cq.users.wrapping_add_signed(by);
            }
        }
        let srq = side.srqn.and_then(|srqn| self.core.srqs.get_mut(&srqn));
        if let Some(srq) = srq {
            srq.users = srq.users.wrapping_add_signed(by);
        }
    }

    fn destroy_qp(&mut self, cmd: DestroyQp) -> Result<NoReply, Refused> {
        let QueuePair {
            mut transport,
            mut side,
        } = self
            .qps
            .remove(&cmd.qpn.get())
            .ok_or(Status::NoSuchObject)?;
        transport.give_back(&mut super::qp::View {
            side: &mut side,
            core: &mut self.core,
        });
        for slot in &side.slots {
            self.slots.unbind(*slot);
        }
        self.special.retain(|_, qpn| *qpn != side.qpn);
        self.core.ring_pages -= side.rings.pages();
        self.change_users(&side, -1);
        self.core.forget_qp_events(side.qpn);
        Ok(NoReply {})
    }

    fn modify_qp(&mut self, cmd: ModifyQp, now: u64) -> Result<NoReply, Refused> {
        let (qpn, mask, new) = (cmd.qpn.get(), cmd.mask.get(), cmd.attr);
        require(self.qps.contains_key(&qpn), Status::NoSuchObject)?;
        require(reserved_is_zero(&new), Status::BadOperand)?;
        self.check_attr(mask, &new)?;
        self.modify(qpn, mask, &new)?;
        self.touch(qpn, now);
        Ok(NoReply {})
    }

    /// Checks the attributes that depend on the device.
    fn check_attr(&self, mask: u32, new: &QpAttr) -> Result<(), Refused> {
        const KNOWN: u32 = attr::RATE_LIMIT * 2 - 1;
        let caps = self.caps();
        require(mask & !KNOWN == 0, Status::BadOperand)?;
        let ok = |bit, condition| require(mask & bit == 0 || condition, Status::BadOperand);
        ok(attr::PORT, self.port_index(new.port).is_ok())?;
        ok(attr::PKEY_INDEX, new.pkey_index.get() < PKEYS)?;
        ok(attr::MAX_RD_ATOMIC, new.max_rd_atomic <= caps.max_rd_atomic)?;
        ok(
            attr::MAX_DEST_RD_ATOMIC,
            new.max_dest_rd_atomic <= caps.max_dest_rd_atomic,
        )?;
        ok(attr::RATE_LIMIT, new.rate_limit.get() == 0)?;
        ok(attr::PATH, path_is_valid(&new.path))
    }

    fn query_qp(&mut self, cmd: QueryQp) -> Result<QueryQpReply, Refused> {
        let qp = self.qps.get(&cmd.qpn.get()).ok_or(Status::NoSuchObject)?;
        let (attr, draining) = qp.transport.query();
        let mut reply = QueryQpReply::zeroed();
        reply.sq_draining = draining.into();
        reply.attr = attr;
        Ok(reply)
    }

    fn query_port(&mut self, cmd: QueryPort) -> Result<PortAttr, Refused> {
        let index = self.port_index(cmd.port)?;
        Ok(port::attr(self.core.link_port(index)))
    }

    fn modify_port(&mut self, cmd: ModifyPort) -> Result<NoReply, Refused> {
        const CHANGES: u8 = port_change::CAPABILITIES | port_change::RESET_QKEY_VIOLATIONS;
        let port = self.port_index(cmd.port)?;
        let (set, clear) = (cmd.set_capabilities.get(), cmd.clear_capabilities.get());
        require(cmd.changes & !CHANGES == 0, Status::BadOperand)?;
        require((set | clear) & !HOST_CAPABILITIES == 0, Status::BadOperand)?;
        let info = &mut self.core.link_port_mut(port).info;
        if cmd.changes & port_change::CAPABILITIES != 0 {
            let mask = info.capability_mask.get();
            info.capability_mask.set((mask | set) & !clear);
        }
        if cmd.changes & port_change::RESET_QKEY_VIOLATIONS != 0 {
            info.qkey_violations.set(0);
        }
        Ok(NoReply {})
    }

    fn query_gid(&mut self, cmd: QueryGid) -> Result<Gid, Refused> {
        let port = self.port_index(cmd.port)?;
        require(cmd.index.get() < GIDS, Status::BadOperand)?;
        Ok(Gid {
            raw: self.core.link_port(port).gid(cmd.index.get()),
        })
    }

    fn query_pkey(&mut self, cmd: QueryPkey) -> Result<Pkey, Refused> {
        let port = self.port_index(cmd.port)?;
        let pkeys = &self.core.link_port(port).pkeys;
        let pkey = pkeys.get(usize::from(cmd.index.get()));
        let mut reply = Pkey::zeroed();
        reply.pkey.set(*pkey.ok_or(Status::BadOperand)?);
        Ok(reply)
    }

    fn query_port_counters(&mut self, cmd: QueryPortCounters) -> Result<PortCounters, Refused> {
        let port = self.port_index(cmd.port)?;
        let (link, base) = (self.link_counters[port], self.link_base[port]);
        let own = self.core.counters[port];
        let mut reply = PortCounters::zeroed();
        reply.xmit_data.set(link.xmit_data - base.xmit_data);
        reply.rcv_data.set(link.rcv_data - base.rcv_data);
        reply.xmit_pkts.set(link.xmit_pkts - base.xmit_pkts);
        reply.rcv_pkts.set(link.rcv_pkts - base.rcv_pkts);
        reply
            .rcv_errors
            .set(link.rcv_errors - base.rcv_errors + own.rcv_errors);
        reply
            .xmit_discards
            .set(link.xmit_discards - base.xmit_discards);
        reply.retransmits.set(own.retransmits);
        reply.local_ack_timeouts.set(own.local_ack_timeouts);
        reply.out_of_sequence.set(own.out_of_sequence);
        reply.sequence_naks.set(own.sequence_naks);
        reply.rnr_naks.set(own.rnr_naks);
        reply.duplicate_requests.set(own.duplicate_requests);
        reply.local_errors.set(own.local_errors);
        reply.remote_errors.set(own.remote_errors);
        Ok(reply)
    }

    /// Changes a queue pair; in RESET its rings are empty.
    pub(super) fn modify(&mut self, qpn: u32, mask: u32, new: &QpAttr) -> Result<(), Refused> {
        let QueuePair { transport, side } = self.qps.get_mut(&qpn).ok_or(Status::NoSuchObject)?;
        let mut view = super::qp::View {
            side,
            core: &mut self.core,
        };
        transport.modify(mask, new, &mut view)?;
        let service = transport.settings().service;
        let coverage = &self.core.shared.coverage;
        let (from, to) = (side.state, transport.state());
        coverage.transition(service, from, to);
        side.state = to;
        if to == QpState::Reset {
            side.rings.reset();
        }
        // What is written to a slot in RESET has no effect, then or later.
        if from == QpState::Reset || to == QpState::Reset {
            for slot in &side.slots {
                self.slots.zero(*slot);
            }
        }
        side.port = usize::from(transport.settings().port).saturating_sub(1);
        Ok(())
    }
}

fn nop(entry: &Entry) -> Completion {
    let clean = entry.payload.iter().all(|&byte| byte == 0)
        && entry.rsvd0.get() == 0
        && entry.rsvd1.get() == 0;
    let status = if clean {
        Status::Ok
    } else {
        Status::BadOperand
    };
    Completion::new(entry.id.get(), status, &NoReply {})
}

/// Checks the operands of a command, executes it and makes its completion.
fn run<C: Command>(
    entry: &Entry,
    execute: impl FnOnce(C) -> Result<C::Reply, Refused>,
) -> Completion {
    let id = entry.id.get();
    let operands = entry.operands::<C>().ok_or(Status::BadOperand);
    match operands.and_then(execute) {
        Ok(reply) => Completion::new(id, Status::Ok, &reply),
        Err(status) => Completion::new(id, status, &NoReply {}),
    }
}
