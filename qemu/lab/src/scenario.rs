// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Scenarios: what guests there are, what runs in them, and what must hold.

mod allreduce;
mod bench;
mod breach;
mod cases;
mod clients;
mod counters;
mod demo;
mod device;
mod driver;
mod events;
mod fabric;
mod failures;
mod faults;
mod function;
mod hello;
mod incast;
mod kernel;
mod kunit;
mod lifecycle;
mod mads;
mod peer;
mod pyverbs;
mod softroce;
mod stream;
mod subnet;
mod switch;
mod unplug;
mod user;

use std::{
    fs,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{ensure, Context, Result};

use crate::{
    artefacts::Artefacts,
    coverage::kept_runs,
    initramfs::Initramfs,
    kernel::{guest_module_dir, KernelKind},
    report::Report,
    session::Session,
    topology::Topology,
};

/// Folders of past runs that are kept: enough for two whole checks, since a check reads its own when it ends.
const KEPT_RUNS: usize = 2 * (ALL.len() + ON_DEMAND.len());

/// What a scenario's guests have beyond the distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The smoke-test module.
    Hello,
    /// The driver.
    Driver,
    /// The libibverbs provider.
    Provider,
    /// The device model, for the topology's HCAs.
    Model,
    /// The client in the kernel.
    Client,
    /// Programs of ours that use the device as others do.
    Programs,
    /// Hostile user programs: one below libibverbs, one above it.
    Probe,
    /// The program that tells the transport's peer what to do.
    Peer,
}

impl Part {
    /// Whether this work tree has the sources of the part: what they do not build yet is absent, not passed.
    pub fn in_tree(self, artefacts: &Artefacts) -> bool {
        artefacts.top.join(self.source()).exists()
    }

    /// The file that is in the work tree when, and only when, the part is.
    fn source(self) -> &'static str {
        match self {
            Self::Hello => "qemu/lab/hello/Kbuild",
            Self::Driver => "Kbuild",
            Self::Provider => "provider/Cargo.toml",
            Self::Model => "qemu/model/src/main.rs",
            Self::Client => "kunit/kclient/Kbuild",
            Self::Programs => "qemu/lab/src/scenario/allreduce.py",
            Self::Probe => "qemu/lab/probe/Cargo.toml",
            Self::Peer => "qemu/peer/Cargo.toml",
        }
    }

    fn add_to(self, initramfs: &mut Initramfs, artefacts: &Artefacts) -> Result<()> {
        let modules = guest_module_dir(&artefacts.guest.release);
        match self {
            Self::Hello => {
                let module = Artefacts::require(artefacts.guest.hello(), "hello")?;
                initramfs.add_guest_file(&modules.join("qiao_hello.ko"), &module)
            }
            Self::Driver => {
                let module = Artefacts::require(artefacts.guest.driver(), "modules")?;
                initramfs.add_guest_file(&modules.join("qiao.ko"), &module)
            }
            Self::Provider => {
                let provider = Artefacts::require(artefacts.provider(), "provider")?;
                let name = Path::new("etc/libibverbs.d/qiao.driver");
                initramfs.add_guest_text(name, "driver qiao\n");
                initramfs.add_guest_file(&provider_path()?, &provider)
            }
            // Runs beside the guests, not in them.
            Self::Model => Ok(()),
            Self::Client => {
                let module = Artefacts::require(artefacts.guest.client(), "kclient")?;
                initramfs.add_guest_file(&modules.join("qiao_kclient.ko"), &module)
            }
            Self::Programs => {
                for (place, text) in cases::PROGRAMS {
                    initramfs.add_guest_text(Path::new(place), text);
                }
                Ok(())
            }
            Self::Probe => {
                let probe = Artefacts::require(artefacts.probe(), "probe")?;
                for (place, text) in cases::SCRIPTS {
                    initramfs.add_guest_text(Path::new(place), text);
                }
                initramfs.add_guest_program(Path::new(cases::PROBE), &probe)
            }
            Self::Peer => {
                initramfs.add_guest_text(Path::new(cases::PEER), include_str!("scenario/peer.py"));
                Ok(())
            }
        }
    }
}

/// The place of the provider in a guest. Its suffix names the private interface of the distribution's libibverbs, as the other
/// providers of the same release show.
fn provider_path() -> Result<PathBuf> {
    let folder = Path::new("usr/lib/x86_64-linux-gnu/libibverbs");
    let entries =
        fs::read_dir(Path::new("/").join(folder)).context("reading the installed providers")?;
    for entry in entries {
        let name = entry?.file_name();
        if let Some((_, suffix)) = name.to_string_lossy().split_once("-rdmav") {
            return Ok(folder.join(format!("libqiao-rdmav{suffix}")));
        }
    }
    anyhow::bail!("the development root has no libibverbs provider to tell the suffix from")
}

/// A scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The word that selects it.
    pub name: &'static str,
    /// What it shows, in one line.
    pub about: &'static str,
    /// Text that must be in the kernel log of each guest, of a scenario that provokes an alarm. Without it any alarm is a failure.
    pub alarm: Option<&'static str>,
    /// What its guests need.
    pub parts: &'static [Part],
    topology: fn() -> Topology,
    run: fn(&Session, &mut Report) -> Result<()>,
}

/// Scenarios that are run when somebody names them: they take long and need a quiet machine.
pub const ON_DEMAND: &[Scenario] = &[bench::SCENARIO];

/// Every scenario of `make check`, in the order in which it runs them.
pub const ALL: &[Scenario] = &[
    hello::SCENARIO,
    hello::ALARM,
    softroce::SCENARIO,
    peer::SCENARIO,
    driver::SCENARIO,
    demo::TWINS,
    demo::SCENARIO,
    fabric::SCENARIO,
    user::SCENARIO,
    user::POLLED,
    user::IOMMU,
    kernel::SCENARIO,
    kernel::PAIR,
    pyverbs::SCENARIO,
    events::SCENARIO,
    mads::SCENARIO,
    device::SCENARIO,
    allreduce::SCENARIO,
    incast::SCENARIO,
    faults::CABLE,
    faults::NODE,
    switch::SCENARIO,
    breach::SCENARIO,
    lifecycle::SCENARIO,
    unplug::SCENARIO,
];

/// Those that only the debug kernel can run.
pub const DEBUG_ONLY: &[Scenario] = &[kunit::SCENARIO, failures::SCENARIO];

/// Which of [`ALL`] `make check-debug` runs again, since in them memory, locks and lifetimes have most to stand. The debug kernel
/// is several times slower, and moving more data would find nothing else.
const AGAIN_ON_DEBUG: &[Scenario] = &[
    hello::ALARM,
    demo::SCENARIO,
    user::SCENARIO,
    kernel::SCENARIO,
    breach::SCENARIO,
    device::SCENARIO,
    lifecycle::SCENARIO,
    unplug::SCENARIO,
];

impl Scenario {
    /// What a check with this kernel runs, in that order.
    pub fn checked(kernel: KernelKind) -> Vec<&'static Self> {
        match kernel {
            KernelKind::Stock => ALL.iter().collect(),
            KernelKind::Debug => DEBUG_ONLY.iter().chain(AGAIN_ON_DEBUG).collect(),
        }
    }

    /// By its name.
    pub fn named(name: &str) -> Option<&'static Self> {
        let mut all = ALL.iter().chain(ON_DEMAND).chain(DEBUG_ONLY);
        all.find(|scenario| scenario.name == name)
    }

    /// What a person named; an error unless it exists and this work tree has its parts.
    pub fn wanted(name: &str, artefacts: &Artefacts) -> Result<&'static Self> {
        let scenario = Self::named(name)
            .with_context(|| format!("no scenario is called {name}: make list names them"))?;
        ensure!(
            scenario.in_tree(artefacts),
            "the scenario {name} needs parts that this work tree does not have yet"
        );
        let only_debug = DEBUG_ONLY.iter().any(|scenario| scenario.name == name);
        ensure!(
            !only_debug || artefacts.guest.kind == KernelKind::Debug,
            "the scenario {name} needs the debug kernel: say DEBUG=1"
        );
        Ok(scenario)
    }

    /// Whether this work tree has all that the scenario is about.
    pub fn in_tree(&self, artefacts: &Artefacts) -> bool {
        self.parts.iter().all(|part| part.in_tree(artefacts))
    }

    /// Boots the scenario's guests.
    pub fn boot(&self, artefacts: &Artefacts, report: &Report) -> Result<Session> {
        let agent = Artefacts::require(artefacts.agent(), "agent")?;
        let mut initramfs = Initramfs::new(&agent, &artefacts.guest)?;
        for part in self.parts {
            part.add_to(&mut initramfs, artefacts)?;
        }
        let dir = new_run_dir(&artefacts.runs(), self.name)?;
        Session::start(artefacts, &(self.topology)(), &initramfs, &dir, report)
    }

    /// Loads the driver in the guests of a scenario that has it, for a person at their shells.
    pub fn load_driver(&self, session: &Session) -> Result<()> {
        if self.parts.contains(&Part::Driver) {
            for guest in &session.guests {
                driver::load(guest)?;
            }
        }
        Ok(())
    }

    /// Boots the guests, runs everything in them, powers them off, and reads their logs. Whatever goes wrong is in the report.
    pub fn execute(&self, artefacts: &Artefacts, report: &mut Report) {
        report.begin(self.name);
        let session = match self.boot(artefacts, report) {
            Ok(session) => session,
            Err(error) => {
                report.step();
                return report.add("boot", false, format!("{error:#}"));
            }
        };
        let dir = session.dir.clone();
        if let Err(error) = (self.run)(&session, report) {
            report.add("set-up", false, format!("{error:#}"));
        }
        session.finish(self.alarm, report);
        report.say(&format!("consoles and logs: {}", dir.display()));
        report.files(dir);
        report.step();
    }
}

/// A new folder below `runs`, whose names sort by time, with only the latest of the old ones kept.
pub fn new_run_dir(runs: &Path, name: &str) -> Result<PathBuf> {
    fs::create_dir_all(runs)?;
    let old = kept_runs(runs)?;
    for dir in old.iter().rev().skip(KEPT_RUNS - 1) {
        fs::remove_dir_all(dir).with_context(|| format!("removing {}", dir.display()))?;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
    let dir = runs.join(format!("{now}-{name}"));
    fs::create_dir(&dir)?;
    Ok(dir)
}
