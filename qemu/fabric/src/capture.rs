// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Captures of a port in pcap format.

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};
use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the file says that it keeps at most of a record: more than the MTU allows.
const SNAP_LENGTH: u32 = 65535;

/// Bytes of the header of a file.
const FILE_HEADER: u64 = 24;

/// Bytes of the header that the pcap format has for each record.
const RECORD_HEADER: u64 = 16;

/// Bytes of the record header of the extensible record format.
const ERF_HEADER: usize = 16;

/// Record type of that format: InfiniBand.
const ERF_INFINIBAND: u8 = 21;

/// What of a capture is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of each packet that are kept, from the LRH on; its length is known all the same.
    pub snap: u16,
    /// Bytes of a file, at least [`Limits::MIN_BYTES`].
    pub bytes: u64,
    /// Files of a port. With one, the capture stops when it is full; with more, the oldest goes and the newest packets are kept.
    pub files: u32,
}

impl Limits {
    /// Any packet fits into a file of this size.
    pub const MIN_BYTES: u64 = 1 << 16;

    /// Returns whether the limits make sense.
    pub fn are_valid(&self) -> bool {
        self.snap > 0 && self.bytes >= Self::MIN_BYTES && self.files > 0
    }
}

impl Default for Limits {
    /// Whole packets, and the first 64 MiB of them.
    fn default() -> Self {
        Self {
            snap: u16::MAX,
            bytes: 64 << 20,
            files: 1,
        }
    }
}

/// A capture of a port: packets from LRH to VCRC. The link type is the extensible record format (197) and not InfiniBand (247),
/// which Wireshark 4.4 does not read from a pcap file. Dropping it writes what is buffered.
#[derive(Debug)]
pub struct Capture {
    path: PathBuf,
    limits: Limits,
    writer: PcapWriter<BufWriter<File>>,
    left: u64,
}

impl Capture {
    /// Creates the file at `path`. When there are several, this is the newest; the older ones are `NAME.1.pcap` and so on.
    ///
    /// # Errors
    ///
    /// If the file cannot be written, or older ones of another run cannot be removed.
    pub fn create(path: &Path, limits: Limits) -> Result<Self, PcapError> {
        for age in 1..limits.files {
            match fs::remove_file(aged(path, age)) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(PcapError::IoError(error))
                }
                _ => {}
            }
        }
        Ok(Self {
            path: path.to_owned(),
            limits,
            writer: open(path)?,
            left: limits.bytes - FILE_HEADER,
        })
    }

    /// Appends a packet that passed at `now` nanoseconds, if it is to be kept.
    ///
    /// # Errors
    ///
    /// If a file cannot be written or renamed.
    pub fn write(&mut self, now: u64, packet: &[u8]) -> Result<(), PcapError> {
        let kept = &packet[..packet.len().min(self.limits.snap.into())];
        let mut data = erf_header(now, kept.len(), packet.len()).to_vec();
        data.extend_from_slice(kept);
        let size = data.len() as u64 + RECORD_HEADER;
        if size > self.left {
            if self.limits.files == 1 {
                self.left = 0;
                return Ok(());
            }
            self.rotate()?;
        }
        self.left -= size;
        // CAST: A packet is shorter than 8 KiB.
        let length = (ERF_HEADER + packet.len()) as u32;
        let record = PcapPacket::new_owned(Duration::from_nanos(now), length, data);
        self.writer.write_packet(&record)?;
        Ok(())
    }

    /// Begins a new file and drops the oldest.
    fn rotate(&mut self) -> Result<(), PcapError> {
        for age in (1..self.limits.files).rev() {
            let younger = aged(&self.path, age - 1);
            if younger.exists() {
                fs::rename(younger, aged(&self.path, age)).map_err(PcapError::IoError)?;
            }
        }
        let full = std::mem::replace(&mut self.writer, open(&self.path)?);
        full.into_writer().flush().map_err(PcapError::IoError)?;
        self.left = self.limits.bytes - FILE_HEADER;
        Ok(())
    }
}

/// Returns the path of the file that is so many files older than the newest.
fn aged(path: &Path, age: u32) -> PathBuf {
    match age {
        0 => path.to_owned(),
        _ => path.with_extension(format!("{age}.pcap")),
    }
}

fn open(path: &Path) -> Result<PcapWriter<BufWriter<File>>, PcapError> {
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
    PcapWriter::with_header(file, header)
}

/// Makes the record header: the time in units of 2^-32 s, type, flags (varying length), and the lengths
/// of the record, with `kept` bytes of the packet, and of the packet.
fn erf_header(now: u64, kept: usize, length: usize) -> [u8; ERF_HEADER] {
    const SECOND: u64 = 1_000_000_000;
    const VARYING_LENGTH: u8 = 4;
    let time = ((now / SECOND) << 32) | (((now % SECOND) << 32) / SECOND);
    // CAST: A packet is shorter than 8 KiB.
    let (record, wire) = ((kept + ERF_HEADER) as u16, length as u16);
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

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: usize = 1000;

    /// Writes so many packets, each filled with its number; the numbers that each file has, the newest first.
    fn written(limits: Limits, count: u8) -> Vec<Vec<u8>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a-1.pcap");
        let mut capture = Capture::create(&path, limits).unwrap();
        for number in 0..count {
            capture.write(number.into(), &[number; PACKET]).unwrap();
        }
        drop(capture);
        let files = (0..).map(|age| aged(&path, age));
        files
            .take_while(|file| file.exists())
            .map(|file| {
                assert!(file.metadata().unwrap().len() <= limits.bytes);
                let mut numbers = Vec::new();
                let kept = PACKET.min(limits.snap.into());
                for_each(&file, |data| {
                    assert_eq!(data.len(), ERF_HEADER + kept);
                    numbers.push(data[ERF_HEADER]);
                })
                .unwrap();
                numbers
            })
            .collect()
    }

    #[test]
    fn one_file_keeps_the_beginning_and_a_ring_the_end() {
        let limits = Limits {
            bytes: Limits::MIN_BYTES,
            ..Limits::default()
        };
        assert_eq!(written(limits, 200), [(0..63).collect::<Vec<u8>>()]);
        let ring = Limits { files: 3, ..limits };
        let files = [189..200, 126..189, 63..126].map(|numbers| numbers.collect::<Vec<u8>>());
        assert_eq!(written(ring, 200), files);
        assert_eq!(written(ring, 60), [(0..60).collect::<Vec<u8>>()]);
    }

    #[test]
    fn a_snap_length_cuts_what_is_kept() {
        let limits = Limits {
            snap: 64,
            ..Limits::default()
        };
        assert_eq!(written(limits, 3), [[0, 1, 2]]);
    }

    #[test]
    fn files_of_an_older_run_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a-1.pcap");
        let limits = Limits {
            files: 3,
            ..Limits::default()
        };
        for age in 0..3 {
            fs::write(aged(&path, age), "old").unwrap();
        }
        drop(Capture::create(&path, limits).unwrap());
        let found = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(found, 1);
    }
}
