// SPDX-License-Identifier: GPL-2.0

//! The smallest module that proves the tool chain.
//!
//! It uses generic code of `kernel` (instantiated here), non-generic code of `kernel` (resolved by the mangled names that the
//! running kernel exports), and C helpers of the kernel's Rust support. If the overlay did not match the kernel, it would not load.

use kernel::{
    new_mutex,
    prelude::*,
    str::CString,
    sync::{Arc, Mutex},
};

module! {
    type: Hello,
    name: "qiao_hello",
    authors: ["Qiao"],
    description: "Smoke test of building Rust modules for a distribution kernel",
    license: "GPL",
}

struct Hello {
    numbers: Arc<Mutex<KVec<u32>>>,
}

impl kernel::Module for Hello {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let mut numbers = KVec::new();
        numbers.extend_from_slice(&[1, 2, 3], GFP_KERNEL)?;
        let text = CString::try_from_fmt(fmt!("{numbers:?}"))?;
        pr_info!("loaded with {}\n", text.to_str()?);
        Ok(Hello {
            numbers: Arc::pin_init(new_mutex!(numbers), GFP_KERNEL)?,
        })
    }
}

impl Drop for Hello {
    fn drop(&mut self) {
        let mut numbers = self.numbers.lock();
        for number in numbers.iter_mut() {
            *number *= *number;
        }
        pr_info!("unloaded with {:?}\n", *numbers);
    }
}
