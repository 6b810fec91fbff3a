// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The kernels that guests can boot, and what differs between them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use clap::ValueEnum;

/// Which kernel guests boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum KernelKind {
    /// The distribution's own.
    #[default]
    Stock,
    /// One of the same sources that looks for errors of memory, locks and lifetimes, and can make allocations fail.
    Debug,
}

/// A kernel that guests can boot. Its files need not exist yet.
#[derive(Clone, Debug)]
pub struct GuestKernel {
    /// Which one it is.
    pub kind: KernelKind,
    /// As `uname -r` prints it.
    pub release: String,
    /// The file that QEMU boots.
    pub image: PathBuf,
    /// Folder with the modules that the guest loads before it can mount its root, named in the order of loading; `None` if they
    /// are built in.
    pub boot_modules: Option<PathBuf>,
    /// What a guest has of this kernel's in `/usr/lib/modules`, if the guest image does not have it.
    pub installed: Option<PathBuf>,
    /// Folder of the modules of this work tree that were built for it.
    build: PathBuf,
}

impl GuestKernel {
    /// The distribution's kernel, `release`, as the folder `image` has it; modules for it are in `build`.
    pub fn stock(release: String, image: &Path, build: &Path) -> Self {
        Self {
            kind: KernelKind::Stock,
            release,
            image: image.join("vmlinuz"),
            boot_modules: Some(image.join("modules")),
            installed: None,
            build: build.into(),
        }
    }

    /// The debug kernel of the folder `dir` (`make debug-kernel`); modules for it are below `build`.
    pub fn debug(dir: &Path, build: &Path) -> Result<Self> {
        let release = fs::read_to_string(dir.join("release"))
            .context("there is no debug kernel yet: run make debug-kernel")?;
        Ok(Self {
            kind: KernelKind::Debug,
            release: release.trim().into(),
            image: dir.join("vmlinuz"),
            boot_modules: None,
            installed: Some(dir.join("modules")),
            build: build.join("debug"),
        })
    }

    /// The driver (`make modules`, `make debug-modules`).
    pub fn driver(&self) -> PathBuf {
        self.build.join("module/qiao.ko")
    }

    /// The test of devices by a consumer in the kernel (`make kclient`, `make debug-modules`).
    pub fn client(&self) -> PathBuf {
        self.build.join("kclient/qiao_kclient.ko")
    }

    /// Smoke test of the tool chain (`make hello`, `make debug-modules`).
    pub fn hello(&self) -> PathBuf {
        self.build.join("hello/qiao_hello.ko")
    }
}

/// The place in a guest where the modules of a kernel are.
pub fn guest_modules(release: &str) -> PathBuf {
    Path::new("usr/lib/modules").join(release)
}

/// The place in a guest where this build's modules are.
pub fn guest_module_dir(release: &str) -> PathBuf {
    guest_modules(release).join("qiao")
}

impl KernelKind {
    /// Memory of a guest in MiB. RDMA programs pin little memory here, and two guests and the model must fit in a small machine; the
    /// debug kernel needs half as much again for its shadow memory and freed objects that it keeps to find late uses.
    pub fn memory_mib(self) -> u32 {
        match self {
            Self::Stock => 1024,
            Self::Debug => 2048,
        }
    }

    /// How many times the usual a guard against hangs must wait.
    pub fn patience(self) -> u32 {
        match self {
            Self::Stock => 1,
            Self::Debug => 5,
        }
    }
}
