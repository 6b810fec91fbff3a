// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Captures of a port in pcap format.

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::Duration;

/// Most bytes that a capture keeps of a packet: all that the MTU allows.
const SNAP_LENGTH: u32 = 65535;

/// Bytes of the record header of the extensible record format.
const ERF_HEADER: usize = 16;

/// Record type of that format: InfiniBand.
const ERF_INFINIBAND: u8 = 21;

/// A capture file with a limit to its size: packets from LRH to VCRC. The link type is the extensible
/// record format (197) and not InfiniBand (247), which Wireshark 4.4 does not read from a pcap file. Dropping it writes what is buffered.
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
            datalink: DataLink::ERF,
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
        let mut data = erf_header(now, packet.len()).to_vec();
        data.extend_from_slice(packet);
        // The pcap format has 16 bytes of its own for each record.
        let size = data.len() as u64 + 16;
        if size > self.left {
            self.left = 0;
            return Ok(());
        }
        self.left -= size;
        // CAST: A packet is shorter than 8 KiB.
        let length = data.len() as u32;
        let record = PcapPacket::new_owned(Duration::from_nanos(now), length, data);
        self.writer.write_packet(&record)?;
        Ok(())
    }
}

/// Makes the record header: the time in units of 2^-32 s, type, flags (varying length), and the lengths
/// of record and packet.
fn erf_header(now: u64, length: usize) -> [u8; ERF_HEADER] {
    const SECOND: u64 = 1_000_000_000;
    const VARYING_LENGTH: u8 = 4;
    let time = ((now / SECOND) << 32) | (((now % SECOND) << 32) / SECOND);
    // CAST: A packet is shorter than 8 KiB.
    let (record, wire) = ((length + ERF_HEADER) as u16, length as u16);
    let mut header = [0; ERF_HEADER];
    header[..8].copy_from_slice(&time.to_le_bytes());
    header[8] = ERF_INFINIBAND;
    header[9] = VARYING_LENGTH;
    header[10..12].copy_from_slice(&record.to_be_bytes());
    header[14..].copy_from_slice(&wire.to_be_bytes());
    header
}

/// Calls `each` with every packet of a capture file of any link type.
///
/// # Errors
///
/// If the file cannot be read or is not a capture; a packet cut off at the end ends it.
pub fn for_each(path: &Path, mut each: impl FnMut(&[u8])) -> Result<(), PcapError> {
    let file = File::open(path).map_err(PcapError::IoError)?;
    let mut reader = PcapReader::new(file)?;
    while let Some(packet) = reader.next_packet() {
        match packet {
            Ok(packet) => each(&packet.data),
            Err(PcapError::IncompleteBuffer) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
