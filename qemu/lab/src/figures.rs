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
    static TIME: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"iters in [\d.]+ seconds = ([\d.]+) usec/iter").expect("constant"));
    static RATE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"bytes in [\d.]+ seconds = ([\d.]+) Mbit/sec").expect("constant"));
    let number = |regex: &Regex, what: &str| -> Result<f64> {
        let found = regex.captures(output).with_context(|| format!("the program printed no {what}"))?;
        Ok(found[1].parse()?)
    };
    // With -c this is all that tells of bad data: the program exits with 0 all the same.
    ensure!(!output.contains("invalid data"), "the data was damaged:\n{output}");
    Ok((number(&TIME, "time per iteration")?, number(&RATE, "rate")?))
}

/// Average bandwidth in MB/s (perftest's 2^20 bytes) of the one line that a bandwidth test prints.
pub fn bandwidth(output: &str) -> Result<f64> {
    table_value(output, "BW average[MB/sec]", 5, 3)
}

/// Typical (median) latency in microseconds of the one line that a latency test prints.
pub fn latency(output: &str) -> Result<f64> {
    table_value(output, "t_typical[usec]", 9, 4)
}

/// Column `index` of `columns` in the line after the heading that contains `heading`.
fn table_value(output: &str, heading: &str, columns: usize, index: usize) -> Result<f64> {
    let mut lines = output.lines().skip_while(|line| !line.contains(heading));
    lines.next().with_context(|| format!("the program printed no table with {heading}"))?;
    let values: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    ensure!(values.len() == columns, "the table has {} columns and not {columns}: {values:?}", values.len());
    let value: f64 = values[index].parse().with_context(|| format!("{heading}: {:?}", values[index]))?;
    ensure!(value > 0.0, "{heading} is {value}");
    Ok(value)
}
