// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Captures of a port in pcap format.

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::Duration;

/// Most bytes that a capture keeps of a packet: all that the MTU allows.
const SNAP_LENGTH: u32 = 65535;

/// A capture file with a limit to its size. The link type is InfiniBand (247): packets from LRH to
/// VCRC. Dropping it writes what is buffered.
#[derive(Debug)]
pub struct Capture {
    writer: PcapWriter<BufWriter<File>>,
    left: u64,
}

impl Capture {
    /// Creates the file at `path`; it stops to grow at `limit` bytes.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn create(path: &Path, limit: u64) -> Result<Self, PcapError> {
        let header = PcapHeader {
            version_major: 2,
            version_minor: 4,
            ts_correction: 0,
            ts_accuracy: 0,
            snaplen: SNAP_LENGTH,
            datalink: DataLink::INFINIBAND,
            ts_resolution: TsResolution::NanoSecond,
            endianness: Endianness::Little,
        };
        let file = BufWriter::new(File::create(path).map_err(PcapError::IoError)?);
        Ok(Self {
            writer: PcapWriter::with_header(file, header)?,
            left: limit,
        })
    }

    /// Appends a packet that passed at `now` nanoseconds, if the file may still grow.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write(&mut self, now: u64, packet: &[u8]) -> Result<(), PcapError> {
        let size = packet.len() as u64 + 16;
        if size > self.left {
            self.left = 0;
            return Ok(());
        }
        self.left -= size;
        // CAST: A packet is shorter than 8 KiB.
        let record = PcapPacket::new(Duration::from_nanos(now), packet.len() as u32, packet);
        self.writer.write_packet(&record)?;
        Ok(())
    }
}
