// SPDX-License-Identifier: GPL-2.0 OR MIT

//! From the initramfs to the guest's root: modules, the read-only image under a tmpfs overlay, the payload of this build.

use std::{
    convert::Infallible,
    ffi::CString,
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{ensure, Context, Result};
use nix::{
    kmod::{finit_module, ModuleInitFlags},
    mount::{mount, MsFlags},
    sys::{
        reboot::{reboot, RebootMode},
        wait::wait,
    },
    unistd::{chdir, chroot},
};
use qiao_agent::{MODULES_DIR, PAYLOAD_DIR, PROBE_ARGUMENT, PROBE_OK};

/// The disk with the guest image.
const IMAGE_DEVICE: &str = "/dev/vda";
/// Where the guest's root is put together.
const NEW_ROOT: &str = "/root";
/// Virtio devices are probed asynchronously after their driver is loaded; slow emulation may take this long.
const IMAGE_DEVICE_TIMEOUT: Duration = Duration::from_secs(60);

/// Brings the guest up and then reaps processes until the agent ends. Only an error returns.
pub fn run() -> Result<()> {
    mount_kernel_filesystems()?;
    if fs::read_to_string("/proc/cmdline")?
        .split_whitespace()
        .any(|word| word == PROBE_ARGUMENT)
    {
        println!("{PROBE_OK}");
        power_off()?;
    }
    load_modules()?;
    wait_for_image()?;
    mount_root()?;
    copy_tree(&Path::new("/").join(PAYLOAD_DIR), Path::new(NEW_ROOT))
        .context("copying the payload")?;
    enter_root()?;
    // All that the kernel says from now on is for the lab's log.
    fs::write("/proc/sys/kernel/printk", "8").context("raising the console's log level")?;
    let agent = Command::new("/usr/local/sbin/qiao-agent")
        .arg(crate::AGENT_ARGUMENT)
        .env_clear()
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .env("HOME", "/root")
        .env("TERM", "xterm-256color")
        .env("LANG", "C.UTF-8")
        .spawn()
        .context("starting the agent")?;
    loop {
        let ended = wait().context("waiting for children")?.pid();
        if ended.is_some_and(|pid| pid.as_raw() as u32 == agent.id()) {
            power_off()?;
        }
    }
}

fn power_off() -> Result<Infallible> {
    reboot(RebootMode::RB_POWER_OFF).context("powering off")
}

/// `mount(8)` without options, making the mount point.
fn mount_at(
    fstype: &str,
    source: &str,
    target: &str,
    flags: MsFlags,
    options: Option<&str>,
) -> Result<()> {
    fs::create_dir_all(target).with_context(|| format!("making {target}"))?;
    mount(Some(source), target, Some(fstype), flags, options)
        .with_context(|| format!("mounting {fstype} ({source}) at {target}"))
}

fn mount_kernel_filesystems() -> Result<()> {
    mount_at("devtmpfs", "dev", "/dev", MsFlags::empty(), None)?;
    mount_at("proc", "proc", "/proc", MsFlags::empty(), None)?;
    mount_at("sysfs", "sys", "/sys", MsFlags::empty(), None)
}

fn load_modules() -> Result<()> {
    let dir = Path::new("/").join(MODULES_DIR);
    if !dir.exists() {
        // A kernel that has all of them built in.
        return Ok(());
    }
    let mut modules: Vec<PathBuf> = fs::read_dir(dir)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    modules.sort();
    for module in modules {
        finit_module(
            File::open(&module)?,
            &CString::default(),
            ModuleInitFlags::empty(),
        )
        .with_context(|| format!("loading {}", module.display()))?;
    }
    Ok(())
}

fn wait_for_image() -> Result<()> {
    let start = Instant::now();
    while !Path::new(IMAGE_DEVICE).exists() {
        ensure!(
            start.elapsed() < IMAGE_DEVICE_TIMEOUT,
            "no disk {IMAGE_DEVICE} appeared"
        );
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn mount_root() -> Result<()> {
    mount_at("erofs", IMAGE_DEVICE, "/lower", MsFlags::MS_RDONLY, None)?;
    mount_at("tmpfs", "upper", "/upper", MsFlags::empty(), None)?;
    fs::create_dir("/upper/tree")?;
    fs::create_dir("/upper/work")?;
    let layers = "lowerdir=/lower,upperdir=/upper/tree,workdir=/upper/work";
    mount_at("overlay", "root", NEW_ROOT, MsFlags::empty(), Some(layers))
}

/// Copies files, modes and symbolic links; folders that exist stay as they are.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            fs::create_dir_all(&target)?;
            copy_tree(&entry.path(), &target)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(entry.path())?, &target)?;
        } else {
            fs::copy(entry.path(), &target)
                .with_context(|| format!("copying to {}", target.display()))?;
        }
    }
    Ok(())
}

fn enter_root() -> Result<()> {
    for dir in ["dev", "proc", "sys"] {
        let target = format!("{NEW_ROOT}/{dir}");
        mount(
            Some(format!("/{dir}").as_str()),
            target.as_str(),
            None::<&str>,
            MsFlags::MS_MOVE,
            None::<&str>,
        )
        .with_context(|| format!("moving /{dir}"))?;
    }
    chdir(NEW_ROOT)?;
    mount(Some("."), "/", None::<&str>, MsFlags::MS_MOVE, None::<&str>)
        .context("moving the root")?;
    chroot(".")?;
    chdir("/")?;
    mount_at("devpts", "devpts", "/dev/pts", MsFlags::empty(), None)?;
    for dir in ["/dev/shm", "/run", "/tmp"] {
        mount_at("tmpfs", "tmpfs", dir, MsFlags::empty(), None)?;
    }
    mount_at(
        "debugfs",
        "debugfs",
        "/sys/kernel/debug",
        MsFlags::empty(),
        None,
    )
}
