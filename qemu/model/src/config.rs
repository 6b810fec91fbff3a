// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The configuration file and the HCAs that it describes.

use crate::function::{Registers, CAPS_OFFSET};
use crate::hca::CommandFault;
use crate::pci::Identity;
use anyhow::{bail, ensure, Context, Result};
use qiao_fabric::link::Faults;
use qiao_fabric::node::{Maker, Node};
use qiao_hw::bar::{self, size};
use qiao_hw::caps::{feature, Caps};
use serde::Deserialize;
use std::collections::HashSet;
use std::path::PathBuf;
use zerocopy::IntoBytes;

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Seed of the faults.
    #[serde(default)]
    pub seed: u64,
    /// Where to write a capture per port.
    pub pcap_dir: Option<PathBuf>,
    /// Path of the control socket.
    pub control: Option<PathBuf>,
    /// Where to write, at the end, what of the interface has been used.
    pub coverage: Option<PathBuf>,
    /// The HCAs.
    #[serde(default)]
    pub hca: Vec<HcaConfig>,
    /// The links.
    #[serde(default)]
    pub link: Vec<LinkConfig>,
    /// Faults of all links that have none of their own.
    #[serde(default)]
    pub faults: Faults,
}

/// An HCA.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HcaConfig {
    /// Name, unique.
    pub name: String,
    /// Path of the vfio-user socket.
    pub socket: PathBuf,
    /// Number of ports.
    #[serde(default = "one")]
    pub ports: u8,
    /// Node GUID; derived from the name if it is missing.
    pub guid: Option<u64>,
    /// LID of the first port, the others follow; assigned in order if it is missing.
    pub lid: Option<u16>,
    /// How the device learns of doorbells.
    #[serde(default)]
    pub doorbells: Doorbells,
    /// What is wrong with the device, for tests of drivers.
    #[serde(default)]
    pub overrides: Overrides,
    /// Wrong answers to commands, for tests of drivers.
    #[serde(default)]
    pub command_faults: Vec<CommandFault>,
}

fn one() -> u8 {
    1
}

/// How a device learns of doorbells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Doorbells {
    /// The client sends each write as a message: nothing is polled, and a write costs the guest an exit.
    #[default]
    Trapped,
    /// The client maps the slots as memory, at which the device looks.
    Polled,
}

/// Values that replace the right ones.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overrides {
    /// MAGIC.
    pub magic: Option<u32>,
    /// VERSION.
    pub version: Option<u32>,
    /// Offset in CAPS.
    pub caps_offset: Option<u16>,
    /// Length in CAPS.
    pub caps_length: Option<u16>,
    /// Bytes of the capability block.
    #[serde(default)]
    pub caps: Vec<Patch>,
    /// Size of BAR0, a power of two.
    pub bar_control: Option<u64>,
    /// Size of BAR2, a power of two.
    pub bar_doorbell: Option<u64>,
    /// `Caps::cmd_timeout_ms`, which the device keeps.
    pub cmd_timeout_ms: Option<u32>,
    /// Number of MSI-X vectors.
    pub vectors: Option<u16>,
}

/// Bytes that replace those of the capability block.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Patch {
    /// Offset in the block.
    pub offset: usize,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// A link.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// The ports that it joins, as `hca:port`.
    pub ends: [String; 2],
    /// Its faults.
    pub faults: Option<Faults>,
}

/// A port of the configuration: index of the HCA and index of the port, both from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortId {
    /// HCA.
    pub hca: usize,
    /// Port.
    pub port: usize,
}

/// Size of BAR4: the MSI-X table and the pending bits.
const BAR_MSIX: u64 = 0x1_0000;

/// Size of BAR2: doorbell pages for a thousand contexts of 4 KiB pages.
const BAR_DOORBELL: u64 = 0x40_0000;

/// MSI-X vectors.
const VECTORS: u16 = 32;

/// How long a command may take: the model shares its host with the guests that it serves.
const CMD_TIMEOUT_MS: u32 = 60_000;

impl Config {
    /// Reads and checks the text of the file.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self> {
        let config: Self = toml::from_str(text)?;
        let mut names = HashSet::new();
        for hca in &config.hca {
            ensure!(names.insert(&hca.name), "two HCAs are named `{}`", hca.name);
            ensure!(hca.ports > 0, "HCA `{}` has no port", hca.name);
            let vectors = hca.overrides.vectors.unwrap_or(VECTORS);
            ensure!(
                (1..=2048).contains(&vectors),
                "HCA `{}`: 1 to 2048 vectors",
                hca.name
            );
            for size in [hca.overrides.bar_control, hca.overrides.bar_doorbell]
                .into_iter()
                .flatten()
            {
                let valid = size.is_power_of_two() && (0x1000..=0x1000_0000).contains(&size);
                ensure!(valid, "HCA `{}`: {size:#x} is no size of a BAR", hca.name);
            }
        }
        config.links()?;
        config.lids()?;
        Ok(config)
    }

    /// Returns the ends of the links.
    ///
    /// # Errors
    ///
    /// If an end is not a port, or in two links.
    pub fn links(&self) -> Result<Vec<[PortId; 2]>> {
        let mut used = HashSet::new();
        let mut links = Vec::new();
        for link in &self.link {
            let [a, b] = &link.ends;
            let ends = [self.port(a)?, self.port(b)?];
            for (end, name) in ends.iter().zip(&link.ends) {
                ensure!(used.insert(*end), "port {name} has two links");
            }
            links.push(ends);
        }
        Ok(links)
    }

    fn port(&self, end: &str) -> Result<PortId> {
        let parts = end.rsplit_once(':');
        let (name, port) = parts.with_context(|| format!("`{end}` is not `hca:port`"))?;
        let hca = self.hca.iter().position(|hca| hca.name == name);
        let hca = hca.with_context(|| format!("no HCA is named `{name}`"))?;
        let number: usize = port
            .parse()
            .with_context(|| format!("`{port}` is not a port"))?;
        if number == 0 || number > usize::from(self.hca[hca].ports) {
            bail!("HCA `{name}` has no port {number}");
        }
        Ok(PortId {
            hca,
            port: number - 1,
        })
    }

    /// Returns the LIDs of all ports by HCA: those that are given, and free ones from 1 on.
    ///
    /// # Errors
    ///
    /// If two ports have the same or one is not a unicast LID.
    pub fn lids(&self) -> Result<Vec<Vec<u16>>> {
        /// Unicast LIDs end here (IBTA 4.1.1).
        const LAST: u16 = 0xbfff;
        let mut used = HashSet::new();
        for hca in &self.hca {
            let Some(first) = hca.lid else { continue };
            for port in 0..hca.ports {
                let lid = first
                    .checked_add(port.into())
                    .filter(|lid| (1..=LAST).contains(lid));
                let lid = lid.with_context(|| format!("HCA `{}`: bad LID", hca.name))?;
                ensure!(used.insert(lid), "LID {lid} is given twice");
            }
        }
        let mut free = (1..=LAST).filter(|lid| !used.contains(lid));
        let mut lids = Vec::new();
        for hca in &self.hca {
            let ports: Option<Vec<u16>> = match hca.lid {
                Some(first) => (0..hca.ports)
                    .map(|port| first.checked_add(port.into()))
                    .collect(),
                None => (0..hca.ports).map(|_| free.next()).collect(),
            };
            lids.push(ports.context("no LID is left")?);
        }
        Ok(lids)
    }
}

impl HcaConfig {
    /// Returns the GUID of the node.
    pub fn node_guid(&self) -> u64 {
        self.guid.unwrap_or_else(|| derived_guid(&self.name))
    }

    /// Returns the HCA as subnet management sees it.
    pub fn make_node(&self) -> Node {
        let maker = Maker {
            vendor: VENDOR_OUI,
            device: bar::pci::MODEL_DEVICE as u16,
            revision: HW_VERSION,
        };
        Node::adapter(self.node_guid(), self.ports, maker, &self.name)
    }

    /// Returns the capabilities that the device keeps.
    pub fn caps(&self) -> Caps {
        let mut caps = Caps::zeroed();
        caps.features.set(
            feature::RC
                | feature::UC
                | feature::UD
                | feature::ATOMIC
                | feature::CQ_RESIZE
                | feature::MAD,
        );
        caps.fw_version.set(1 << 16);
        caps.node_guid.set(self.node_guid());
        caps.sys_image_guid.set(self.node_guid());
        // 4 KiB to 2 GiB.
        caps.page_sizes.set(0xffff_f000);
        caps.max_mr_size.set(1 << 36);
        caps.cmd_timeout_ms
            .set(self.overrides.cmd_timeout_ms.unwrap_or(CMD_TIMEOUT_MS));
        caps.num_vectors.set(self.vectors());
        caps.max_sge.set(32);
        caps.max_inline.set(512);
        caps.num_ports = self.ports;
        caps.log_max_cmds = 8;
        caps.log_max_qp = 16;
        caps.log_max_sq_blocks = 16;
        caps.log_max_rq_wqes = 15;
        caps.log_max_cq = 16;
        caps.log_max_cqe = 20;
        caps.log_max_key = 20;
        caps.log_max_pd = 16;
        caps.log_max_eq = 6;
        caps.log_max_eqe = 16;
        caps.max_rd_atomic = 16;
        caps.max_dest_rd_atomic = 16;
        // 134 ms: the model answers when its host lets it.
        caps.local_ack_delay = 15;
        caps.vendor_id.set(VENDOR_OUI);
        caps.vendor_part.set(bar::pci::MODEL_DEVICE);
        caps.hw_version.set(HW_VERSION);
        caps
    }

    fn vectors(&self) -> u16 {
        self.overrides.vectors.unwrap_or(VECTORS)
    }

    /// Returns what the registers of the function read as.
    ///
    /// # Errors
    ///
    /// If a patch does not fit.
    pub fn registers(&self) -> Result<Registers> {
        let overrides = &self.overrides;
        let mut caps = self.caps().as_bytes().to_vec();
        for Patch { offset, bytes } in &overrides.caps {
            let end = offset
                .checked_add(bytes.len())
                .context("patch beyond the block")?;
            caps.get_mut(*offset..end)
                .context("patch beyond the block")?
                .copy_from_slice(bytes);
        }
        Ok(Registers {
            magic: overrides.magic.unwrap_or(bar::MAGIC),
            version: overrides.version.unwrap_or(bar::version()),
            caps_offset: overrides.caps_offset.unwrap_or(CAPS_OFFSET as u16),
            caps_length: overrides.caps_length.unwrap_or(size_of::<Caps>() as u16),
            caps,
        })
    }

    /// Returns what tells the function from others.
    pub fn identity(&self) -> Identity {
        let control = self
            .overrides
            .bar_control
            .unwrap_or(size::BAR_CONTROL_MIN as u64);
        Identity {
            vendor: bar::pci::MODEL_VENDOR as u16,
            device: bar::pci::MODEL_DEVICE as u16,
            class: bar::pci::CLASS,
            bars: [
                control,
                self.overrides.bar_doorbell.unwrap_or(BAR_DOORBELL),
                BAR_MSIX,
            ],
            vectors: self.vectors(),
            serial: self.node_guid(),
        }
    }
}

/// Version of the device that the model is.
const HW_VERSION: u32 = 1;

/// The block of addresses that QEMU uses for its devices; locally administered.
const VENDOR_OUI: u32 = 0x52_5400;

/// Makes a GUID of a name: OUI, then 40 bits of its FNV-1a hash without the port number's byte.
fn derived_guid(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    (u64::from(VENDOR_OUI) << 40) | hash & 0xff_ffff_ff00
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        [[hca]]
        name = "a"
        socket = "/tmp/a"
        ports = 2
        [[hca]]
        name = "b"
        socket = "/tmp/b"
        lid = 2
        [[link]]
        ends = ["a:1", "b:1"]
    "#;

    #[test]
    fn lids_are_given_or_the_next_free_ones() {
        let config = Config::parse(GOOD).unwrap();
        assert_eq!(config.lids().unwrap(), [vec![1, 3], vec![2]]);
        assert_eq!(
            config.links().unwrap(),
            [[PortId { hca: 0, port: 0 }, PortId { hca: 1, port: 0 }]]
        );
        assert_ne!(config.hca[0].node_guid(), config.hca[1].node_guid());
    }

    #[test]
    fn mistakes_are_refused() {
        for (from, to) in [
            ("\"b:1\"", "\"b:2\""),
            ("\"b:1\"", "\"c:1\""),
            ("\"b:1\"", "\"a:1\""),
            ("\"b:1\"", "\"b\""),
            ("name = \"b\"", "name = \"a\""),
            ("lid = 2", "lid = 0"),
            ("lid = 2", "lid = 49152"),
            ("ports = 2", "ports = 0"),
            ("ports = 2", "pörts = 2"),
        ] {
            assert!(
                Config::parse(&GOOD.replace(from, to)).is_err(),
                "{from} -> {to}"
            );
        }
    }
}
