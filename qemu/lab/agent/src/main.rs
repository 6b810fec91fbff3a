// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Process 1 of a lab guest. It mounts the guest's root, becomes its init, and starts itself again as the agent that runs commands
//! for the lab. Linked statically, since it also runs in the initramfs.

mod agent;
mod init;

use nix::sys::reboot::{reboot, RebootMode};

/// Argument that tells the second instance what it is.
const AGENT_ARGUMENT: &str = "agent";

fn main() {
    let result = match std::env::args().nth(1).as_deref() {
        Some(AGENT_ARGUMENT) => agent::run(),
        _ if std::process::id() == 1 => init::run(),
        _ => Err(anyhow::anyhow!(
            "this is process 1 of a lab guest and does nothing elsewhere"
        )),
    };
    if let Err(error) = result {
        // The lab reads the console; the prefix is one that its log scanner knows.
        eprintln!("qiao-agent: fatal: {error:#}");
        if std::process::id() == 1 {
            // Returns only if it fails, and then the kernel reports that process 1 ended.
            let _ = reboot(RebootMode::RB_POWER_OFF);
        }
        std::process::exit(1);
    }
}
