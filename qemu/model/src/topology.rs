// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the topology of a subnet as `ibnetdiscover` prints it.

use anyhow::{bail, ensure, Context, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Nodes and links of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovered {
    /// Switches: name, number of ports, GUID.
    pub switches: Vec<(String, u8, u64)>,
    /// Names of the HCAs.
    pub hcas: Vec<String>,
    /// Links, each once, with ends as `name:port`.
    pub links: Vec<[String; 2]>,
}

/// A node of the file: its id as `S-` or `H-` and a GUID, and its name.
struct Node {
    name: String,
    /// Own port, id and port of the peer.
    links: Vec<(u8, String, u8)>,
}

/// Reads a file. Nodes are called by the first word of their description, or by their id if they have none.
///
/// # Errors
///
/// If a line is not one of such a file, a name is used twice, or a link leads to a node that is not described.
pub fn parse(text: &str) -> Result<Discovered> {
    let mut found = Discovered::default();
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    let mut current = None;
    for (n, line) in text.lines().enumerate() {
        let at = || format!("line {} of the topology: `{line}`", n + 1);
        let (fields, comment) = line.split_once('#').unwrap_or((line, ""));
        let kind = fields.split_whitespace().next().unwrap_or("");
        match kind {
            "Switch" | "Ca" => {
                let (ports, id) = heading(fields).with_context(at)?;
                let name = name(comment).unwrap_or_else(|| id.clone());
                let guid = u64::from_str_radix(id.get(2..).unwrap_or(""), 16).with_context(at)?;
                if kind == "Switch" {
                    found.switches.push((name.clone(), ports, guid));
                } else {
                    found.hcas.push(name.clone());
                }
                let links = Vec::new();
                let old = nodes.insert(id.clone(), Node { name, links });
                ensure!(old.is_none(), "{}: described twice", at());
                current = Some(id);
            }
            port if port.starts_with('[') => {
                let node = current.as_ref().and_then(|id| nodes.get_mut(id));
                let node = node.with_context(at)?;
                node.links.push(link(fields).with_context(at)?);
            }
            "" => {}
            // Vendor, device and GUIDs are in front of a node.
            other if other.contains('=') => current = None,
            _ => bail!("{}: neither a node nor a link", at()),
        }
    }
    let mut names = BTreeSet::new();
    for node in nodes.values() {
        ensure!(
            names.insert(&node.name),
            "two nodes are named `{}`",
            node.name
        );
    }
    let mut seen = BTreeSet::new();
    for (id, node) in &nodes {
        for (port, peer, peer_port) in &node.links {
            let other = nodes
                .get(peer)
                .with_context(|| format!("no node `{peer}`"))?;
            if seen.contains(&(peer.clone(), *peer_port)) {
                continue;
            }
            seen.insert((id.clone(), *port));
            let ends = [(node, port), (other, peer_port)];
            found
                .links
                .push(ends.map(|(node, port)| format!("{}:{port}", node.name)));
        }
    }
    Ok(found)
}

/// Reads `Switch 24 "S-0008f10403960984"`: number of ports and id.
fn heading(fields: &str) -> Option<(u8, String)> {
    let ports = fields.split_whitespace().nth(1)?.parse().ok()?;
    Some((ports, quoted(fields)?.to_owned()))
}

/// Reads `[1](2c90200216a25) "S-0008f10403960984"[13]`: own port, id and port of the peer.
fn link(fields: &str) -> Option<(u8, String, u8)> {
    let bracketed = |text: &str| -> Option<u8> {
        let (_, rest) = text.split_once('[')?;
        rest.split_once(']')?.0.parse().ok()
    };
    let own = bracketed(fields)?;
    let id = quoted(fields)?;
    let (_, behind) = fields.rsplit_once('"')?;
    Some((own, id.to_owned(), bracketed(behind)?))
}

fn quoted(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('"')?;
    Some(rest.split_once('"')?.0)
}

fn name(comment: &str) -> Option<String> {
    let word = quoted(comment)?.split_whitespace().next()?;
    Some(word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use qiao_fabric::net::Attach;
    use qiao_fabric::shape::Shape;

    const FILE: &str = r#"
#
# Topology file: generated on Wed Dec  2 10:00:00 2026
#
# Initiated from node 0000000000001000 port 0000000000001001

vendid=0x525400
devid=0x10f0
sysimgguid=0xff01
switchguid=0xff01(ff01)
Switch	4 "S-000000000000ff01"		# "s1" base port 0 lid 2 lmc 0
[1]	"H-0000000000001000"[1](1001) 		# "a0 HCA-1" lid 1 4xNDR
[3]	"S-000000000000ff02"[3]		# "s2" lid 3 4xNDR

switchguid=0xff02(ff02)
Switch	4 "S-000000000000ff02"		# "s2" base port 0 lid 3 lmc 0
[3]	"S-000000000000ff01"[3]		# "s1" lid 2 4xNDR

caguid=0x1000
Ca	1 "H-0000000000001000"		# "a0 HCA-1"
[1](1001) 	"S-000000000000ff01"[1]		# lid 1 lmc 0 "s1" lid 2 4xNDR
"#;

    #[test]
    fn what_ibnetdiscover_prints_is_read() {
        let found = parse(FILE).unwrap();
        let switches = [("s1".into(), 4, 0xff01), ("s2".into(), 4, 0xff02)];
        assert_eq!(found.switches, switches);
        assert_eq!(found.hcas, ["a0"]);
        assert_eq!(
            found.links,
            [["a0:1", "s1:1"], ["s1:3", "s2:3"]].map(|ends| ends.map(str::to_owned))
        );
    }

    #[test]
    fn what_a_shape_prints_is_read() {
        for shape in ["single:5", "fat-tree:4"] {
            let shape: Shape = shape.parse().unwrap();
            let found = parse(&shape.to_string()).unwrap();
            let hosts: BTreeSet<String> = (0..shape.hosts).map(|n| format!("h{n}")).collect();
            assert_eq!(found.hcas.into_iter().collect::<BTreeSet<_>>(), hosts);
            let ports: Vec<u8> = found.switches.iter().map(|(_, ports, _)| *ports).collect();
            assert_eq!(ports, shape.switches);
            let name = |end| match end {
                Attach::Host(n) => format!("h{n}:1"),
                Attach::Switch { switch, port } => format!("s{switch}:{port}"),
            };
            let sorted = |mut ends: [String; 2]| {
                ends.sort();
                ends
            };
            let wanted: BTreeSet<_> = shape
                .links
                .iter()
                .map(|ends| sorted(ends.map(name)))
                .collect();
            let links: BTreeSet<_> = found.links.into_iter().map(sorted).collect();
            assert_eq!(links, wanted);
        }
    }

    #[test]
    fn mistakes_are_refused() {
        for (from, to) in [
            ("Switch\t4 \"S-000000000000ff02\"", "Swatch 4"),
            ("# \"s2\" base", "# \"s1\" base"),
            (
                "\"H-0000000000001000\"[1](1001)",
                "\"H-0000000000009999\"[1]",
            ),
            (
                "[3]\t\"S-000000000000ff01\"[3]",
                "[3]\t\"S-000000000000ff01\"",
            ),
            ("Ca\t1 ", "Ca\tone "),
        ] {
            assert!(FILE.contains(from), "{from}");
            assert!(parse(&FILE.replace(from, to)).is_err(), "{from} -> {to}");
        }
    }
}
