// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The control protocol: a request and its reply, each a JSON object in one datagram.
//!
//! A request that is not answered is sent again with the same `serial` and then answered the same.

use qiao_fabric::link::Faults;
use serde::{Deserialize, Serialize};

/// A transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagrams.
    Ud,
}

/// What to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Opcode {
    /// SEND, with immediate data if there is any.
    Send,
    /// RDMA WRITE, with immediate data if there is any.
    Write,
    /// RDMA READ.
    Read,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// ATOMIC WRITE.
    AtomicWrite,
}

/// A request with its number.
#[derive(Clone, Debug, Deserialize)]
pub struct Envelope {
    /// Number of the request.
    pub serial: u64,
    /// The request.
    #[serde(flatten)]
    pub request: Request,
}

/// Memory of a queue pair, from its start.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Place {
    /// The queue pair.
    pub qpn: u32,
    /// First byte.
    pub offset: u32,
    /// Bytes.
    pub length: u32,
}

/// A send request.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Post {
    /// Queue pair and local memory.
    #[serde(flatten)]
    pub place: Place,
    /// What to do.
    pub opcode: Opcode,
    /// Remote address and key.
    #[serde(default)]
    pub remote: (u64, u32),
    /// What an atomic stores or adds, and what it compares with.
    #[serde(default)]
    pub atomic: (u64, u64),
    /// Immediate data.
    pub imm: Option<u32>,
}

/// What the other side asks for.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Request {
    /// Makes a queue pair and connects it to that of the other side, both with first PSN `psn`.
    /// The answer is [`Reply::Opened`].
    Open {
        /// Service.
        service: Service,
        /// Queue pair of the other side.
        qpn: u32,
        /// First PSN of both.
        psn: u32,
    },
    /// Fills memory with the pattern of `seed`.
    Fill {
        /// Where.
        #[serde(flatten)]
        place: Place,
        /// Which.
        seed: u32,
    },
    /// Compares every byte of memory with the pattern of `seed`. The answer is [`Reply::Compared`].
    Compare {
        /// Where.
        #[serde(flatten)]
        place: Place,
        /// Which.
        seed: u32,
    },
    /// Writes the 8-byte little-endian word at the start of `place`.
    Poke {
        /// Where.
        #[serde(flatten)]
        place: Place,
        /// What.
        value: u64,
    },
    /// Reads the 8-byte little-endian word at the start of `place`. The answer is [`Reply::Word`].
    Peek {
        /// Where.
        #[serde(flatten)]
        place: Place,
    },
    /// Posts a receive request.
    Receive {
        /// Where to.
        #[serde(flatten)]
        place: Place,
    },
    /// Posts a send request.
    Post(Post),
    /// Takes what has completed. The answer is [`Reply::Completions`].
    Completions {
        /// The queue pair.
        qpn: u32,
    },
    /// Replaces the faults of the link.
    Faults {
        /// The faults.
        faults: Faults,
    },
    /// Asks what has happened. The answer is [`Reply::Statistics`].
    Statistics,
}

/// A completion.
#[derive(Clone, Debug, Serialize)]
pub struct Completed {
    /// How many requests of its queue were posted before.
    pub index: u32,
    /// Whether a receive request completed.
    pub receive: bool,
    /// Name of the status.
    pub status: String,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Queue pair that sent a datagram.
    pub source: Option<u32>,
}

/// What the other side gets.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// Done.
    Done,
    /// A queue pair.
    Opened {
        /// Its number.
        qpn: u32,
        /// Key of its memory.
        rkey: u32,
        /// Bytes of its memory.
        size: u32,
    },
    /// The first byte that differs from the pattern, if one does.
    Compared(Option<u32>),
    /// A word.
    Word(u64),
    /// Completions, in their order.
    Completions(Vec<Completed>),
    /// What has happened.
    Statistics(super::Statistics),
    /// What was wrong.
    Error(String),
}
