// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A running lab: the device model and the guests of one topology, from boot to the reading of their logs.

use std::{
    cell::Cell,
    fs::{self, File},
    io::ErrorKind,
    os::unix::{fs::MetadataExt, net::UnixStream},
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicBool, Ordering},
        Mutex, MutexGuard, PoisonError,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{bail, ensure, Context, Result};
use nix::{
    fcntl::{Flock, FlockArg},
    unistd::geteuid,
};
use qiao_agent::Request;
use tempfile::TempDir;

use crate::{
    agent::{Agent, Output, Running},
    artefacts::Artefacts,
    initramfs::Initramfs,
    kernel::KernelKind,
    kernlog,
    model::{self, Model},
    process::Process,
    qemu::{self, Accelerator, Machine},
    report::Report,
    topology::{ethernet_sockets, Topology},
};

/// From power on to the agent: 6 s on a quiet machine with software emulation, many times that on a busy one.
const BOOT_TIMEOUT: Duration = Duration::from_secs(240);
const POWER_OFF_TIMEOUT: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(200);
/// kmemleak reports what is older than 5 s, and what changed since the last scan only in the next one.
const FIND_LEAKS: &str =
    "cd /sys/kernel/debug && sleep 6 && echo scan >kmemleak && echo scan >kmemleak && cat kmemleak";
/// A UNIX socket's path has at most 107 bytes, and the cache may be deep.
const SOCKET_PARENT: &str = "/tmp";
const SOCKET_PREFIX: &str = "qiao-sockets.";

/// Time for a command that does little; a guard against hangs on a slow machine, not a measurement.
pub const SHORT: Duration = Duration::from_secs(120);
/// Time for a program that makes thousands of calls fail.
pub const SWEEP: Duration = Duration::from_secs(900);
/// Time for a command that moves data.
pub const LONG: Duration = Duration::from_secs(300);

/// Only one session runs on a machine at a time: guests that starve each other fail for no reason of their own.
#[derive(Debug)]
pub struct LabLock {
    _file: Flock<File>,
}

impl LabLock {
    /// Waits for the lab to be free.
    pub fn take(artefacts: &Artefacts, report: &Report) -> Result<Self> {
        let path = &artefacts.lab_lock;
        let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
        let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => return Ok(Self { _file: file }),
            Err((file, _)) => file,
        };
        report.doing("waiting for another lab run to end");
        match Flock::lock(file, FlockArg::LockExclusive) {
            Ok(file) => Ok(Self { _file: file }),
            Err((_, error)) => Err(error).with_context(|| format!("locking {}", path.display())),
        }
    }
}

/// A booted guest.
#[derive(Debug)]
pub struct Guest {
    /// Its host name.
    pub name: &'static str,
    /// Its address on the network between the guests.
    pub address: String,
    /// Socket of its interactive console.
    pub shell_socket: PathBuf,
    agent: Agent,
    qemu: Mutex<Process>,
    /// A test has killed it: it cannot be powered off.
    crashed: AtomicBool,
    console: PathBuf,
    kernel: KernelKind,
}

impl Guest {
    /// Runs a command line of bash; an error unless it exits with 0 within `timeout`.
    pub fn run(&self, command: &str, timeout: Duration) -> Result<Output> {
        self.start(command, timeout)?.wait()
    }

    /// Starts a command line of bash.
    pub fn start(&self, command: &str, timeout: Duration) -> Result<Running<'_>> {
        self.agent.start(command, timeout * self.kernel.patience())
    }

    /// Waits until something in the guest listens on a TCP port.
    pub fn wait_listen(&self, port: u16) -> Result<()> {
        self.agent.wait_listen(port, SHORT * self.kernel.patience())
    }

    /// Keeps a shell on the interactive console.
    pub fn open_shell(&self) -> Result<()> {
        self.agent.send(&Request::Shell)
    }

    /// Kills the guest, as a power cut does.
    pub fn crash(&self) -> Result<()> {
        self.crashed.store(true, Ordering::Relaxed);
        self.process().kill()
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.qemu.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_boot(&mut self) -> Result<()> {
        let start = Instant::now();
        let timeout = BOOT_TIMEOUT * self.kernel.patience();
        loop {
            if self.agent.wait_ready(POLL)?.is_some() {
                return Ok(());
            }
            self.process().ensure_alive()?;
            ensure!(
                start.elapsed() < timeout,
                "guest {} is not up after {} s",
                self.name,
                timeout.as_secs()
            );
        }
    }

    fn set_up_network(&self) -> Result<()> {
        let Self { name, address, .. } = self;
        let command = format!(
            "echo {name} >/proc/sys/kernel/hostname && ip link set lo up && ip address add {address}/24 dev eth0 && \
             ip link set eth0 up"
        );
        self.run(&command, SHORT).map(drop)
    }

    /// An error with what kmemleak says, if there is memory that nothing refers to.
    fn find_leaks(&self) -> Result<&'static str> {
        let leaks = self.run(FIND_LEAKS, SHORT)?.stdout;
        ensure!(leaks.is_empty(), "{leaks}");
        Ok("nothing unreferenced")
    }

    fn power_off(&mut self) -> Result<()> {
        if self.crashed.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.agent.send(&Request::PowerOff)?;
        let timeout = POWER_OFF_TIMEOUT * self.kernel.patience();
        let status = self.process().wait(timeout)?;
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => bail!("QEMU ended with {status}"),
            None => bail!("it did not power off within {} s", timeout.as_secs()),
        }
    }
}

/// The guests and the model of a scenario.
#[derive(Debug)]
pub struct Session {
    /// In the order of the topology.
    pub guests: Vec<Guest>,
    /// Where consoles, logs and captures of this run lie.
    pub dir: PathBuf,
    model: Option<Model>,
    breaches_expected: Cell<bool>,
    _sockets: TempDir,
    _lock: LabLock,
}

impl Session {
    /// Boots everything in `topology`, with the initramfs given, and leaves the logs in `dir`.
    pub fn start(
        artefacts: &Artefacts,
        topology: &Topology,
        initramfs: &Initramfs,
        dir: &Path,
        report: &Report,
    ) -> Result<Self> {
        let lock = LabLock::take(artefacts, report)?;
        fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        let sockets = socket_dir()?;
        let accelerator = qemu::accelerator(artefacts)?;
        let initramfs_file = sockets.path().join("initramfs");
        initramfs.write(std::io::BufWriter::new(File::create(&initramfs_file)?))?;
        let mut session = Self {
            guests: Vec::new(),
            dir: dir.into(),
            model: None,
            breaches_expected: Cell::new(false),
            _sockets: sockets,
            _lock: lock,
        };
        session.boot(artefacts, topology, accelerator, &initramfs_file, report)?;
        Ok(session)
    }

    fn boot(
        &mut self,
        artefacts: &Artefacts,
        topology: &Topology,
        accelerator: Accelerator,
        initramfs: &Path,
        report: &Report,
    ) -> Result<()> {
        let sockets = self._sockets.path();
        if topology.has_hcas() {
            qemu::ensure_vfio_user()?;
            let program = Artefacts::require(artefacts.model(), "model")?;
            self.model = Some(Model::start(
                &program,
                &topology.model_config(sockets, &self.dir),
                &self.dir,
            )?);
        }
        for (index, spec) in topology.guests.iter().enumerate() {
            let console = self.dir.join(format!("{}.console", spec.name));
            let machine = Machine {
                name: spec.name,
                accelerator,
                artefacts,
                initramfs,
                sockets,
                console: &console,
                hcas: &spec.hcas,
                iommu: topology.iommu,
                ethernet: topology.ethernet,
                index,
                guests: topology.guests.len(),
                memory_mib: topology
                    .memory_mib
                    .unwrap_or(artefacts.guest.kind.memory_mib()),
                measured: topology.measured,
            };
            let mut qemu = machine.start(&self.dir.join(format!("{}.qemu", spec.name)))?;
            let port = connect(&machine.agent_socket(), &mut qemu)
                .with_context(|| read_lossy(&self.dir.join(format!("{}.qemu", spec.name))))?;
            let agent = Agent::new(
                spec.name,
                port,
                &self.dir.join(format!("{}.commands", spec.name)),
            )?;
            self.guests.push(Guest {
                name: spec.name,
                address: format!("10.77.0.{}", index + 1),
                shell_socket: machine.shell_socket(),
                agent,
                qemu: Mutex::new(qemu),
                crashed: AtomicBool::new(false),
                console,
                kernel: artefacts.guest.kind,
            });
        }
        for guest in &mut self.guests {
            report.doing(&format!(
                "booting guest {} ({})",
                guest.name,
                accelerator.name()
            ));
            guest.wait_boot().with_context(|| {
                format!(
                    "booting {}; its console ends with:\n{}",
                    guest.name,
                    tail(&guest.console)
                )
            })?;
            guest.set_up_network()?;
        }
        Ok(())
    }

    /// The model of the topology's HCAs.
    pub fn model(&self) -> Result<&Model> {
        self.model.as_ref().context("the topology has no HCA")
    }

    /// Demands DMA that no guest has allowed: of a scenario that provokes it. Any is a failure of all others.
    pub fn expect_dma_breaches(&self) {
        self.breaches_expected.set(true);
    }

    /// The datagram sockets of the guest's Ethernet: QEMU's, and the one that the scenario may bind.
    pub fn ethernet_sockets(&self) -> [PathBuf; 2] {
        ethernet_sockets(self._sockets.path())
    }

    /// Powers everything off and reads the logs: a row for each guest's kernel and one for the model. If `alarm` is given, each
    /// guest must have raised that one.
    pub fn finish(mut self, alarm: Option<&str>, report: &mut Report) {
        let alive = self.model.as_mut().map(Model::ensure_alive);
        for guest in &mut self.guests {
            if guest.kernel == KernelKind::Debug && !guest.crashed.load(Ordering::Relaxed) {
                report.test(format!("kmemleak of guest {}", guest.name), || {
                    guest.find_leaks()
                });
            }
            report.doing(&format!("powering guest {} off", guest.name));
            let powered_off = guest.power_off();
            report.test(format!("kernel log of guest {}", guest.name), || {
                let log = read_lossy(&guest.console);
                let verdict = match (kernlog::first_alarm(&log), alarm) {
                    (None, None) => "no warning",
                    (Some(found), Some(wanted)) if found.contains(wanted) => {
                        "the warning that was wanted"
                    }
                    (Some(found), _) => bail!("{found}"),
                    (None, Some(wanted)) => bail!("this was not found: {wanted}"),
                };
                powered_off.map(|()| verdict)
            });
        }
        if let (Some(model), Some(alive)) = (&mut self.model, alive) {
            report.test("device model", || {
                alive.and_then(|()| model.stop()).map(|()| "ended cleanly")
            });
            let log = read_lossy(&model::log_file(&self.dir));
            let breaches = model::breaches(&log);
            report.test("DMA of the HCAs", || {
                match (breaches.len(), self.breaches_expected.get()) {
                    (0, false) => Ok("all of it allowed".into()),
                    (0, true) => bail!("no breach was noticed, and one was provoked"),
                    (n, true) => Ok(format!("{n} breaches, as was expected")),
                    (_, false) => bail!("{}", breaches.join("\n")),
                }
            });
        }
    }
}

/// A folder for a session's sockets, which whoever has the lab's lock may make. What an interrupted session left is removed.
fn socket_dir() -> Result<TempDir> {
    for entry in fs::read_dir(SOCKET_PARENT)? {
        let entry = entry?;
        let left = entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(SOCKET_PREFIX.as_bytes());
        // The lock is one user's, and so is what it protects. Others' files may vanish meanwhile.
        if left
            && entry
                .metadata()
                .is_ok_and(|data| data.is_dir() && data.uid() == geteuid().as_raw())
        {
            fs::remove_dir_all(entry.path())?;
        }
    }
    let dir = tempfile::Builder::new()
        .prefix(SOCKET_PREFIX)
        .tempdir_in(SOCKET_PARENT)?;
    Ok(dir)
}

/// Connects to a socket that QEMU is about to make.
fn connect(path: &Path, qemu: &mut Process) -> Result<UnixStream> {
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::ConnectionRefused
                ) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("connecting to {}", path.display()))
            }
        }
        qemu.ensure_alive()?;
        thread::sleep(Duration::from_millis(20));
    }
}

/// A log as text; it may be cut in the middle of a character, or not exist if QEMU never ran.
fn read_lossy(path: &Path) -> String {
    match fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => format!("{}: {error}", path.display()),
    }
}

fn tail(path: &Path) -> String {
    const LINES: usize = 25;
    let text = read_lossy(path);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
