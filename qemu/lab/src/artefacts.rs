// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Where everything is that the lab runs but does not build: the one place that knows.
//!
//! `qemu/lab/env/enter.sh` sets the variables that are read here; the make targets fill the folders that they name.

use std::{env, fs, path::PathBuf};

use anyhow::{bail, Context, Result};

use crate::kernel::{GuestKernel, KernelKind};

/// Paths of what was built, whether or not it exists yet.
#[derive(Clone, Debug)]
pub struct Artefacts {
    /// The cache of all work trees.
    pub cache: PathBuf,
    /// The work tree.
    pub top: PathBuf,
    /// What was built from the work tree.
    pub build: PathBuf,
    /// The commit of the work tree, with a mark if files were changed since.
    pub commit: String,
    /// The kernel that guests boot.
    pub guest: GuestKernel,
    /// Release of the distribution's kernel, as `uname -r` prints it.
    pub kernel: String,
    /// Object tree that modules for the distribution's kernel are built against.
    pub kernel_objects: PathBuf,
    /// Source of the kernel under test.
    pub kernel_source: PathBuf,
    /// Held by whoever runs guests on this machine.
    pub lab_lock: PathBuf,
    image: PathBuf,
    target: PathBuf,
}

impl Artefacts {
    /// From the environment of the development root, for guests with a kernel of this kind.
    pub fn from_env(kind: KernelKind) -> Result<Self> {
        let variable = |name: &str| {
            env::var(name).with_context(|| {
                format!("{name} is not set: start this through make, or by qemu/lab/env/enter.sh")
            })
        };
        let build = PathBuf::from(variable("QIAO_BUILD")?);
        let image = PathBuf::from(variable("QIAO_IMAGE")?);
        let kernel = variable("QIAO_KERNEL")?;
        let guest = match kind {
            KernelKind::Stock => GuestKernel::stock(kernel.clone(), &image, &build),
            KernelKind::Debug => GuestKernel::debug(variable("QIAO_DEBUG")?.as_ref(), &build)?,
        };
        Ok(Self {
            guest,
            cache: variable("QIAO_CACHE")?.into(),
            top: variable("QIAO_TOP")?.into(),
            build,
            commit: variable("QIAO_COMMIT")?,
            kernel,
            kernel_objects: variable("QIAO_KO")?.into(),
            kernel_source: variable("QIAO_KERNEL_SOURCE")?.into(),
            lab_lock: variable("QIAO_LAB_LOCK")?.into(),
            image,
            target: variable("CARGO_TARGET_DIR")?.into(),
        })
    }

    /// The guest's root, an EROFS file.
    pub fn root_image(&self) -> PathBuf {
        self.image.join("root.erofs")
    }

    /// Process 1 of the guests, linked statically (`make agent`).
    pub fn agent(&self) -> PathBuf {
        self.target
            .join("x86_64-unknown-linux-gnu/release/qiao-agent")
    }

    /// The hostile user of the driver, linked statically (`make probe`).
    pub fn probe(&self) -> PathBuf {
        self.target
            .join("x86_64-unknown-linux-gnu/release/qiao-probe")
    }

    /// The libibverbs provider (`make provider`), a cdylib.
    pub fn provider(&self) -> PathBuf {
        self.target.join("release/libqiao.so")
    }

    /// The device model (`make model`).
    pub fn model(&self) -> PathBuf {
        self.target.join("release/qiao-model")
    }

    /// The C compiler that built the kernel, and so builds its modules.
    pub fn kernel_cc(&self) -> Result<String> {
        let file = self.kernel_objects.with_file_name("cc");
        let cc =
            fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        Ok(cc.trim().into())
    }

    /// Folder in which each run of a scenario leaves its consoles and logs.
    pub fn runs(&self) -> PathBuf {
        self.build.join("runs")
    }

    /// `path`, or an error that says which make target makes it.
    pub fn require(path: PathBuf, target: &str) -> Result<PathBuf> {
        if !path.exists() {
            bail!("{} is missing: run make {target}", path.display());
        }
        Ok(path)
    }
}
