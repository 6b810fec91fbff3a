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

/// Programs of ibverbs-utils: each transport, by polling and by events.
const PINGPONGS: [&str; 6] = [
    "ibv_rc_pingpong",
    "ibv_rc_pingpong -e",
    "ibv_uc_pingpong -e",
    "ibv_ud_pingpong -e",
    "ibv_srq_pingpong",
    "ibv_srq_pingpong -e",
];
/// Programs of perftest: each operation over each transport that has it.
const BANDWIDTHS: [&str; 9] = [
    "ib_write_bw -s 65536",
    "ib_read_bw -s 65536",
    "ib_atomic_bw -A FETCH_AND_ADD",
    "ib_atomic_bw -A CMP_AND_SWAP",
    "ib_write_bw -c UC -s 65536",
    "ib_send_bw -c UC -s 65536",
    "ib_send_bw -c UD -s 1024",
    "ib_send_bw -s 65536",
    "ib_send_bw --use-srq -s 65536",
];
const LATENCIES: [&str; 6] = [
    "ib_send_lat -s 8",
    "ib_send_lat -e -s 8",
    "ib_send_lat -c UD -s 8",
    "ib_write_lat -c UC -s 8",
    "ib_atomic_lat -A FETCH_AND_ADD",
    "ib_atomic_lat -A CMP_AND_SWAP",
];

/// An RDMA device in a guest.
#[derive(Clone, Copy)]
pub(super) struct End<'a> {
    /// Where programs run.
    pub guest: &'a Guest,
    /// The device's name there.
    pub device: &'a str,
}

impl End<'_> {
    fn name(&self) -> String {
        format!("{} in {}", self.device, self.guest.name)
    }

    fn devices(&self) -> Result<String> {
        let output = self.guest.run("ibv_devices", SHORT)?.stdout;
        let names = figures::device_names(&output);
        ensure!(
            names.contains(&self.device),
            "{} is not listed:\n{output}",
            self.device
        );
        Ok(names.join(" "))
    }

    fn devinfo(&self) -> Result<String> {
        let output = self
            .guest
            .run(&format!("ibv_devinfo -v -d {}", self.device), SHORT)?
            .stdout;
        let state = figures::devinfo_value(&output, "state")?;
        ensure!(state.starts_with("PORT_ACTIVE"), "the port is {state}");
        let link = figures::devinfo_value(&output, "link_layer")?;
        let mtu = figures::devinfo_value(&output, "active_mtu")?;
        Ok(format!("{link}, active, MTU {mtu}"))
    }
}

/// Two RDMA devices whose ports reach each other, in two guests or in one.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    /// Where servers run.
    pub server: End<'a>,
    /// Where clients run.
    pub client: End<'a>,
    /// GID index for devices that address by GID (Ethernet); without it the LID is used (InfiniBand).
    pub gid_index: Option<u8>,
}

impl Pair<'_> {
    /// Runs every client program, a row each.
    pub fn run_all(&self, report: &mut Report) {
        for end in [self.server, self.client] {
            report.test(format!("ibv_devices, {}", end.name()), || end.devices());
            report.test(format!("ibv_devinfo -v, {}", end.name()), || end.devinfo());
        }
        for command in PINGPONGS {
            report.test(command, || self.pingpong(&format!("{command} -n 200 -c")));
        }
        for command in BANDWIDTHS {
            report.test(command, || self.bandwidth(&format!("{command} -n 100")));
        }
        for command in LATENCIES {
            report.test(command, || self.latency(&format!("{command} -n 200")));
        }
    }

    /// One of libibverbs' ping-pong programs; with `-c` it checks the data.
    pub fn pingpong(&self, program: &str) -> Result<String> {
        let (time, rate) = self.round_trips(program)?;
        Ok(format!("{time:.0} us/iteration, {rate:.1} Mbit/s"))
    }

    /// As [`Pair::pingpong`]: microseconds of a round trip, and Mbit/s.
    pub fn round_trips(&self, program: &str) -> Result<(f64, f64)> {
        let gid = self
            .gid_index
            .map(|index| format!("-g {index}"))
            .unwrap_or_default();
        let command = |device: &str| format!("{program} -d {device} {gid}");
        let (server, client) = self.serve(command, PINGPONG_PORT)?;
        // Both sides check the data they received, and both print the figures.
        figures::pingpong(&server).context("server")?;
        figures::pingpong(&client).context("client")
    }

    fn bandwidth(&self, program: &str) -> Result<String> {
        Ok(format!(
            "{:.2} MiB/s",
            figures::bandwidth(&self.perftest(program)?)?
        ))
    }

    fn latency(&self, program: &str) -> Result<String> {
        Ok(format!(
            "{:.0} us",
            figures::latency(&self.perftest(program)?)?
        ))
    }

    /// `-F`: the processor's clock is emulated. `-u 18`: about a second until a packet counts as lost, since a vCPU may wait its
    /// turn for longer than the 67 ms of the default. What the client printed.
    pub fn perftest(&self, program: &str) -> Result<String> {
        let gid = self
            .gid_index
            .map(|index| format!("-x {index}"))
            .unwrap_or_default();
        let command = |device: &str| format!("{program} -d {device} {gid} -F -u 18");
        Ok(self.serve(command, PERFTEST_PORT)?.1)
    }

    /// Runs a command, given a device, in the server's guest and, as soon as it listens, the same with the server's address in the
    /// client's. What both printed on standard output.
    fn serve(&self, command: impl Fn(&str) -> String, port: u16) -> Result<(String, String)> {
        let (server, client) = (self.server.guest, self.client.guest);
        let serving = server.start(&command(self.server.device), LONG)?;
        let client_command = format!("{} {}", command(self.client.device), server.address);
        let output = server
            .wait_listen(port)
            .and_then(|()| client.run(&client_command, LONG));
        match output {
            Ok(output) => Ok((serving.wait()?.stdout, output.stdout)),
            Err(error) => {
                let said = serving.kill()?;
                Err(error.context(format!("the server said: {}{}", said.stdout, said.stderr)))
            }
        }
    }
}
