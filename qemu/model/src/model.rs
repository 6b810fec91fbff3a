// SPDX-License-Identifier: GPL-2.0 OR MIT

//! All of a configuration: HCAs, links, sockets and threads.

use crate::config::{Config, Doorbells, PortId};
use crate::control::{Control, Order};
use crate::coverage::Coverage;
use crate::engine::{Engine, Wire};
use crate::function::{Function, Gone};
use crate::hca::core::Core;
use crate::hca::Hca;
use crate::mem::{Dma, SlotMemory};
use crate::shared::{Mailbox, Shared, Status, Vectors};
use crate::vfio::server::{Server, Stop};
use anyhow::{Context, Result};
use qiao_fabric::capture::Capture;
use qiao_fabric::link::Link;
use qiao_hw::doorbell::SLOT_SIZE;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Bytes that a capture may have.
const CAPTURE_LIMIT: u64 = 64 << 20;

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
        let lids = config.lids()?;
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
        let wires = wires(config)?;
        let mut engine = Engine::new(hcas, wires, &lids, switches, Arc::clone(&mailbox), receiver);
        captures(config, &mut engine)?;
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

fn wires(config: &Config) -> Result<Vec<Wire>> {
    let ends = config.links()?;
    let wire = |(n, (ends, link)): (u64, ([PortId; 2], &crate::config::LinkConfig))| Wire {
        link: Link::new(
            config.seed.wrapping_add(n),
            link.faults.unwrap_or(config.faults),
        ),
        ends,
    };
    Ok((0..)
        .zip(ends.into_iter().zip(&config.link))
        .map(wire)
        .collect())
}

fn captures(config: &Config, engine: &mut Engine) -> Result<()> {
    let Some(dir) = &config.pcap_dir else {
        return Ok(());
    };
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for (hca, of) in config.hca.iter().enumerate() {
        for port in 0..usize::from(of.ports) {
            let path = dir.join(format!("{}-{}.pcap", of.name, port + 1));
            let capture = Capture::create(&path, CAPTURE_LIMIT);
            let capture = capture.with_context(|| format!("cannot write {}", path.display()))?;
            engine.capture(PortId { hca, port }, capture);
        }
    }
    Ok(())
}
