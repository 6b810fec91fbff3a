// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The configuration file and the HCAs that it describes.

use crate::function::{Registers, CAPS_OFFSET};
use crate::hca::CommandFault;
use crate::pci::Identity;
use crate::topology;
use anyhow::{bail, ensure, Context, Result};
use qiao_fabric::capture::Limits;
use qiao_fabric::link::Faults;
use qiao_fabric::mad::MULTICAST_BASE;
use qiao_fabric::net::{Attach, Switch};
use qiao_fabric::node::{Maker, Node, MAX_SWITCH_PORTS};
use qiao_fabric::sm::Partition;
use qiao_hw::bar::{self, size};
use qiao_hw::caps::{feature, Caps};
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use zerocopy::IntoBytes;

/// The file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Seed of the faults.
    #[serde(default)]
    pub seed: u64,
    /// Captures of all ports; none if it is missing.
    pub capture: Option<CaptureConfig>,
    /// Path of the control socket.
    pub control: Option<PathBuf>,
    /// Where to write, at the end, what of the interface has been used.
    pub coverage: Option<PathBuf>,
    /// File that `ibnetdiscover` has printed: its switches and links are added to those below. Its HCAs must be among them.
    pub topology: Option<PathBuf>,
    /// The HCAs.
    #[serde(default)]
    pub hca: Vec<HcaConfig>,
    /// The switches.
    #[serde(default)]
    pub switch: Vec<SwitchConfig>,
    /// The links.
    #[serde(default)]
    pub link: Vec<LinkConfig>,
    /// The subnet manager.
    #[serde(default)]
    pub subnet_manager: ManagerConfig,
    /// Faults of all links that have none of their own.
    #[serde(default)]
    pub faults: Faults,
}

/// Captures, one per port.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureConfig {
    /// Folder of the files, `NODE-PORT.pcap`.
    pub dir: PathBuf,
    /// What of each is kept.
    #[serde(default)]
    pub limits: Limits,
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
    /// LID that the subnet manager gives to the first port, the others follow; the next free ones if it is missing.
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

/// A switch.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchConfig {
    /// Name, unique among HCAs and switches.
    pub name: String,
    /// Number of ports, up to [`MAX_SWITCH_PORTS`].
    pub ports: u8,
    /// GUID; derived from the name if it is missing.
    pub guid: Option<u64>,
}

/// The subnet manager of the fabric: one for each part that is connected by links, at its first HCA port.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ManagerConfig {
    /// Whether there is one. Without it ports stay in Initialize until a guest manages the subnet.
    pub enabled: bool,
    /// Ports, as `hca:port`, at which one works instead of at the first.
    pub ports: Vec<String>,
    /// Partitions beside the default one.
    pub partitions: Vec<Partition>,
}

impl Default for ManagerConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            ports: Vec::new(),
            partitions: Vec::new(),
        }
    }
}

/// A link.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// The ports that it joins, as `hca:port` or `switch:port`.
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
        let mut config: Self = toml::from_str(text)?;
        if let Some(path) = config.topology.clone() {
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            config.add_topology(&text)?;
        }
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
        for switch in &config.switch {
            let name = &switch.name;
            ensure!(names.insert(name), "two nodes are named `{name}`");
            let valid = (1..=MAX_SWITCH_PORTS).contains(&switch.ports);
            ensure!(valid, "switch `{name}`: 1 to {MAX_SWITCH_PORTS} ports");
        }
        if let Some(capture) = &config.capture {
            let least = Limits::MIN_BYTES;
            ensure!(
                capture.limits.are_valid(),
                "a capture has at least one file, of {least} bytes or more, and a byte of each packet"
            );
        }
        config.links()?;
        config.lids()?;
        config.manager_hosts()?;
        Ok(config)
    }

    fn add_topology(&mut self, text: &str) -> Result<()> {
        let found = topology::parse(text)?;
        for name in &found.hcas {
            let known = self.hca.iter().any(|hca| hca.name == *name);
            ensure!(
                known,
                "the topology has an HCA `{name}`, the configuration not"
            );
        }
        for (name, ports, guid) in found.switches {
            let guid = Some(guid);
            self.switch.push(SwitchConfig { name, ports, guid });
        }
        for ends in found.links {
            let faults = None;
            self.link.push(LinkConfig { ends, faults });
        }
        Ok(())
    }

    /// Returns the ports of all HCAs in their order, which is that of the fabric's hosts.
    pub fn hosts(&self) -> Vec<PortId> {
        let ports = |(hca, of): (usize, &HcaConfig)| {
            (0..usize::from(of.ports)).map(move |port| PortId { hca, port })
        };
        self.hca.iter().enumerate().flat_map(ports).collect()
    }

    /// Returns the ends of the links.
    ///
    /// # Errors
    ///
    /// If an end is not a port, or in two links.
    pub fn links(&self) -> Result<Vec<[Attach; 2]>> {
        let mut used = HashSet::new();
        let mut links = Vec::new();
        for link in &self.link {
            let [a, b] = &link.ends;
            let ends = [self.attach(a)?, self.attach(b)?];
            for (end, name) in ends.iter().zip(&link.ends) {
                ensure!(used.insert(*end), "port {name} has two links");
            }
            links.push(ends);
        }
        Ok(links)
    }

    /// Returns the port that a name as `hca:port` or `switch:port` stands for.
    fn attach(&self, end: &str) -> Result<Attach> {
        let parts = end.rsplit_once(':');
        let (name, port) = parts.with_context(|| format!("`{end}` is not `name:port`"))?;
        let number: u8 = port
            .parse()
            .with_context(|| format!("`{port}` is not a port"))?;
        if let Some(switch) = self.switch.iter().position(|switch| switch.name == name) {
            let exists = (1..=self.switch[switch].ports).contains(&number);
            ensure!(exists, "switch `{name}` has no port {number}");
            return Ok(Attach::Switch {
                switch,
                port: number,
            });
        }
        let hca = self.hca.iter().position(|hca| hca.name == name);
        let hca = hca.with_context(|| format!("no HCA and no switch is named `{name}`"))?;
        if number == 0 || number > self.hca[hca].ports {
            bail!("HCA `{name}` has no port {number}");
        }
        let before = self.hca[..hca].iter().map(|hca| usize::from(hca.ports));
        Ok(Attach::Host(
            before.sum::<usize>() + usize::from(number) - 1,
        ))
    }

    /// Returns the hosts at which a subnet manager works: one in each part that is connected.
    ///
    /// # Errors
    ///
    /// If a port that is named is not one of an HCA.
    pub fn manager_hosts(&self) -> Result<Vec<usize>> {
        if !self.subnet_manager.enabled {
            return Ok(Vec::new());
        }
        let mut named = Vec::new();
        for port in &self.subnet_manager.ports {
            match self.attach(port)? {
                Attach::Host(host) => named.push(host),
                Attach::Switch { .. } => bail!("`{port}` is not the port of an HCA"),
            }
        }
        let mut hosts = Vec::new();
        for part in parts(&self.links()?) {
            let chosen = named.iter().find(|host| part.contains(host));
            hosts.extend(chosen.or(part.first()));
        }
        Ok(hosts)
    }

    /// Returns the LIDs that ports are to have, by their GUIDs.
    ///
    /// # Errors
    ///
    /// If two ports are to have the same, or one is not a unicast LID.
    pub fn lids(&self) -> Result<BTreeMap<u64, u16>> {
        let mut lids = BTreeMap::new();
        let mut used = HashSet::new();
        for hca in &self.hca {
            let Some(first) = hca.lid else { continue };
            let node = hca.make_node();
            for ((number, port), n) in node.ports().zip(0..) {
                let lid = first.checked_add(n);
                let lid = lid.filter(|lid| (1..MULTICAST_BASE).contains(lid));
                let lid =
                    lid.with_context(|| format!("HCA `{}`: bad LID of port {number}", hca.name))?;
                ensure!(used.insert(lid), "LID {lid} is given twice");
                lids.insert(port.guid(), lid);
            }
        }
        Ok(lids)
    }
}

impl SwitchConfig {
    /// Makes the switch.
    pub fn make(&self) -> Switch {
        let guid = self.guid.unwrap_or_else(|| derived_guid(&self.name));
        let node = Node::switch(guid, self.ports, maker(), &self.name);
        Switch::new(self.name.clone(), node)
    }
}

impl HcaConfig {
    /// Returns the GUID of the node.
    pub fn node_guid(&self) -> u64 {
        self.guid.unwrap_or_else(|| derived_guid(&self.name))
    }

    /// Returns the HCA as subnet management sees it.
    pub fn make_node(&self) -> Node {
        Node::adapter(self.node_guid(), self.ports, maker(), &self.name)
    }

    /// Returns the capabilities that the device keeps.
    pub fn caps(&self) -> Caps {
        let mut caps = Caps::zeroed();
        caps.features.set(
            feature::RC
                | feature::UC
                | feature::UD
                | feature::SRQ
                | feature::ATOMIC
                | feature::ATOMIC_WRITE
                | feature::FLUSH
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
        caps.log_max_srq = 16;
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

/// Returns the hosts of each connected part, in ascending order. The ports of a switch belong together, those of an HCA do not.
fn parts(links: &[[Attach; 2]]) -> Vec<Vec<usize>> {
    let mut parts: Vec<Vec<Attach>> = Vec::new();
    let node = |end: Attach| match end {
        Attach::Switch { switch, .. } => Attach::Switch { switch, port: 0 },
        host @ Attach::Host(_) => host,
    };
    for ends in links {
        let mut joined = ends.map(node).to_vec();
        let (touched, apart): (Vec<_>, Vec<_>) = parts
            .into_iter()
            .partition(|part| part.iter().any(|end| joined.contains(end)));
        parts = apart;
        joined.extend(touched.into_iter().flatten());
        parts.push(joined);
    }
    let hosts = |part: Vec<Attach>| {
        let mut hosts: Vec<usize> = part
            .into_iter()
            .filter_map(|end| match end {
                Attach::Host(host) => Some(host),
                Attach::Switch { .. } => None,
            })
            .collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    };
    parts
        .into_iter()
        .map(hosts)
        .filter(|part| !part.is_empty())
        .collect()
}

fn maker() -> Maker {
    Maker {
        vendor: VENDOR_OUI,
        device: bar::pci::MODEL_DEVICE as u16,
        revision: HW_VERSION,
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
        [[switch]]
        name = "s"
        ports = 3
        [[link]]
        ends = ["a:1", "b:1"]
        [[link]]
        ends = ["a:2", "s:3"]
        [capture]
        dir = "/tmp/pcap"
        limits = { snap = 128, files = 4 }
    "#;

    #[test]
    fn links_join_hosts_and_switches_and_each_part_has_a_manager() {
        let config = Config::parse(GOOD).unwrap();
        let hosts = [Attach::Host(0), Attach::Host(2)];
        assert_eq!(config.links().unwrap()[0], hosts);
        assert_eq!(config.manager_hosts().unwrap(), [0, 1]);
        let lids: Vec<u16> = config.lids().unwrap().into_values().collect();
        assert_eq!(lids, [2]);
        assert_ne!(config.hca[0].node_guid(), config.hca[1].node_guid());
        let chosen = format!("{GOOD}\n[subnet_manager]\nports = [\"b:1\"]");
        let config = Config::parse(&chosen).unwrap();
        assert_eq!(config.manager_hosts().unwrap(), [2, 1]);
        let none = format!("{GOOD}\n[subnet_manager]\nenabled = false");
        assert!(Config::parse(&none)
            .unwrap()
            .manager_hosts()
            .unwrap()
            .is_empty());
    }

    #[test]
    fn captures_have_limits() {
        let limits = Config::parse(GOOD).unwrap().capture.unwrap().limits;
        let usual = Limits::default();
        assert_eq!(
            (limits.snap, limits.bytes, limits.files),
            (128, usual.bytes, 4)
        );
    }

    #[test]
    fn a_topology_that_was_discovered_is_added() {
        let mut config: Config = toml::from_str(GOOD).unwrap();
        let file = "Switch 2 \"S-00000000000000aa\" # \"leaf\"\n[1] \"H-01\"[1]\nCa 1 \"H-01\" # \"b\"\n[1] \"S-00000000000000aa\"[1]\n";
        config.link.clear();
        config.add_topology(file).unwrap();
        let leaf = Attach::Switch { switch: 1, port: 1 };
        assert_eq!(config.links().unwrap(), [[Attach::Host(2), leaf]]);
        assert!(config
            .add_topology(&file.replace("\"b\"", "\"c\""))
            .is_err());
    }

    #[test]
    fn mistakes_are_refused() {
        for (from, to) in [
            ("\"b:1\"", "\"b:2\""),
            ("\"b:1\"", "\"c:1\""),
            ("\"b:1\"", "\"a:1\""),
            ("\"b:1\"", "\"b\""),
            ("name = \"b\"", "name = \"a\""),
            ("\"s:3\"", "\"s:4\""),
            ("\"s:3\"", "\"s:0\""),
            ("name = \"s\"", "name = \"a\""),
            ("ports = 3", "ports = 255"),
            ("lid = 2", "lid = 0"),
            ("lid = 2", "lid = 49152"),
            ("ports = 2", "ports = 0"),
            ("ports = 2", "pörts = 2"),
            ("files = 4", "files = 0"),
            ("snap = 128", "snap = 0"),
            ("snap = 128", "bytes = 65535"),
            ("snap = 128", "snap = 65536"),
        ] {
            assert!(
                Config::parse(&GOOD.replace(from, to)).is_err(),
                "{from} -> {to}"
            );
        }
    }
}
