// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Unmodified RDMA client programs between two guests. Iteration counts are small: the figures say that data moved, and are no
//! benchmark of anything under software emulation.

use anyhow::{ensure, Context, Result};

use crate::{
    figures,
    report::Report,
    session::{Guest, LONG, SHORT},
};

/// TCP ports on which the servers await the clients' queue numbers, each the program's own default.
const PINGPONG_PORT: u16 = 18515;
const PERFTEST_PORT: u16 = 18515;

/// An RDMA device in each of two guests.
pub(super) struct Pair<'a> {
    /// Where servers run.
    pub server: &'a Guest,
    /// Where clients run.
    pub client: &'a Guest,
    /// The device's name in both guests.
    pub device: &'a str,
    /// GID index for devices that address by GID (Ethernet); without it the LID is used (InfiniBand).
    pub gid_index: Option<u8>,
}

impl Pair<'_> {
    /// Runs every client program, a row each.
    pub fn run_all(&self, report: &mut Report) {
        for guest in [self.server, self.client] {
            report.test(format!("ibv_devices ({})", guest.name), || {
                self.devices(guest)
            });
            report.test(format!("ibv_devinfo -v ({})", guest.name), || {
                self.devinfo(guest)
            });
        }
        report.test("ibv_rc_pingpong", || self.pingpong("-n 200 -c"));
        report.test("ibv_rc_pingpong -e", || self.pingpong("-n 200 -c -e"));
        report.test("ib_write_bw", || {
            self.bandwidth("ib_write_bw -n 100 -s 65536")
        });
        report.test("ib_read_bw", || {
            self.bandwidth("ib_read_bw -n 100 -s 65536")
        });
        report.test("ib_send_lat", || self.latency("ib_send_lat -n 200 -s 8"));
    }

    fn devices(&self, guest: &Guest) -> Result<String> {
        let output = guest.run("ibv_devices", SHORT)?.stdout;
        let names = figures::device_names(&output);
        ensure!(
            names.contains(&self.device),
            "{} is not listed:\n{output}",
            self.device
        );
        Ok(names.join(" "))
    }

    fn devinfo(&self, guest: &Guest) -> Result<String> {
        let output = guest
            .run(&format!("ibv_devinfo -v -d {}", self.device), SHORT)?
            .stdout;
        let state = figures::devinfo_value(&output, "state")?;
        ensure!(state.starts_with("PORT_ACTIVE"), "the port is {state}");
        let link = figures::devinfo_value(&output, "link_layer")?;
        let mtu = figures::devinfo_value(&output, "active_mtu")?;
        Ok(format!("{link}, active, MTU {mtu}"))
    }

    fn pingpong(&self, options: &str) -> Result<String> {
        let gid = self
            .gid_index
            .map(|index| format!(" -g {index}"))
            .unwrap_or_default();
        let command = format!("ibv_rc_pingpong -d {}{gid} {options}", self.device);
        let (server, client) = self.serve(&command, PINGPONG_PORT)?;
        // Both sides check the data they received, and both print the figures.
        figures::pingpong(&server).context("server")?;
        let (time, rate) = figures::pingpong(&client).context("client")?;
        Ok(format!("{time:.0} us/iteration, {rate:.1} Mbit/s"))
    }

    fn bandwidth(&self, program: &str) -> Result<String> {
        let (_, client) = self.serve(&self.perftest(program), PERFTEST_PORT)?;
        Ok(format!("{:.2} MiB/s", figures::bandwidth(&client)?))
    }

    fn latency(&self, program: &str) -> Result<String> {
        let (_, client) = self.serve(&self.perftest(program), PERFTEST_PORT)?;
        Ok(format!("{:.0} us", figures::latency(&client)?))
    }

    /// `-F`: the processor's clock is emulated. `-u 18`: about a second until a packet counts as lost, since a vCPU may wait its
    /// turn for longer than the 67 ms of the default.
    fn perftest(&self, program: &str) -> String {
        let gid = self
            .gid_index
            .map(|index| format!(" -x {index}"))
            .unwrap_or_default();
        format!("{program} -d {}{gid} -F -u 18", self.device)
    }

    /// Runs a command in the server's guest and, as soon as it listens, the same with the server's address in the client's.
    /// What both printed on standard output.
    fn serve(&self, command: &str, port: u16) -> Result<(String, String)> {
        let server = self.server.start(command, LONG)?;
        let client = self.server.wait_listen(port).and_then(|()| {
            self.client
                .run(&format!("{command} {}", self.server.address), LONG)
        });
        let client = match client {
            Ok(output) => output.stdout,
            Err(error) => {
                let said = server.kill()?;
                return Err(
                    error.context(format!("the server said: {}{}", said.stdout, said.stderr))
                );
            }
        };
        Ok((server.wait()?.stdout, client))
    }
}
