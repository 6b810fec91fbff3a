// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The PCI functions of a guest's HCAs, as sysfs shows them.

use anyhow::{ensure, Context, Result};
use qiao_hw::bar::pci::CLASS;

use crate::session::{Guest, SHORT};

/// The function of one HCA.
pub(super) struct Function<'a> {
    guest: &'a Guest,
    /// Domain, bus, device and function.
    pub address: String,
}

impl<'a> Function<'a> {
    /// The functions of a guest that has `count` HCAs, in the order of the topology: each is behind a root port of its own, and
    /// buses are numbered in the order of these.
    pub fn all(guest: &'a Guest, count: usize) -> Result<Vec<Self>> {
        let command = format!("cd /sys/bus/pci/devices && grep -l '^{CLASS:#08x}$' */class");
        let listed = guest.run(&command, SHORT)?.stdout;
        let functions: Vec<Self> = listed
            .lines()
            .filter_map(|line| line.split_once('/'))
            .map(|(address, _)| Self {
                guest,
                address: address.into(),
            })
            .collect();
        ensure!(
            functions.len() == count,
            "the guest has {} HCAs instead of {count}:\n{listed}",
            functions.len()
        );
        Ok(functions)
    }

    /// Name of its RDMA device, if it has one.
    pub fn rdma_device(&self) -> Result<Option<String>> {
        let command = format!(
            "cd /sys/bus/pci/devices/{} && if [ -d infiniband ]; then ls infiniband; fi",
            self.address
        );
        let name = self.guest.run(&command, SHORT)?.stdout;
        Ok(Some(name.trim().to_owned()).filter(|name| !name.is_empty()))
    }

    /// Name of its RDMA device, which it must have.
    pub fn require_rdma_device(&self) -> Result<String> {
        self.rdma_device()?
            .with_context(|| format!("{} has no RDMA device", self.address))
    }

    /// How the IOMMU serves it, as the kernel calls that.
    pub fn iommu_group_type(&self) -> Result<String> {
        let command = format!("cat /sys/bus/pci/devices/{}/iommu_group/type", self.address);
        let found = self.guest.run(&command, SHORT)?.stdout;
        Ok(found.trim().to_owned())
    }

    /// Takes it from the driver.
    pub fn unbind(&self) -> Result<()> {
        self.write("drivers/qiao/unbind", &self.address)
    }

    /// Gives it to the driver.
    pub fn bind(&self) -> Result<()> {
        self.write("drivers/qiao/bind", &self.address)
    }

    /// Removes it, as hot unplug does.
    pub fn remove(&self) -> Result<()> {
        self.write(&format!("devices/{}/remove", self.address), "1")
    }

    /// Looks for devices that were plugged in.
    pub fn rescan(&self) -> Result<()> {
        self.write("rescan", "1")
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let command = format!("echo {text} >/sys/bus/pci/{file}");
        self.guest.run(&command, SHORT).map(drop)
    }

    /// What the driver, or the kernel on its behalf, has said about it.
    pub fn kernel_lines(&self) -> Result<Vec<String>> {
        let command = format!("dmesg --notime | grep '^qiao {}: ' || true", self.address);
        let lines = self.guest.run(&command, SHORT)?.stdout;
        let start = format!("qiao {}: ", self.address);
        Ok(lines
            .lines()
            .filter_map(|line| line.strip_prefix(&start))
            .map(Into::into)
            .collect())
    }
}
