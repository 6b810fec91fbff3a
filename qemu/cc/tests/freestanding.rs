// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the kernel has no answer for must not be in the crate: the object that a build with the
//! kernel's checks gives may need nothing but functions that copy and compare memory.

use std::path::PathBuf;
use std::process::Command;

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
    String::from_utf8(output.stdout).unwrap()
}

/// Names that the object of the Rust source `source` needs from elsewhere.
fn needed(name: &str, source: &str) -> Vec<String> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let object = folder.join(format!("{name}.o"));
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    output(
        Command::new(rustc)
            .args([
                "--edition=2021",
                "--crate-type=lib",
                "--emit=obj",
                "-Copt-level=2",
            ])
            // As CONFIG_RUST_OVERFLOW_CHECKS does, and one object for all of it.
            .args(["-Coverflow-checks=on", "-Cpanic=abort", "-Ccodegen-units=1"])
            .args(["-Ctarget-feature=-sse,-sse2,+soft-float", "-Awarnings"])
            .arg("-o")
            .args([&object, &PathBuf::from(source)]),
    );
    let symbols = output(Command::new("nm").arg("--undefined-only").arg(&object));
    std::fs::remove_file(&object).unwrap();
    let names = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1));
    names.map(str::to_owned).collect()
}

#[test]
fn the_crate_needs_nothing_that_the_kernel_does_not_have() {
    const MEMORY: [&str; 4] = ["memcpy", "memmove", "memset", "memcmp"];
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../drivers/infiniband/hw/qiao/cc/qiao_cc.rs"
    );
    let mut names = needed("qiao_cc", source);
    names.retain(|name| !MEMORY.contains(&name.as_str()));
    assert!(names.is_empty(), "{names:?}");
}

/// The test above sees what it is there to see.
#[test]
fn floats_wide_numbers_and_panics_are_seen() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    for (name, body, symbol) in [
        ("float", "(a as f64 / b as f64) as u64", "__divdf3"),
        (
            "wide",
            "(((a as u128) << 64) / b as u128) as u64",
            "__udivti3",
        ),
        ("panic", "a / b", "panic"),
        ("overflow", "a + b", "panic"),
    ] {
        let source = folder.join(format!("{name}.rs"));
        let text =
            format!("#![no_std]\n#[no_mangle] pub fn f(a: u64, b: u64) -> u64 {{ {body} }}\n");
        std::fs::write(&source, text).unwrap();
        let names = needed(name, source.to_str().unwrap());
        assert!(
            names.iter().any(|name| name.contains(symbol)),
            "{name}: {names:?}"
        );
    }
}
