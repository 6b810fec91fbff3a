// SPDX-License-Identifier: GPL-2.0

//! Ports.

use crate::hca::Hca;
use kernel::prelude::*;
use qiao_hw::{
    caps::feature,
    cmd::{
        self,
        port_change,
        LinkLayer,
        ModifyPort,
        QueryGid,
        QueryPkey,
        QueryPort, //
    },
    qp, //
};
use rdma::{
    Gid,
    Mtu,
    PhysState,
    PortAttr,
    PortImmutable,
    PortModify,
    PortState, //
};

/// What of a port the core builds tables for.
///
/// It is read once: a device that said something else later would make the core go beyond its
/// tables.
#[derive(Clone, Copy)]
struct Limits {
    gid_table_len: u16,
    pkey_table_len: u16,
}

/// The ports of a device.
pub(crate) struct Ports(KVec<Limits>);

impl Ports {
    /// Asks the device for its ports.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if a port is not an InfiniBand port, `EIO` if it has no GID or P_Key, or the
    /// error of the command.
    pub(crate) fn new(hca: &Hca<'_>) -> Result<Self> {
        let mut ports = KVec::new();
        for port in 1..=hca.caps().num_ports {
            let attr = query(hca, port)?;
            if LinkLayer::from_wire(attr.link_layer) != Some(LinkLayer::InfiniBand) {
                return Err(EOPNOTSUPP);
            }
            let limits = Limits {
                gid_table_len: attr.gid_table_len.get(),
                pkey_table_len: attr.pkey_table_len.get(),
            };
            if limits.gid_table_len == 0 || limits.pkey_table_len == 0 {
                return Err(EIO);
            }
            ports.push(limits, GFP_KERNEL)?;
        }
        Ok(Self(ports))
    }

    /// Returns the length of the longest P_Key table.
    pub(crate) fn max_pkeys(&self) -> u16 {
        self.0.iter().map(|p| p.pkey_table_len).max().unwrap_or(0)
    }

    /// Returns the number of `port` as the device takes it, and its limits.
    fn get(&self, port: u32) -> Result<(u8, Limits)> {
        let number = u8::try_from(port)?;
        let index = usize::from(number).checked_sub(1).ok_or(EINVAL)?;
        Ok((number, *self.0.get(index).ok_or(EINVAL)?))
    }

    pub(crate) fn immutable(&self, hca: &Hca<'_>, port: u32) -> Result<PortImmutable> {
        let (_, limits) = self.get(port)?;
        Ok(PortImmutable {
            gid_tbl_len: limits.gid_table_len,
            pkey_tbl_len: limits.pkey_table_len,
            mads: hca.has(feature::MAD),
        })
    }

    pub(crate) fn modify(&self, hca: &Hca<'_>, port: u32, modify: &PortModify) -> Result {
        let (number, _) = self.get(port)?;
        let mut cmd = ModifyPort::zeroed();
        cmd.port = number;
        if modify.set_caps != 0 || modify.clear_caps != 0 {
            cmd.changes |= port_change::CAPABILITIES;
            cmd.set_capabilities.set(modify.set_caps);
            cmd.clear_capabilities.set(modify.clear_caps);
        }
        if modify.reset_qkey_violations {
            cmd.changes |= port_change::RESET_QKEY_VIOLATIONS;
        }
        hca.cmd().exec(&cmd).map(drop)
    }

    pub(crate) fn query(&self, hca: &Hca<'_>, port: u32) -> Result<PortAttr> {
        let (number, limits) = self.get(port)?;
        let attr = query(hca, number)?;
        Ok(PortAttr {
            state: port_state(attr.state)?,
            phys_state: phys_state(attr.phys_state)?,
            max_mtu: mtu(attr.max_mtu)?,
            active_mtu: mtu(attr.active_mtu)?,
            max_message: attr.max_message.get(),
            gid_tbl_len: limits.gid_table_len,
            pkey_tbl_len: limits.pkey_table_len,
            cap_flags: attr.capability_mask.get(),
            bad_pkey_cntr: u32::from(attr.bad_pkeys.get()),
            qkey_viol_cntr: u32::from(attr.qkey_violations.get()),
            subnet_prefix: attr.subnet_prefix.get(),
            lid: attr.lid.get(),
            lmc: attr.lmc,
            sm_lid: attr.sm_lid.get(),
            sm_sl: attr.sm_sl,
            vl_num: attr.vl_num,
            subnet_timeout: attr.subnet_timeout,
            active_width: attr.active_width,
            active_speed: attr.active_speed.get(),
        })
    }

    pub(crate) fn gid(&self, hca: &Hca<'_>, port: u32, index: u32) -> Result<Gid> {
        let (number, limits) = self.get(port)?;
        let index = u16::try_from(index)?;
        if index >= limits.gid_table_len {
            return Err(EINVAL);
        }
        let mut cmd = QueryGid::zeroed();
        cmd.port = number;
        cmd.index.set(index);
        Ok(Gid(hca.cmd().exec(&cmd)?.raw))
    }

    pub(crate) fn pkey(&self, hca: &Hca<'_>, port: u32, index: u16) -> Result<u16> {
        let (number, limits) = self.get(port)?;
        if index >= limits.pkey_table_len {
            return Err(EINVAL);
        }
        let mut cmd = QueryPkey::zeroed();
        cmd.port = number;
        cmd.index.set(index);
        Ok(hca.cmd().exec(&cmd)?.pkey.get())
    }
}

fn query(hca: &Hca<'_>, port: u8) -> Result<cmd::PortAttr> {
    let mut cmd = QueryPort::zeroed();
    cmd.port = port;
    hca.cmd().exec(&cmd)
}

// What the device says may be anything; the core takes these as indices.

fn port_state(wire: u8) -> Result<PortState> {
    match cmd::PortState::from_wire(wire) {
        Some(cmd::PortState::Down) => Ok(PortState::Down),
        Some(cmd::PortState::Init) => Ok(PortState::Init),
        Some(cmd::PortState::Armed) => Ok(PortState::Armed),
        Some(cmd::PortState::Active) => Ok(PortState::Active),
        None => Err(EIO),
    }
}

fn phys_state(wire: u8) -> Result<PhysState> {
    match wire {
        1 => Ok(PhysState::Sleep),
        2 => Ok(PhysState::Polling),
        3 => Ok(PhysState::Disabled),
        4 => Ok(PhysState::Training),
        5 => Ok(PhysState::LinkUp),
        6 => Ok(PhysState::ErrorRecovery),
        _ => Err(EIO),
    }
}

fn mtu(wire: u8) -> Result<Mtu> {
    match qp::Mtu::from_wire(wire) {
        Some(qp::Mtu::Mtu256) => Ok(Mtu::Mtu256),
        Some(qp::Mtu::Mtu512) => Ok(Mtu::Mtu512),
        Some(qp::Mtu::Mtu1024) => Ok(Mtu::Mtu1024),
        Some(qp::Mtu::Mtu2048) => Ok(Mtu::Mtu2048),
        Some(qp::Mtu::Mtu4096) => Ok(Mtu::Mtu4096),
        None => Err(EIO),
    }
}
