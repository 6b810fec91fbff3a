// SPDX-License-Identifier: GPL-2.0 OR MIT

//! All of a configuration: HCAs, links, sockets and threads.

use crate::config::{CaptureConfig, Config, Doorbells, PortId};
use crate::control::{Control, Order};
use crate::coverage::Coverage;
use crate::engine::Engine;
use crate::fabric::{port_name, Fabric};
use crate::function::{Function, Gone};
use crate::hca::core::{port_number, Core};
use crate::hca::Hca;
use crate::mem::{Dma, SlotMemory};
use crate::shared::{Mailbox, Shared, Status, Vectors};
use crate::vfio::server::{Server, Stop};
use anyhow::{Context, Result};
use qiao_fabric::capture::Capture;
use qiao_fabric::link::Link;
use qiao_fabric::net::{Attach, Net};
use qiao_fabric::sm::{Manager, Settings};
use qiao_hw::doorbell::SLOT_SIZE;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;

/// A model whose sockets listen.
#[derive(Debug)]
pub struct Model {
    engine: Engine,
    servers: Vec<(Server, Function)>,
    control: Option<Control>,
    coverage: Option<(PathBuf, Arc<Coverage>)>,
}

impl Model {
    /// Makes everything and listens.
    ///
    /// # Errors
    ///
    /// If the configuration is wrong or a socket or file cannot be made.
    pub fn new(config: &Config) -> Result<Self> {
        let mailbox = Arc::new(Mailbox::new(config.hca.len())?);
        let coverage = Arc::new(Coverage::default());
        let (orders, receiver): (Sender<Order>, Receiver<Order>) = channel();
        let (mut hcas, mut servers, mut switches) = (Vec::new(), Vec::new(), Vec::new());
        for (n, hca) in config.hca.iter().enumerate() {
            let (identity, gone) = (hca.identity(), Gone::default());
            let slots = match hca.doorbells {
                Doorbells::Trapped => None,
                Doorbells::Polled => Some(SlotMemory::new(identity.bars[1])?),
            };
            let shared = Arc::new(Shared {
                dma: Dma::new(hca.name.clone()),
                vectors: Vectors::new(identity.vectors),
                status: Status::default(),
                slots,
                coverage: Arc::clone(&coverage),
            });
            let core = Core::new(Arc::clone(&shared), hca.caps(), hca.make_node());
            let slots = identity.bars[1] / SLOT_SIZE as u64;
            let mut made = Hca::new(hca.name.clone(), core, slots as u32);
            made.command_faults.clone_from(&hca.command_faults);
            hcas.push(made);
            switches.push(gone.clone());
            let server = Server::bind(&hca.socket)
                .with_context(|| format!("cannot listen at {}", hca.socket.display()))?;
            let mailbox = Arc::clone(&mailbox);
            let function = Function::new(n, shared, mailbox, gone, identity, hca.registers()?);
            servers.push((server, function));
        }
        let fabric = fabric(config)?;
        let engine = Engine::new(hcas, fabric, switches, Arc::clone(&mailbox), receiver);
        let control = match &config.control {
            None => None,
            Some(path) => {
                let control = Control::start(path, orders, mailbox);
                Some(control.with_context(|| format!("cannot listen at {}", path.display()))?)
            }
        };
        Ok(Self {
            engine,
            servers,
            control,
            coverage: config.coverage.clone().map(|path| (path, coverage)),
        })
    }

    /// Serves until `stop` is readable; then all sockets are gone.
    ///
    /// # Errors
    ///
    /// If a thread or the engine fails.
    pub fn run(self, stop: BorrowedFd<'_>) -> Result<()> {
        let Self {
            mut engine,
            servers,
            control,
            coverage,
        } = self;
        let mut threads: Vec<(Stop, JoinHandle<std::io::Result<()>>)> = Vec::new();
        for (server, mut function) in servers {
            let stopper = server.stopper();
            let thread = std::thread::Builder::new()
                .name("vfio-user".into())
                .spawn(move || server.run(&mut function))?;
            threads.push((stopper, thread));
        }
        let result = engine.run(stop);
        drop(control);
        for (stopper, _) in &threads {
            stopper.stop()?;
        }
        for (_, thread) in threads {
            match thread.join() {
                Ok(served) => served?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        if let Some((path, coverage)) = coverage {
            let text = serde_json::to_vec(&coverage.tables())?;
            std::fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
        }
        Ok(result?)
    }
}

/// Makes the network with its captures, and the subnet managers.
fn fabric(config: &Config) -> Result<Fabric> {
    let mut net = Net::default();
    let hosts: Vec<(PortId, String)> = config
        .hosts()
        .into_iter()
        .map(|id| (id, port_name(&config.hca[id.hca].name, id.port)))
        .collect();
    for _ in &hosts {
        net.add_host();
    }
    for switch in &config.switch {
        net.add_switch(switch.make());
    }
    for (n, (ends, link)) in (0..).zip(config.links()?.into_iter().zip(&config.link)) {
        let faults = link.faults.unwrap_or(config.faults);
        net.connect(ends, Link::new(config.seed.wrapping_add(n), faults));
    }
    captures(config, &hosts, &mut net)?;
    let managers = managers(config, &hosts)?;
    Ok(Fabric::new(net, hosts, managers))
}

fn managers(config: &Config, hosts: &[(PortId, String)]) -> Result<Vec<(usize, Manager)>> {
    let mut managers = Vec::new();
    for host in config.manager_hosts()? {
        let (id, _) = hosts[host];
        let number = port_number(id.port);
        let node = config.hca[id.hca].make_node();
        let settings = Settings {
            guid: node.port(number).map_or(0, |port| port.guid()),
            port: number,
            lids: config.lids()?,
            partitions: config.subnet_manager.partitions.clone(),
        };
        managers.push((host, Manager::new(settings)));
    }
    Ok(managers)
}

/// Opens a capture for each port: those of HCAs and those of switches that have a link.
fn captures(config: &Config, hosts: &[(PortId, String)], net: &mut Net) -> Result<()> {
    let Some(CaptureConfig { dir, limits }) = &config.capture else {
        return Ok(());
    };
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let mut ports: Vec<(Attach, String)> = Vec::new();
    for (host, (_, name)) in hosts.iter().enumerate() {
        ports.push((Attach::Host(host), name.clone()));
    }
    for end in config.links()?.into_iter().flatten() {
        if let Attach::Switch { switch, port } = end {
            ports.push((end, format!("{}:{port}", config.switch[switch].name)));
        }
    }
    for (at, name) in ports {
        let path = dir.join(format!("{}.pcap", name.replace(':', "-")));
        let capture = Capture::create(&path, *limits);
        let capture = capture.with_context(|| format!("cannot write {}", path.display()))?;
        net.capture(at, capture);
    }
    Ok(())
}
