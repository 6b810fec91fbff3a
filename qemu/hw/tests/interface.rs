// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The specification and the C header are what the code says.

use std::io::Write;
use std::process::{Command, Stdio};

const TOOL: &str = env!("CARGO_BIN_EXE_qiao-interface");

#[test]
fn the_tables_of_the_specification_are_those_of_the_code() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/interface.md");
    let output = Command::new(TOOL)
        .args(["check", page])
        .output()
        .expect("runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn the_header_compiles_and_its_assertions_hold() {
    let header = Command::new(TOOL)
        .arg("header")
        .output()
        .expect("runs")
        .stdout;
    let mut cc = Command::new("cc")
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-fsyntax-only",
            "-xc",
            "-",
        ])
        .stdin(Stdio::piped())
        .spawn()
        .expect("cc runs");
    cc.stdin
        .take()
        .expect("piped")
        .write_all(&header)
        .expect("cc reads");
    assert!(cc.wait().expect("cc ends").success());
}
