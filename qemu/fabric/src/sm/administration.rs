// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Subnet administration (IBTA chapter 15): what clients ask the manager for. Paths, multicast groups, nodes and ports; an
//! answer is one datagram.

use super::{Manager, Phase};
use crate::mad::{
    attribute, method, Address, ClassPortInfo, Mad, McMemberRecord, NodeRecord, PathRecord,
    PortInfoRecord, SaMad, BASE_VERSION, MULTICAST_BASE,
};
use crate::node::{DEFAULT_PKEY, DEFAULT_PREFIX};
use std::collections::BTreeMap;
use zerocopy::{FromZeros, IntoBytes};

/// Codes of the status of administration (IBTA table 188), in bits 15:8.
mod status {
    pub const NO_RESOURCES: u16 = 1 << 8;
    pub const REQUEST_INVALID: u16 = 2 << 8;
    pub const NO_RECORDS: u16 = 3 << 8;
    pub const TOO_MANY: u16 = 4 << 8;
    pub const INVALID_GID: u16 = 5 << 8;
    pub const INSUFFICIENT: u16 = 6 << 8;
}

/// Components of a PathRecord (IBTA table 205).
mod path {
    pub const DGID: u64 = 1 << 2;
    pub const SGID: u64 = 1 << 3;
    pub const DLID: u64 = 1 << 4;
    pub const SLID: u64 = 1 << 5;
    pub const PKEY: u64 = 1 << 13;
}

/// Components of an MCMemberRecord (IBTA table 210).
mod member {
    pub const MGID: u64 = 1 << 0;
    pub const PORT_GID: u64 = 1 << 1;
    pub const QKEY: u64 = 1 << 2;
    pub const TCLASS: u64 = 1 << 6;
    pub const PKEY: u64 = 1 << 7;
    pub const SL: u64 = 1 << 12;
    pub const FLOW: u64 = 1 << 13;
    pub const JOIN_STATE: u64 = 1 << 16;
    /// What a join that makes a group says (IBTA 15.2.5.17.2).
    pub const CREATE: u64 = QKEY | TCLASS | PKEY | SL | FLOW;
}

/// Selector of an exact value.
const EXACTLY: u8 = 2 << 6;

/// MTU code of 4096 bytes, and the one of IPoIB's groups, 2048.
const MTU: u8 = 5;
const GROUP_MTU: u8 = 4;

/// Rate code of 400 Gb/s, and the one of IPoIB's groups, 10 Gb/s.
const RATE: u8 = 21;
const GROUP_RATE: u8 = 3;

/// Packet lifetime: 4.096 us * 2^18.
const LIFE: u8 = 18;

/// Q_Key of IPoIB.
const IPOIB_QKEY: u32 = 0x0b1b;

/// Multicast LIDs that the manager gives away.
const GROUPS: u16 = 512;

/// A multicast group.
#[derive(Clone, Debug)]
struct Group {
    record: McMemberRecord,
    /// Join state by port GID.
    members: BTreeMap<[u8; 16], u8>,
    /// It stays without members.
    permanent: bool,
}

/// All multicast groups by MGID.
#[derive(Clone, Debug)]
pub(super) struct Groups(BTreeMap<[u8; 16], Group>);

impl Default for Groups {
    /// The broadcast group of IPoIB exists before anyone joins it (RFC 4391, 5).
    fn default() -> Self {
        let mut record = McMemberRecord::new_zeroed();
        record.mgid = broadcast(DEFAULT_PKEY);
        record.qkey.set(IPOIB_QKEY);
        record.mlid.set(MULTICAST_BASE);
        record.mtu = EXACTLY | GROUP_MTU;
        record.pkey.set(DEFAULT_PKEY);
        record.rate = EXACTLY | GROUP_RATE;
        record.life = EXACTLY | LIFE;
        record.scope_state = 2 << 4;
        let group = Group {
            record,
            members: BTreeMap::new(),
            permanent: true,
        };
        Self(BTreeMap::from([(record.mgid, group)]))
    }
}

/// Returns the MGID of the broadcast group of IPoIB over IPv4 in a partition (RFC 4391, 4).
fn broadcast(pkey: u16) -> [u8; 16] {
    let mut mgid = [0; 16];
    mgid[..4].copy_from_slice(&[0xff, 0x12, 0x40, 0x1b]);
    mgid[4..6].copy_from_slice(&pkey.to_be_bytes());
    mgid[12..].fill(0xff);
    mgid
}

/// Returns the GUID in a GID.
fn guid_of(gid: &[u8; 16]) -> u64 {
    u64::from_be_bytes(std::array::from_fn(|n| gid[8 + n]))
}

impl Groups {
    /// Returns the LIDs of groups that anybody has joined ever; those without members too, whose tables are emptied.
    pub fn lids(&self) -> Vec<u16> {
        self.0
            .values()
            .map(|group| group.record.mlid.get())
            .collect()
    }

    /// Returns the port GUIDs of the members of a group that receive, or send to it.
    pub fn members(&self, lid: u16) -> Vec<u64> {
        let of_lid = self
            .0
            .values()
            .filter(|group| group.record.mlid.get() == lid);
        of_lid
            .flat_map(|group| group.members.keys().map(guid_of))
            .collect()
    }

    fn free_lid(&self) -> Option<u16> {
        let used = self.lids();
        (MULTICAST_BASE..MULTICAST_BASE + GROUPS).find(|lid| !used.contains(lid))
    }
}

/// A port that has a LID, as clients name it.
#[derive(Clone, Copy, Debug)]
struct End {
    guid: u64,
    lid: u16,
}

impl Manager {
    /// Answers a request of a client.
    pub(super) fn administration_in(&mut self, from: &Address, mad: &Mad) {
        let mut sa = SaMad::from_mad(mad);
        // Of the answers of one datagram the client acknowledges; nothing waits for that.
        if sa.is_control() || sa.head.base_version != BASE_VERSION {
            return;
        }
        let attribute = sa.head.attribute.get();
        let result = match (sa.head.method, attribute) {
            (method::GET, attribute::CLASS_PORT_INFO) => Ok(vec![class_port_info()]),
            (method::GET | method::GET_TABLE, attribute::PATH_RECORD) => self.paths(&sa),
            (method::GET | method::GET_TABLE, attribute::NODE_RECORD) => self.node_records(&sa),
            (method::GET | method::GET_TABLE, attribute::PORT_INFO_RECORD) => {
                self.port_records(&sa)
            }
            (method::GET | method::GET_TABLE, attribute::MC_MEMBER_RECORD) => {
                self.group_records(&sa)
            }
            (method::SET, attribute::MC_MEMBER_RECORD) => self.join(&sa),
            (method::DELETE, attribute::MC_MEMBER_RECORD) => self.leave(&sa),
            _ => Err(crate::mad::status::UNSUPPORTED_ATTRIBUTE),
        };
        let is_table = sa.head.method == method::GET_TABLE;
        let code = match result {
            Ok(records) if is_table => sa.respond_table(&records),
            Ok(records) => match records.as_slice() {
                [record] => sa.respond(record),
                [] => Err(status::NO_RECORDS),
                _ => Err(status::TOO_MANY),
            },
            Err(code) => Err(code),
        };
        if let Err(code) = code {
            sa.refuse(code);
        }
        self.outbox.push((from.answer(), sa.to_mad()));
    }

    fn all_ends(&self) -> Vec<End> {
        let ends = self.subnet.ends().into_iter();
        ends.filter_map(|(node, number)| {
            let guid = self.subnet.nodes[&node].port_guid(number);
            let lid = *self.lids.get(&guid)?;
            Some(End { guid, lid })
        })
        .collect()
    }

    /// Returns the end that a GID, or else a LID, names.
    fn end_of(&self, gid: Option<&[u8; 16]>, lid: Option<u16>) -> Result<Option<End>, u16> {
        let ends = self.all_ends();
        let wanted = |end: &&End| match gid {
            Some(gid) => end.guid == guid_of(gid),
            None => Some(end.lid) == lid,
        };
        if gid.is_none() && lid.is_none() {
            return Ok(None);
        }
        let found = ends.iter().find(wanted).copied();
        let otherwise = if gid.is_some() {
            status::INVALID_GID
        } else {
            status::NO_RECORDS
        };
        found.map(Some).ok_or(otherwise)
    }

    fn paths(&self, sa: &SaMad) -> Result<Vec<Vec<u8>>, u16> {
        let mask = sa.mask.get();
        let wanted: PathRecord = *sa.attribute();
        let has = |bit| mask & bit != 0;
        let source = self.end_of(
            has(path::SGID).then_some(&wanted.sgid),
            has(path::SLID).then_some(wanted.slid.get()),
        )?;
        let source = source.ok_or(status::INSUFFICIENT)?;
        let destination = self.end_of(
            has(path::DGID).then_some(&wanted.dgid),
            has(path::DLID).then_some(wanted.dlid.get()),
        )?;
        let destinations = destination.map_or_else(|| self.all_ends(), |end| vec![end]);
        let pkey = if has(path::PKEY) {
            wanted.pkey.get()
        } else {
            DEFAULT_PKEY
        };
        let record = |to: End| {
            let mut record = PathRecord::new_zeroed();
            (record.sgid, record.dgid) = (gid(source.guid), gid(to.guid));
            record.slid.set(source.lid);
            record.dlid.set(to.lid);
            // Reversible; one path.
            record.reversible = 0x80 | 1;
            record.pkey.set(pkey);
            record.mtu = EXACTLY | MTU;
            record.rate = EXACTLY | RATE;
            record.life = EXACTLY | LIFE;
            record.as_bytes().to_vec()
        };
        Ok(destinations.into_iter().map(record).collect())
    }

    fn node_records(&self, sa: &SaMad) -> Result<Vec<Vec<u8>>, u16> {
        const LID: u64 = 1;
        let wanted: NodeRecord = *sa.attribute();
        let mut records = Vec::new();
        for (guid, number) in self.subnet.ends() {
            let node = &self.subnet.nodes[&guid];
            let port_guid = node.port_guid(number);
            let Some(&lid) = self.lids.get(&port_guid) else {
                continue;
            };
            if sa.mask.get() & LID != 0 && wanted.lid.get() != lid {
                continue;
            }
            let mut record = NodeRecord::new_zeroed();
            record.lid.set(lid);
            record.info = node.info;
            record.info.port_guid.set(port_guid);
            record.description = node.description;
            records.push(record.as_bytes().to_vec());
        }
        Ok(records)
    }

    fn port_records(&self, sa: &SaMad) -> Result<Vec<Vec<u8>>, u16> {
        const LID: u64 = 1;
        const NUMBER: u64 = 2;
        let (mask, wanted) = (sa.mask.get(), *sa.attribute::<PortInfoRecord>());
        let mut records = Vec::new();
        for at in self.subnet.all_ports() {
            let node = &self.subnet.nodes[&at.0];
            let lid = self.lids.get(&node.port_guid(at.1)).copied();
            let (Some(lid), Some(port)) = (lid, self.subnet.port(at)) else {
                continue;
            };
            let matches = (mask & LID == 0 || wanted.lid.get() == lid)
                && (mask & NUMBER == 0 || wanted.number == at.1);
            if !matches {
                continue;
            }
            let mut record = PortInfoRecord::new_zeroed();
            record.lid.set(lid);
            record.number = at.1;
            record.info = port.info;
            records.push(record.as_bytes().to_vec());
        }
        Ok(records)
    }

    fn group_records(&self, sa: &SaMad) -> Result<Vec<Vec<u8>>, u16> {
        let wanted: McMemberRecord = *sa.attribute();
        let by_mgid = sa.mask.get() & member::MGID != 0;
        let groups = self.groups.0.values();
        let found = groups.filter(|group| !by_mgid || group.record.mgid == wanted.mgid);
        Ok(found
            .map(|group| group.record.as_bytes().to_vec())
            .collect())
    }

    fn join(&mut self, sa: &SaMad) -> Result<Vec<Vec<u8>>, u16> {
        const NEEDED: u64 = member::MGID | member::PORT_GID | member::JOIN_STATE;
        let (mask, wanted) = (sa.mask.get(), *sa.attribute::<McMemberRecord>());
        if mask & NEEDED != NEEDED {
            return Err(status::INSUFFICIENT);
        }
        let states = wanted.scope_state & 0xf;
        let is_multicast = wanted.mgid[0] == 0xff;
        if states == 0 || !is_multicast {
            return Err(status::REQUEST_INVALID);
        }
        self.end_of(Some(&wanted.port_gid), None)?;
        if !self.groups.0.contains_key(&wanted.mgid) {
            if mask & member::CREATE != member::CREATE {
                return Err(status::REQUEST_INVALID);
            }
            self.create(&wanted)?;
        }
        let group = self.groups.0.get_mut(&wanted.mgid);
        let group = group.ok_or(status::NO_RESOURCES)?;
        let agrees = (mask & member::QKEY == 0 || group.record.qkey == wanted.qkey)
            && (mask & member::PKEY == 0 || group.record.pkey == wanted.pkey);
        if !agrees {
            return Err(status::REQUEST_INVALID);
        }
        let state = group.members.entry(wanted.port_gid).or_default();
        *state |= states;
        let mut record = group.record;
        record.port_gid = wanted.port_gid;
        record.scope_state = record.scope_state & 0xf0 | *state;
        self.groups_changed();
        Ok(vec![record.as_bytes().to_vec()])
    }

    fn create(&mut self, wanted: &McMemberRecord) -> Result<(), u16> {
        let mut record = *wanted;
        record.port_gid = [0; 16];
        record
            .mlid
            .set(self.groups.free_lid().ok_or(status::NO_RESOURCES)?);
        for (value, default) in [
            (&mut record.mtu, GROUP_MTU),
            (&mut record.rate, GROUP_RATE),
            (&mut record.life, LIFE),
        ] {
            let asked = *value & 0x3f;
            *value = EXACTLY | if asked == 0 { default } else { asked };
        }
        record.scope_state = (wanted.mgid[1] & 0xf) << 4;
        let group = Group {
            record,
            members: BTreeMap::new(),
            permanent: false,
        };
        self.groups.0.insert(record.mgid, group);
        Ok(())
    }

    fn leave(&mut self, sa: &SaMad) -> Result<Vec<Vec<u8>>, u16> {
        let wanted: McMemberRecord = *sa.attribute();
        let group = self.groups.0.get_mut(&wanted.mgid);
        let group = group.ok_or(status::REQUEST_INVALID)?;
        let state = group.members.get_mut(&wanted.port_gid);
        let state = state.ok_or(status::REQUEST_INVALID)?;
        let left = *state & !(wanted.scope_state & 0xf);
        *state = left;
        let mut record = group.record;
        record.port_gid = wanted.port_gid;
        record.scope_state = record.scope_state & 0xf0 | wanted.scope_state & 0xf;
        if left == 0 {
            group.members.remove(&wanted.port_gid);
        }
        self.groups_changed();
        // Only now: the tables of the group are emptied first.
        self.groups
            .0
            .retain(|_, group| group.permanent || !group.members.is_empty());
        Ok(vec![record.as_bytes().to_vec()])
    }

    /// Brings the multicast tables up to date, or has the sweep that is under way do so.
    fn groups_changed(&mut self) {
        if self.phase != Phase::Idle {
            self.again = true;
            return;
        }
        // The plan is made of what is being found; nothing is, now.
        std::mem::swap(&mut self.subnet, &mut self.finding);
        let routes = self.finding.graph().routes();
        self.set_multicast(&routes);
        std::mem::swap(&mut self.subnet, &mut self.finding);
    }
}

fn gid(guid: u64) -> [u8; 16] {
    ((u128::from(DEFAULT_PREFIX) << 64) | u128::from(guid)).to_be_bytes()
}

fn class_port_info() -> Vec<u8> {
    /// UD multicast is supported (IBTA table 187).
    const MULTICAST: u16 = 1 << 9;
    let mut info = ClassPortInfo::new_zeroed();
    info.base_version = BASE_VERSION;
    info.class_version = SaMad::CLASS_VERSION;
    info.capability_mask.set(MULTICAST);
    info.response_time.set(16);
    info.as_bytes().to_vec()
}
