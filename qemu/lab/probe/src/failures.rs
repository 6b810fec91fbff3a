// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Failures on demand: the nth allocation or copy from or to user space that this task causes in the kernel.
//! See `Documentation/fault-injection/fault-injection.rst`; only the debug kernel can do it.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    str,
};

use anyhow::{Context, Result};

/// What may fail, in debugfs: of each kind all, and without a line in the log. The probability stays 0, so that nothing fails but
/// what [`Failures::inject`] asks for.
const SETTINGS: [(&str, &str); 6] = [
    ("failslab/ignore-gfp-wait", "N"),
    ("failslab/verbose", "0"),
    ("fail_page_alloc/ignore-gfp-wait", "N"),
    ("fail_page_alloc/min-order", "0"),
    ("fail_page_alloc/verbose", "0"),
    ("fail_usercopy/verbose", "0"),
];

/// Makes calls of this thread fail.
#[derive(Debug)]
pub struct Failures {
    nth: File,
}

/// What became of a failure that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injected {
    /// It happened.
    Yes,
    /// There were fewer allocations and copies.
    No,
}

impl Failures {
    /// Prepares the kernel.
    ///
    /// # Errors
    ///
    /// If the kernel cannot do it.
    pub fn new() -> Result<Self> {
        for (setting, value) in SETTINGS {
            let path = format!("/sys/kernel/debug/{setting}");
            fs::write(&path, value)
                .with_context(|| format!("writing {path}: this kernel fails nothing on demand"))?;
        }
        let (start, end) = dma_debug_text()?;
        for (setting, value) in [("reject-start", start), ("reject-end", end)] {
            let path = format!("/sys/kernel/debug/failslab/{setting}");
            fs::write(&path, value.to_string()).with_context(|| format!("writing {path}"))?;
        }
        let nth = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/proc/thread-self/fail-nth")
            .context("opening /proc/thread-self/fail-nth")?;
        Ok(Self { nth })
    }

    /// Runs `call` with its `n`th allocation or copy failing, from 1.
    pub fn inject<T>(&self, n: u32, call: impl FnOnce() -> T) -> Result<(T, Injected)> {
        self.nth
            .write_at(n.to_string().as_bytes(), 0)
            .context("arming the failure")?;
        let result = call();
        let injected = self.disarm()?;
        Ok((result, injected))
    }

    /// What is left to count is 0 once the failure has happened. Reading it copies to user space, and so may itself be what fails.
    fn disarm(&self) -> Result<Injected> {
        let mut left = [0; 16];
        let injected = match self.nth.read_at(&mut left, 0) {
            Ok(length) if str::from_utf8(&left[..length])?.trim() == "0" => Injected::Yes,
            _ => Injected::No,
        };
        // So may writing, but only once.
        if self.nth.write_at(b"0", 0).is_err() {
            self.nth
                .write_at(b"0", 0)
                .context("disarming the failure")?;
        }
        Ok(injected)
    }
}

/// Where the functions are that check the use of the DMA interface, and that would check nothing any more after a first failure.
fn dma_debug_text() -> Result<(u64, u64)> {
    let symbols = fs::read_to_string("/proc/kallsyms").context("reading /proc/kallsyms")?;
    let symbols: Vec<(u64, &str)> = symbols
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            let text = matches!(words.next()?, "t" | "T");
            text.then_some((address, words.next()?))
        })
        .collect();
    let of_checks = |name: &str| {
        ["debug_dma_", "add_dma_entry", "active_cacheline_"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    let checks = || symbols.iter().filter(|(_, name)| of_checks(name));
    let addresses = || checks().map(|(address, _)| *address);
    let (start, last) = addresses()
        .min()
        .zip(addresses().max())
        .context("the kernel does not check the use of the DMA interface")?;
    let after = symbols.iter().map(|(address, _)| *address);
    let end = after.filter(|address| *address > last).min();
    Ok((start, end.context("no function follows")?))
}
