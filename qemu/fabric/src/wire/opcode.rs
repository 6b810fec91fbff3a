// SPDX-License-Identifier: GPL-2.0 OR MIT

//! BTH opcodes (IBTA 9.2.1).

/// Transport of a packet: bits 7:5 of the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Unreliable datagram.
    Ud = 3,
}

/// Operation of a packet: bits 4:0 of the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the names are those of IBTA table 38 and annex A19"
)]
pub enum Operation {
    SendFirst = 0,
    SendMiddle = 1,
    SendLast = 2,
    SendLastImm = 3,
    SendOnly = 4,
    SendOnlyImm = 5,
    WriteFirst = 6,
    WriteMiddle = 7,
    WriteLast = 8,
    WriteLastImm = 9,
    WriteOnly = 10,
    WriteOnlyImm = 11,
    ReadRequest = 12,
    ReadResponseFirst = 13,
    ReadResponseMiddle = 14,
    ReadResponseLast = 15,
    ReadResponseOnly = 16,
    Acknowledge = 17,
    AtomicAcknowledge = 18,
    CompareSwap = 19,
    FetchAdd = 20,
    SendLastInvalidate = 22,
    SendOnlyInvalidate = 23,
    Flush = 28,
    AtomicWrite = 29,
}

/// Extended headers that a packet carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ext {
    /// RDMA extended transport header.
    pub reth: bool,
    /// ACK extended transport header.
    pub aeth: bool,
    /// Atomic extended transport header.
    pub atomic: bool,
    /// Atomic ACK extended transport header.
    pub atomic_ack: bool,
    /// Immediate data.
    pub imm: bool,
    /// Invalidate extended transport header.
    pub ieth: bool,
    /// Datagram extended transport header.
    pub deth: bool,
    /// FLUSH extended transport header.
    pub feth: bool,
}

impl Transport {
    fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::Rc),
            1 => Some(Self::Uc),
            3 => Some(Self::Ud),
            _ => None,
        }
    }
}

impl Operation {
    /// All operations that this fabric carries.
    pub const ALL: [Self; 25] = [
        Self::SendFirst,
        Self::SendMiddle,
        Self::SendLast,
        Self::SendLastImm,
        Self::SendOnly,
        Self::SendOnlyImm,
        Self::WriteFirst,
        Self::WriteMiddle,
        Self::WriteLast,
        Self::WriteLastImm,
        Self::WriteOnly,
        Self::WriteOnlyImm,
        Self::ReadRequest,
        Self::ReadResponseFirst,
        Self::ReadResponseMiddle,
        Self::ReadResponseLast,
        Self::ReadResponseOnly,
        Self::Acknowledge,
        Self::AtomicAcknowledge,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::SendLastInvalidate,
        Self::SendOnlyInvalidate,
        Self::Flush,
        Self::AtomicWrite,
    ];

    fn from_bits(bits: u8) -> Option<Self> {
        // CAST: The discriminants are the bits.
        Self::ALL.into_iter().find(|&op| op as u8 == bits)
    }

    fn is_unreliable(self) -> bool {
        // CAST: The discriminants are the bits.
        self as u8 <= Self::WriteOnlyImm as u8
    }

    /// Returns whether this is a response: it belongs to the requester.
    pub fn is_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
                | Self::Acknowledge
                | Self::AtomicAcknowledge
        )
    }

    /// Returns the extended headers, the datagram one excepted.
    pub fn ext(self) -> Ext {
        use Operation::*;
        Ext {
            reth: matches!(
                self,
                WriteFirst | WriteOnly | WriteOnlyImm | ReadRequest | Flush | AtomicWrite
            ),
            aeth: matches!(
                self,
                ReadResponseFirst
                    | ReadResponseLast
                    | ReadResponseOnly
                    | Acknowledge
                    | AtomicAcknowledge
            ),
            atomic: matches!(self, CompareSwap | FetchAdd),
            atomic_ack: self == AtomicAcknowledge,
            imm: matches!(
                self,
                SendLastImm | SendOnlyImm | WriteLastImm | WriteOnlyImm
            ),
            ieth: matches!(self, SendLastInvalidate | SendOnlyInvalidate),
            deth: false,
            feth: self == Flush,
        }
    }
}

/// Packs transport and operation.
pub(super) fn pack(transport: Transport, operation: Operation) -> u8 {
    // CAST: Both are small enumerations.
    ((transport as u8) << 5) | operation as u8
}

/// Splits an opcode; [`None`] if it is reserved or not one that this fabric carries.
pub(super) fn unpack(opcode: u8) -> Option<(Transport, Operation)> {
    let transport = Transport::from_bits(opcode >> 5)?;
    let operation = Operation::from_bits(opcode & 0x1f)?;
    let known = match transport {
        Transport::Rc => true,
        Transport::Uc => operation.is_unreliable(),
        Transport::Ud => matches!(operation, Operation::SendOnly | Operation::SendOnlyImm),
    };
    known.then_some((transport, operation))
}
