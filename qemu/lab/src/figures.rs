// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the figures out of what the client programs print. The programs are unmodified; their formats are theirs.

use std::sync::LazyLock;

use anyhow::{ensure, Context, Result};
use regex::Regex;

/// Names of the devices that `ibv_devices` lists.
pub fn device_names(ibv_devices: &str) -> Vec<&str> {
    ibv_devices
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("---"))
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

/// A value of `ibv_devinfo`, by the name before its colon: the first of that name.
pub fn devinfo_value<'a>(devinfo: &'a str, name: &str) -> Result<&'a str> {
    devinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim())
        .with_context(|| format!("ibv_devinfo prints no {name}"))
}

/// Microseconds per iteration, and Mbit/s, of an `ibv_*_pingpong` client.
pub fn pingpong(output: &str) -> Result<(f64, f64)> {
    static TIME: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"iters in [\d.]+ seconds = ([\d.]+) usec/iter").expect("constant")
    });
    static RATE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"bytes in [\d.]+ seconds = ([\d.]+) Mbit/sec").expect("constant")
    });
    let number = |regex: &Regex, what: &str| -> Result<f64> {
        let found = regex
            .captures(output)
            .with_context(|| format!("the program printed no {what}"))?;
        Ok(found[1].parse()?)
    };
    // With -c this is all that tells of bad data: the program exits with 0 all the same.
    ensure!(
        !output.contains("invalid data"),
        "the data was damaged:\n{output}"
    );
    Ok((number(&TIME, "time per iteration")?, number(&RATE, "rate")?))
}

/// Average bandwidth in MiB/s of the one line that a bandwidth test prints.
pub fn bandwidth(output: &str) -> Result<f64> {
    table_value(output, "BW average[MiB/sec]", 5, 3)
}

/// Messages per second of the one line that a bandwidth test prints.
pub fn message_rate(output: &str) -> Result<f64> {
    Ok(table_value(output, "MsgRate[Mpps]", 5, 4)? * 1e6)
}

/// Typical (median) latency in microseconds of the one line that a latency test prints.
pub fn latency(output: &str) -> Result<f64> {
    table_value(output, "t_typical[usec]", 9, 4)
}

/// Ticks that all processors together have worked, of `/proc/stat`: all but idle and waiting for input and output.
pub fn busy_ticks(stat: &str) -> Result<f64> {
    let line = stat.lines().next().unwrap_or_default();
    let fields: Vec<f64> = line
        .strip_prefix("cpu ")
        .with_context(|| format!("no processors in {line:?}"))?
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    // user, nice, system, idle, iowait, irq, softirq
    ensure!(fields.len() >= 7, "too few fields in {line:?}");
    Ok(fields[..3].iter().chain(&fields[5..7]).sum())
}

/// Column `index` of `columns` in the line after the heading that contains `heading`.
fn table_value(output: &str, heading: &str, columns: usize, index: usize) -> Result<f64> {
    let mut lines = output.lines().skip_while(|line| !line.contains(heading));
    lines
        .next()
        .with_context(|| format!("the program printed no table with {heading}"))?;
    let values: Vec<&str> = lines
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    ensure!(
        values.len() == columns,
        "the table has {} columns and not {columns}: {values:?}",
        values.len()
    );
    let value: f64 = values[index]
        .parse()
        .with_context(|| format!("{heading}: {:?}", values[index]))?;
    ensure!(value > 0.0, "{heading} is {value}");
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    // What the programs of Debian 13 (rdma-core 56.1, perftest 25.01) printed over soft-RoCE.

    const DEVICES: &str =
        "    device          \t   node GUID\n    ------          \t----------------\n    \
                           rxe0            \t505400fffe770002\n";

    const DEVINFO: &str = "hca_id:\trxe0\n\ttransport:\t\t\tInfiniBand (0)\n\tmax_mw:\t\t\t\t524287\n\
                           \t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tactive_mtu:\t\t1024 (3)\n\
                           \t\t\tlink_layer:\t\tEthernet\n\t\t\tGID[  0]:\t\tfe80::5054:ff:fe77:2, RoCE v2\n";

    const PINGPONG: &str = "  \
  local address:  LID 0x0000, QPN 0x000012, PSN 0x6eb58d, GID ::ffff:10.77.0.2
  remote address: LID 0x0000, QPN 0x000012, PSN 0x0adba3, GID ::ffff:10.77.0.1
1638400 bytes in 0.60 seconds = 21.93 Mbit/sec
200 iters in 0.60 seconds = 2988.14 usec/iter
";

    const WRITE_BW: &str = " GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:77:00:01
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 65536      100              12.13              10.24  \t\t     0.000164
---------------------------------------------------------------------------------------
";

    const SEND_LAT: &str = "---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
99% percentile[usec]   99.9% percentile[usec] 
 8       200          681.77         11731.94      2207.48  \t       2875.18     \t1806.01\t\t10085.24 \t\t11731.94
---------------------------------------------------------------------------------------
";

    #[test]
    fn devices() {
        assert_eq!(device_names(DEVICES), ["rxe0"]);
        assert_eq!(device_names("    device\n    ------\n"), [""; 0]);
    }

    #[test]
    fn devinfo() {
        assert_eq!(devinfo_value(DEVINFO, "state").unwrap(), "PORT_ACTIVE (4)");
        assert_eq!(devinfo_value(DEVINFO, "link_layer").unwrap(), "Ethernet");
        assert!(devinfo_value(DEVINFO, "GID").is_err());
    }

    #[test]
    fn pingpong_figures() {
        assert_eq!(pingpong(PINGPONG).unwrap(), (2988.14, 21.93));
        assert!(pingpong("").is_err());
    }

    #[test]
    fn damaged_data_is_an_error() {
        let output = format!("invalid data in page 1\n{PINGPONG}");
        assert!(pingpong(&output)
            .unwrap_err()
            .to_string()
            .contains("page 1"));
    }

    #[test]
    fn perftest_figures() {
        assert_eq!(bandwidth(WRITE_BW).unwrap(), 10.24);
        assert_eq!(message_rate(WRITE_BW).unwrap(), 164.0);
        assert_eq!(latency(SEND_LAT).unwrap(), 2207.48);
    }

    #[test]
    fn processors_work_when_they_do_not_idle() {
        let stat = "cpu  10 1 5 1000 100 2 3 0 0 0\ncpu0 10 1 5 1000 100 2 3 0 0 0\n";
        assert_eq!(busy_ticks(stat).unwrap(), 21.0);
        assert!(busy_ticks("cpu0 1 2 3").is_err());
        assert!(busy_ticks("cpu  1 2 3").is_err());
    }

    #[test]
    fn a_table_without_its_line_or_with_nothing_moved_is_an_error() {
        assert!(bandwidth(SEND_LAT).is_err());
        let cut = WRITE_BW.split(" 65536").next().unwrap();
        assert!(bandwidth(cut).is_err());
        assert!(bandwidth(&WRITE_BW.replace("10.24", "0.00")).is_err());
    }
}
