// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a scenario wants to exist: guests, their HCAs, switches, and the links between ports.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::Serialize;

/// What the guests' Ethernet devices are plugged into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ethernet {
    /// The first guest's QEMU: a cable from there to the only other guest, or a hub in it with a cable to each.
    #[default]
    Cable,
    /// A socket of the lab for the only guest, on which a scenario plays the other end.
    Socket,
}

/// The guests of a scenario and the fabric between their HCAs.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    /// In the order of starting; the first is the one that a person lands in.
    pub guests: Vec<GuestSpec>,
    /// The network beside the fabric.
    pub ethernet: Ethernet,
    /// Memory of each guest in MiB, if it is not the usual.
    pub memory_mib: Option<u32>,
    /// Whether the guests' devices are behind an IOMMU that maps each buffer, and unmaps it, on its own.
    pub iommu: bool,
    switches: Vec<SwitchConfig>,
    links: Vec<[String; 2]>,
    settings: BTreeMap<&'static str, toml::Table>,
    /// Whether speed counts: nothing is captured, and the Ethernet between the guests has jumbo frames, with which soft-RoCE has
    /// the same path MTU as InfiniBand.
    pub measured: bool,
}

/// One guest.
#[derive(Clone, Debug)]
pub struct GuestSpec {
    /// Host name; unique in the topology.
    pub name: &'static str,
    /// Names of the HCAs in its slots; unique in the topology.
    pub hcas: Vec<&'static str>,
}

impl Topology {
    /// Adds a guest with one HCA, of one port, for each name in `hcas`.
    pub fn guest(mut self, name: &'static str, hcas: &[&'static str]) -> Self {
        self.guests.push(GuestSpec {
            name,
            hcas: hcas.to_vec(),
        });
        self
    }

    /// Adds settings of the device model for an HCA, as TOML: what is wrong with it, for a test of the driver.
    pub fn hca_settings(mut self, hca: &'static str, settings: &str) -> Self {
        let settings = settings
            .parse()
            .expect("scenarios are constants, and each run parses them");
        self.settings.insert(hca, settings);
        self
    }

    /// Makes the doorbells of every HCA memory that the device polls.
    pub fn polled_doorbells(mut self) -> Self {
        for hca in self.guests.iter().flat_map(|guest| &guest.hcas) {
            let settings = self.settings.entry(hca).or_default();
            settings.insert("doorbells".into(), "polled".into());
        }
        self
    }

    /// Adds a switch.
    pub fn switch(mut self, name: &str, ports: u8) -> Self {
        self.switches.push(SwitchConfig {
            name: name.into(),
            ports,
        });
        self
    }

    /// Joins two ports, given as `name:port`, by a cable.
    pub fn cable(mut self, one: &str, other: &str) -> Self {
        self.links.push([one.into(), other.into()]);
        self
    }

    /// Joins port 1 of two HCAs by a cable.
    pub fn link(mut self, one: &str, other: &str) -> Self {
        self.links.push([format!("{one}:1"), format!("{other}:1")]);
        self
    }

    /// Gives each guest so much memory in MiB.
    pub fn memory(mut self, mib: u32) -> Self {
        self.memory_mib = Some(mib);
        self
    }

    /// Leaves the other end of the only guest's Ethernet to the scenario.
    pub fn ethernet_socket(mut self) -> Self {
        self.ethernet = Ethernet::Socket;
        self
    }

    /// Puts the guests' devices behind a strict IOMMU.
    pub fn strict_iommu(mut self) -> Self {
        self.iommu = true;
        self
    }

    /// Makes this a topology to measure in.
    pub fn measured(mut self) -> Self {
        self.measured = true;
        self
    }

    /// Whether any guest has an HCA, and so a device model is needed.
    pub fn has_hcas(&self) -> bool {
        self.guests.iter().any(|guest| !guest.hcas.is_empty())
    }

    /// The configuration of the device model for this topology.
    pub fn model_config(&self, sockets: &Path, pcap_dir: &Path) -> ModelConfig {
        let hca = self
            .guests
            .iter()
            .flat_map(|guest| &guest.hcas)
            .map(|name| HcaConfig {
                name: (*name).into(),
                socket: hca_socket(sockets, name),
                ports: 1,
                settings: self.settings.get(name).cloned().unwrap_or_default(),
            })
            .collect();
        ModelConfig {
            seed: 1,
            capture: (!self.measured).then(|| CaptureConfig {
                dir: pcap_dir.into(),
                limits: KEPT,
            }),
            control: sockets.join("model.sock"),
            coverage: coverage_file(pcap_dir),
            hca,
            switch: self.switches.clone(),
            link: self
                .links
                .iter()
                .cloned()
                .map(|ends| LinkConfig { ends })
                .collect(),
        }
    }
}

/// The vfio-user socket of an HCA.
pub fn hca_socket(sockets: &Path, hca: &str) -> PathBuf {
    sockets.join(format!("{hca}.hca"))
}

/// Where the model of a run says what of the interface was used.
pub fn coverage_file(run: &Path) -> PathBuf {
    run.join("coverage.json")
}

/// The datagram sockets of a guest's Ethernet: QEMU's, and that of the lab.
pub fn ethernet_sockets(sockets: &Path) -> [PathBuf; 2] {
    ["ethernet.guest", "ethernet.lab"].map(|name| sockets.join(name))
}

/// The file that `qiao-model --config` reads.
#[derive(Clone, Debug, Serialize)]
pub struct ModelConfig {
    seed: u64,
    /// Socket on which the running model takes orders.
    pub control: PathBuf,
    coverage: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    capture: Option<CaptureConfig>,
    hca: Vec<HcaConfig>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    switch: Vec<SwitchConfig>,
    link: Vec<LinkConfig>,
}

#[derive(Clone, Debug, Serialize)]
struct CaptureConfig {
    dir: PathBuf,
    limits: Limits,
}

#[derive(Clone, Debug, Serialize)]
struct Limits {
    bytes: u64,
    files: u32,
}

/// Of each port the newest packets, which tell of what has failed.
const KEPT: Limits = Limits {
    bytes: 32 << 20,
    files: 2,
};

#[derive(Clone, Debug, Serialize)]
struct HcaConfig {
    name: String,
    socket: PathBuf,
    ports: u8,
    #[serde(flatten)]
    settings: toml::Table,
}

#[derive(Clone, Debug, Serialize)]
struct SwitchConfig {
    name: String,
    ports: u8,
}

#[derive(Clone, Debug, Serialize)]
struct LinkConfig {
    ends: [String; 2],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_told_of_every_hca_and_link() {
        let topology = Topology::default()
            .guest("a", &["a0"])
            .guest("b", &["b0"])
            .link("a0", "b0")
            .hca_settings("b0", "overrides = { magic = 7 }")
            .polled_doorbells();
        assert!(topology.has_hcas());
        let config = topology.model_config(Path::new("/tmp/q"), Path::new("/tmp/run"));
        let text = toml::to_string(&config).unwrap();
        let expected = r#"seed = 1
control = "/tmp/q/model.sock"
coverage = "/tmp/run/coverage.json"

[capture]
dir = "/tmp/run"

[capture.limits]
bytes = 33554432
files = 2

[[hca]]
name = "a0"
socket = "/tmp/q/a0.hca"
ports = 1
doorbells = "polled"

[[hca]]
name = "b0"
socket = "/tmp/q/b0.hca"
ports = 1
doorbells = "polled"

[hca.overrides]
magic = 7

[[link]]
ends = ["a0:1", "b0:1"]
"#;
        assert_eq!(text, expected);
        let quiet = topology.measured();
        let config = quiet.model_config(Path::new("/tmp/q"), Path::new("/tmp/run"));
        assert!(!toml::to_string(&config).unwrap().contains("capture"));
    }
}
