// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Command lines of stock QEMU, and what has to be probed about it.

use std::{
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{bail, ensure, Context, Result};
use nix::sys::utsname::uname;
use qiao_agent::{PORT_NAME, PROBE_ARGUMENT, PROBE_OK};
use serde_json::json;

use crate::{
    artefacts::Artefacts,
    initramfs::Initramfs,
    process::{Priority, Process, Stdout},
    topology::{ethernet_sockets, hca_socket, Ethernet},
};

const QEMU: &str = "qemu-system-x86_64";
/// Bytes of an Ethernet frame that holds a RoCE packet with a payload of 4096; the guest takes it over by itself.
const JUMBO_MTU: u32 = 9000;
/// A kernel with the probe's initramfs is up in 6 s under software emulation; hardware that takes longer is no help.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);

/// What makes the kernel unmap each buffer, and flush the IOMMU, before it uses the memory again.
const STRICT_IOMMU: &str = "intel_iommu=on iommu.strict=1 iommu.passthrough=0";

/// How guest code is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// By the processor.
    Kvm,
    /// By software emulation, one thread for each vCPU.
    Tcg,
}

impl Accelerator {
    /// As QEMU calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }

    fn arguments(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Self::Tcg => ["-accel", "tcg,thread=multi", "-cpu", "max"],
        }
    }
}

/// Everything about one guest that QEMU must be told.
#[derive(Clone, Debug)]
pub struct Machine<'a> {
    /// Its name.
    pub name: &'a str,
    /// How its code is run.
    pub accelerator: Accelerator,
    /// Kernel and root.
    pub artefacts: &'a Artefacts,
    /// The initramfs as a file.
    pub initramfs: &'a Path,
    /// Folder of the sockets of all guests.
    pub sockets: &'a Path,
    /// File for its serial console.
    pub console: &'a Path,
    /// Names of its HCAs.
    pub hcas: &'a [&'static str],
    /// Whether its devices are behind a strict IOMMU.
    pub iommu: bool,
    /// What its Ethernet device is plugged into.
    pub ethernet: Ethernet,
    /// Its place in the topology, from 0.
    pub index: usize,
    /// How many guests the topology has.
    pub guests: usize,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Whether speed counts; see [`Topology::measured`](crate::topology::Topology).
    pub measured: bool,
}

impl Machine<'_> {
    /// Socket of the agent's port.
    pub fn agent_socket(&self) -> PathBuf {
        self.sockets.join(format!("{}.agent", self.name))
    }

    /// Socket of the interactive console.
    pub fn shell_socket(&self) -> PathBuf {
        self.sockets.join(format!("{}.shell", self.name))
    }

    /// Capture of its Ethernet link.
    fn network_capture(&self) -> PathBuf {
        self.console.with_extension("net.pcap")
    }

    /// The arguments for [`QEMU`].
    pub fn arguments(&self) -> Result<Vec<String>> {
        let memory = self.memory_mib;
        let mut arguments = base_arguments(
            self.accelerator,
            self.artefacts,
            self.initramfs,
            self.console,
            if self.iommu { STRICT_IOMMU } else { "" },
        );
        let mut add = |option: &str, value: String| arguments.extend([option.to_owned(), value]);
        add("-name", self.name.into());
        // The device model maps guest memory; without share=on its DMA would go to other pages and nothing would say so.
        add("-machine", "q35,memory-backend=ram".into());
        add(
            "-object",
            format!("memory-backend-memfd,id=ram,size={memory}M,share=on"),
        );
        add("-m", format!("{memory}M"));
        add("-smp", "1".into());
        if self.iommu {
            // Before all devices that it serves. vfio-user needs the caching mode, which tells it of mappings; it has no
            // interrupt remapping.
            add("-device", "intel-iommu,caching-mode=on,intremap=off".into());
        }
        let image = self.artefacts.root_image();
        add(
            "-drive",
            format!(
                "if=none,id=root,file={},format=raw,readonly=on",
                image.display()
            ),
        );
        add("-device", "virtio-blk-pci,drive=root".into());
        add("-device", "virtio-serial-pci".into());
        for (id, path) in [
            ("shell", self.shell_socket()),
            ("agent", self.agent_socket()),
        ] {
            add(
                "-chardev",
                format!("socket,id={id},path={},server=on,wait=off", path.display()),
            );
        }
        add("-device", "virtconsole,chardev=shell".into());
        add(
            "-device",
            format!("virtserialport,chardev=agent,name={PORT_NAME}"),
        );
        for part in self.network() {
            add("-netdev", part);
        }
        let mut net = format!(
            "virtio-net-pci,netdev=net,romfile=,mac=52:54:00:77:00:{:02x}",
            self.index + 1
        );
        if self.measured {
            net += &format!(",host_mtu={JUMBO_MTU}");
        } else {
            let file = self.network_capture();
            add(
                "-object",
                format!("filter-dump,id=capture,netdev=net,file={}", file.display()),
            );
        }
        add("-device", net);
        for (slot, hca) in self.hcas.iter().enumerate() {
            // Behind a root port the link has a speed and a width; on the root bus it would have neither.
            add(
                "-device",
                format!("pcie-root-port,id=port{slot},slot={slot},chassis={slot}"),
            );
            let socket = hca_socket(self.sockets, hca);
            let device = json!({
                "driver": "vfio-user-pci", "id": hca, "bus": format!("port{slot}"), "addr": "0.0",
                "socket": { "type": "unix", "path": socket },
            });
            add("-device", device.to_string());
        }
        Ok(arguments)
    }

    /// The network of the id `net`, and what it needs. A guest has a cable to the first, which listens; if there are several, a
    /// hub joins them there.
    fn network(&self) -> Vec<String> {
        if self.ethernet == Ethernet::Socket {
            let [guest, lab] =
                ethernet_sockets(self.sockets).map(|path| path.display().to_string());
            return vec![format!(
                "dgram,id=net,local.type=unix,local.path={guest},remote.type=unix,remote.path={lab}"
            )];
        }
        let cable = |id: &str, end: &str, guest: usize| {
            let path = self.sockets.join(format!("net{guest}"));
            format!(
                "stream,id={id},{end},addr.type=unix,addr.path={}",
                path.display()
            )
        };
        if self.index > 0 {
            return vec![cable("net", "server=off,reconnect-ms=200", self.index)];
        }
        if self.guests <= 2 {
            return vec![cable("net", "server=on", 1)];
        }
        let mut parts = vec!["hubport,id=net,hubid=0".into()];
        for guest in 1..self.guests {
            let id = format!("cable{guest}");
            parts.push(cable(&id, "server=on", guest));
            parts.push(format!("hubport,id=hub{guest},hubid=0,netdev={id}"));
        }
        parts
    }

    /// Starts the guest.
    pub fn start(&self, log: &Path) -> Result<Process> {
        let name = format!("QEMU of guest {}", self.name);
        Process::start(
            &name,
            Priority::Low,
            Path::new(QEMU),
            &self.arguments()?,
            log,
            Stdout::Log,
        )
    }
}

fn base_arguments(
    accelerator: Accelerator,
    artefacts: &Artefacts,
    initramfs: &Path,
    console: &Path,
    kernel_options: &str,
) -> Vec<String> {
    let mut arguments: Vec<String> = accelerator.arguments().map(Into::into).to_vec();
    let mut add = |option: &str, value: String| arguments.extend([option.to_owned(), value]);
    add("-display", "none".into());
    add("-serial", format!("file:{}", console.display()));
    add("-kernel", artefacts.guest.image.display().to_string());
    add("-initrd", initramfs.display().to_string());
    // loglevel=5 keeps warnings. A panic ends QEMU, since it may not reboot. No guest runs foreign code, so the mitigations
    // would only slow it down. The kernel panics if it sees no timer tick in some loops of its own, as on a host that has other
    // work.
    add(
        "-append",
        format!(
            "console=ttyS0 loglevel=5 panic=-1 mitigations=off no_timer_check {kernel_options}"
        ),
    );
    arguments.extend(["-nodefaults", "-no-reboot"].map(Into::into));
    arguments
}

/// An error unless this QEMU can attach a device by vfio-user. What it can do counts, not its version.
pub fn ensure_vfio_user() -> Result<()> {
    let output = Command::new(QEMU)
        .args(["-device", "help"])
        .output()
        .context("starting QEMU")?;
    let devices = String::from_utf8_lossy(&output.stdout);
    ensure!(
        devices.contains("\"vfio-user-pci\""),
        "{} has no vfio-user-pci: it is too old or built without it",
        version()?
    );
    Ok(())
}

/// QEMU's version line.
pub fn version() -> Result<String> {
    let output = Command::new(QEMU)
        .arg("--version")
        .output()
        .context("starting QEMU")?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().next().unwrap_or_default().into())
}

/// The accelerator to use: `QIAO_ACCEL` if it is set, KVM if a guest has been seen to run under it, software emulation otherwise.
/// What was found out holds until the host boots again or QEMU changes.
pub fn accelerator(artefacts: &Artefacts) -> Result<Accelerator> {
    match std::env::var("QIAO_ACCEL").as_deref() {
        Ok("kvm") => return Ok(Accelerator::Kvm),
        Ok("tcg") => return Ok(Accelerator::Tcg),
        Ok(other) => bail!("QIAO_ACCEL={other}: give kvm or tcg"),
        Err(_) => {}
    }
    if OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_err()
    {
        return Ok(Accelerator::Tcg);
    }
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let host = format!(
        "{} {} {}",
        boot_id.trim(),
        version()?,
        uname()?.release().to_string_lossy()
    );
    let file = artefacts.cache.join("kvm-probe");
    // No file, or one that does not parse, means that nothing is known.
    let known = fs::read_to_string(&file).unwrap_or_default();
    let works = match known.trim().strip_prefix(&host) {
        Some(" works") => true,
        Some(" fails") => false,
        _ => {
            let works = kvm_boots(artefacts)?;
            fs::write(
                &file,
                format!("{host} {}\n", if works { "works" } else { "fails" }),
            )?;
            works
        }
    };
    Ok(if works {
        Accelerator::Kvm
    } else {
        Accelerator::Tcg
    })
}

/// Boots a guest under KVM far enough for user space to speak. A /dev/kvm that opens proves nothing: nested ones may fail later.
fn kvm_boots(artefacts: &Artefacts) -> Result<bool> {
    let dir = tempfile::Builder::new().prefix("qiao.").tempdir()?;
    let initramfs = dir.path().join("initramfs");
    let console = dir.path().join("console");
    let agent = Artefacts::require(artefacts.agent(), "agent")?;
    Initramfs::new(&agent, &artefacts.guest)?.write(fs::File::create(&initramfs)?)?;
    let mut arguments = base_arguments(Accelerator::Kvm, artefacts, &initramfs, &console, "");
    for argument in &mut arguments {
        if argument.starts_with("console=") {
            argument.push(' ');
            argument.push_str(PROBE_ARGUMENT);
        }
    }
    arguments.extend(["-machine", "q35", "-m", "512M"].map(Into::into));
    let log = dir.path().join("log");
    let mut guest = Process::start(
        "the KVM probe",
        Priority::Low,
        Path::new(QEMU),
        &arguments,
        &log,
        Stdout::Log,
    )?;
    let status = guest.wait(PROBE_TIMEOUT)?;
    let spoke = String::from_utf8_lossy(&fs::read(&console).unwrap_or_default()).contains(PROBE_OK);
    Ok(spoke && status.is_some_and(|status| status.success()))
}
