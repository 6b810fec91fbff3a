// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Everything that the interface defines, for tools that print or check it.

use crate::{
    bar,
    caps,
    cmd,
    cqe,
    describe::{Described, Field, Numbers},
    doorbell,
    event,
    pages,
    qp,
    wqe, //
};

/// A structure of the interface.
#[derive(Clone, Copy, Debug)]
pub struct Structure {
    /// Name.
    pub name: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// Fields, in order and without gaps.
    pub fields: &'static [Field],
}

const fn structure<T: Described>() -> Structure {
    Structure {
        name: T::NAME,
        size: size_of::<T>(),
        fields: T::FIELDS,
    }
}

/// All structures, in the order of the specification.
pub const STRUCTURES: &[Structure] = &[
    structure::<caps::Caps>(),
    structure::<pages::PageList>(),
    structure::<cmd::Entry>(),
    structure::<cmd::Completion>(),
    structure::<cmd::CreateEq>(),
    structure::<cmd::DestroyEq>(),
    structure::<cmd::AllocPd>(),
    structure::<cmd::DeallocPd>(),
    structure::<cmd::CreateMkey>(),
    structure::<cmd::DestroyMkey>(),
    structure::<cmd::CreateCq>(),
    structure::<cmd::DestroyCq>(),
    structure::<cmd::ModifyCq>(),
    structure::<cmd::ResizeCq>(),
    structure::<cmd::ResizeCqReply>(),
    structure::<cmd::CreateQp>(),
    structure::<cmd::DestroyQp>(),
    structure::<qp::Path>(),
    structure::<qp::QpAttr>(),
    structure::<cmd::ModifyQp>(),
    structure::<cmd::QueryQp>(),
    structure::<cmd::QueryQpReply>(),
    structure::<cmd::CreateSrq>(),
    structure::<cmd::DestroySrq>(),
    structure::<cmd::ModifySrq>(),
    structure::<cmd::QuerySrq>(),
    structure::<cmd::QuerySrqReply>(),
    structure::<cmd::QueryPort>(),
    structure::<cmd::PortAttr>(),
    structure::<cmd::QueryGid>(),
    structure::<cmd::Gid>(),
    structure::<cmd::QueryPkey>(),
    structure::<cmd::Pkey>(),
    structure::<cmd::QueryPortCounters>(),
    structure::<cmd::PortCounters>(),
    structure::<cmd::ModifyPort>(),
    structure::<cmd::ExecMad>(),
    structure::<cmd::ExecMadReply>(),
    structure::<event::Eqe>(),
    structure::<cqe::Cqe>(),
    structure::<wqe::SendCtrl>(),
    structure::<wqe::RemoteSeg>(),
    structure::<wqe::AtomicSeg>(),
    structure::<wqe::FlushSeg>(),
    structure::<wqe::DatagramSeg>(),
    structure::<wqe::DataSeg>(),
    structure::<wqe::InlineSeg>(),
    structure::<wqe::RecvCtrl>(),
];

/// All sets of numbers, in the order of the specification.
pub const NUMBERS: &[Numbers] = &[
    bar::pci::NUMBERS,
    bar::size::NUMBERS,
    bar::status::NUMBERS,
    bar::control::NUMBERS,
    caps::feature::NUMBERS,
    doorbell::arm::NUMBERS,
    pages::limit::NUMBERS,
    cmd::Opcode::NUMBERS,
    cmd::Status::NUMBERS,
    cmd::EqType::NUMBERS,
    cmd::mkey_flag::NUMBERS,
    cmd::cq_flag::NUMBERS,
    cmd::qp_flag::NUMBERS,
    cmd::srq_flag::NUMBERS,
    cmd::LinkLayer::NUMBERS,
    cmd::PortState::NUMBERS,
    cmd::port_change::NUMBERS,
    cmd::mad_flag::NUMBERS,
    qp::QpType::NUMBERS,
    qp::QpState::NUMBERS,
    qp::Mtu::NUMBERS,
    qp::access::NUMBERS,
    qp::attr::NUMBERS,
    qp::path_flag::NUMBERS,
    event::EventType::NUMBERS,
    cqe::CqeOpcode::NUMBERS,
    cqe::CqeStatus::NUMBERS,
    cqe::cqe_flag::NUMBERS,
    wqe::SendOpcode::NUMBERS,
    wqe::send_flag::NUMBERS,
    wqe::FlushLevel::NUMBERS,
    wqe::placement::NUMBERS,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_no_gaps_and_natural_alignment() {
        for s in STRUCTURES {
            let mut end = 0;
            for f in s.fields {
                assert_eq!(f.offset, end, "{}.{}", s.name, f.name);
                let natural = matches!(f.size, 1 | 2 | 4 | 8);
                assert!(!natural || f.offset % f.size == 0, "{}.{}", s.name, f.name);
                assert!(!f.doc.is_empty());
                end += f.size;
            }
            assert_eq!(end, s.size, "{}", s.name);
        }
    }

    #[test]
    fn registers_are_aligned_and_do_not_overlap() {
        let mut end = 0;
        for r in bar::REGISTERS {
            assert!(r.offset >= end && r.offset % r.size == 0, "{}", r.name);
            end = r.offset + r.size;
        }
        assert!(end <= 0x400);
    }

    #[test]
    fn numbers_of_a_set_differ() {
        for set in NUMBERS {
            for (i, a) in set.numbers.iter().enumerate() {
                for b in &set.numbers[i + 1..] {
                    assert_ne!(a.value, b.value, "{}.{}", set.name, a.name);
                }
            }
        }
    }
}
