// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Management datagrams: the distribution's diagnostic programs.

use anyhow::{ensure, Context, Result};

use super::{driver, function::Function, Part, Scenario};
use crate::{
    report::Report,
    session::{Guest, Session, SHORT},
    topology::Topology,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "mads",
    about: "ibstat, smpquery and perfquery, by LID and by directed route, through the kernel's management stack",
    alarm: None,
    parts: &[Part::Driver, Part::Provider, Part::Model],
    topology: || Topology::default().guest("a", &["a0", "a1"]).link("a0", "a1"),
    run,
};

/// Bit of PortInfo.CapabilityMask (IBTA 14.2.5.6) that says that the host has a connection manager.
const CONNECTION_MANAGEMENT: u32 = 1 << 16;

/// An HCA as the kernel shows it.
struct Hca<'a> {
    guest: &'a Guest,
    device: String,
    /// GUID of the node, as the programs print it.
    guid: String,
    lid: u16,
}

impl<'a> Hca<'a> {
    fn new(guest: &'a Guest, device: String) -> Result<Self> {
        let read = |file: &str| -> Result<String> {
            let command = format!("cat /sys/class/infiniband/{device}/{file}");
            Ok(guest.run(&command, SHORT)?.stdout.trim().to_owned())
        };
        let guid = format!("0x{}", read("node_guid")?.replace(':', ""));
        let lid = read("ports/1/lid")?;
        let lid = u16::from_str_radix(lid.trim_start_matches("0x"), 16)
            .with_context(|| format!("LID {lid}"))?;
        ensure!(lid != 0, "{device} has no LID");
        Ok(Self {
            guest,
            device,
            guid,
            lid,
        })
    }

    /// What a program says that sends from this HCA.
    fn ask(&self, program: &str, what: &str) -> Result<String> {
        let command = format!("{program} -C {} -P 1 {what}", self.device);
        Ok(self.guest.run(&command, SHORT)?.stdout)
    }

    /// Asks for the node at an address, which must be `node`.
    fn find(&self, address: &str, node: &Self) -> Result<String> {
        let said = self.ask("smpquery", &format!("nodeinfo {address}"))?;
        let guid = field(&said, "Guid")?;
        ensure!(guid == node.guid, "node {guid}, not {}:\n{said}", node.guid);
        ensure!(field(&said, "NodeType")? == "Channel Adapter", "{said}");
        Ok(guid.to_owned())
    }

    /// PortInfo.CapabilityMask of the port at a LID.
    fn capabilities(&self, lid: u16) -> Result<u32> {
        let said = self.ask("smpquery", &format!("portinfo {lid} 1"))?;
        let mask = field(&said, "CapMask")?.trim_start_matches("0x");
        u32::from_str_radix(mask, 16).with_context(|| said.clone())
    }

    /// A counter of the port at a LID.
    fn counter(&self, lid: u16, name: &str) -> Result<u64> {
        let said = self.ask("perfquery", &format!("-x {lid} 1"))?;
        field(&said, name)?.parse().with_context(|| said.clone())
    }
}

/// The value of a line `NAME:.....VALUE`.
fn field<'a>(text: &'a str, name: &str) -> Result<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(|value| value.trim_start_matches('.'))
        .with_context(|| format!("no {name} in:\n{text}"))
}

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let guest = &session.guests[0];
    driver::load(guest)?;
    guest.run("modprobe ib_umad", SHORT)?;
    let functions = Function::all(guest, 2)?;
    let [one, other] = functions.as_slice() else {
        unreachable!("all functions are there");
    };
    let one = Hca::new(guest, one.require_rdma_device()?)?;
    let other = Hca::new(guest, other.require_rdma_device()?)?;

    report.test("ibstat", || {
        let said = guest
            .run(&format!("ibstat {} 1", one.device), SHORT)?
            .stdout;
        let lines: Vec<&str> = said.lines().map(str::trim).collect();
        for line in [
            "State: Active",
            "Physical state: LinkUp",
            "Link layer: InfiniBand",
        ] {
            ensure!(lines.contains(&line), "no {line} in:\n{said}");
        }
        ensure!(
            lines.contains(&format!("Base lid: {}", one.lid).as_str()),
            "{said}"
        );
        Ok("")
    });
    report.test("smpquery of the own node by directed route", || {
        one.find("-D 0", &one)
    });
    report.test("smpquery of the peer by directed route", || {
        one.find("-D 0,1", &other)
    });
    report.test("smpquery of the own node by LID", || {
        one.find(&one.lid.to_string(), &one)
    });
    report.test("smpquery of the peer by LID", || {
        other.find(&one.lid.to_string(), &one)
    });
    report.test("smpquery portinfo", || {
        let said = one.ask("smpquery", &format!("portinfo {} 1", other.lid))?;
        ensure!(field(&said, "LinkState")? == "Active", "{said}");
        ensure!(field(&said, "Lid")? == other.lid.to_string(), "{said}");
        Ok("")
    });
    report.test("capabilities of what the host runs", || {
        let steps = [
            ("true", false),
            ("modprobe ib_cm", true),
            ("rmmod ib_cm", false),
        ];
        for (command, there) in steps {
            guest.run(command, SHORT)?;
            let mask = one.capabilities(other.lid)?;
            ensure!(
                (mask & CONNECTION_MANAGEMENT != 0) == there,
                "capabilities {mask:#x} after {command}"
            );
        }
        Ok("")
    });
    report.test("perfquery of the own port", || {
        let before = one.counter(one.lid, "PortXmitPkts")?;
        one.find(&other.lid.to_string(), &other)?;
        let after = one.counter(one.lid, "PortXmitPkts")?;
        ensure!(after > before, "{before}, then {after} packets");
        Ok(format!("{after} packets"))
    });
    report.test("perfquery of the peer", || {
        let packets = one.counter(other.lid, "PortRcvPkts")?;
        ensure!(packets > 0, "the peer has received nothing");
        Ok(format!("{packets} packets"))
    });
    report.test("counters in sysfs", || {
        let file = format!(
            "/sys/class/infiniband/{}/ports/1/counters/port_rcv_packets",
            one.device
        );
        let said = guest.run(&format!("cat {file}"), SHORT)?.stdout;
        let packets: u64 = said.trim().parse().with_context(|| said.clone())?;
        ensure!(packets > 0, "no packet was received");
        Ok(format!("{packets} packets"))
    });
    report.test("rmmod with ib_umad open", || {
        let device = "/dev/infiniband/umad0";
        guest.run(&format!("exec 9<>{device} && rmmod qiao"), SHORT)?;
        driver::devices(guest, 0).map(|_| "")
    });
    report.test("insmod and rmmod", || {
        driver::load(guest)?;
        driver::devices(guest, 2)?;
        guest.run("rmmod qiao", SHORT).map(|_| "")
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "# Node info: Lid 1\nNodeType:........................Channel Adapter\nGuid:............................0x02\n";
        assert_eq!(field(text, "NodeType").unwrap(), "Channel Adapter");
        assert_eq!(field(text, "Guid").unwrap(), "0x02");
        assert!(field(text, "Node").is_err());
    }
}
