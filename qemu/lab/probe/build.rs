// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes Rust types of the user ABI's C header.

use std::{env, error::Error, path::Path, process::Command};

const HEADER: &str = "../../../uapi/rdma/qiao-abi.h";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={HEADER}");
    let out = Path::new(&env::var("OUT_DIR")?).join("qiao_abi.rs");
    // FromBytes and IntoBytes fail to derive if the compiler sees padding: each byte of the ABI has a name.
    let status = Command::new("bindgen")
        .arg(HEADER)
        .args([
            "--allowlist-type=qiao_.*",
            "--allowlist-var=QIAO_.*",
            "--no-doc-comments",
        ])
        .arg("--with-derive-custom-struct=qiao_.*=zerocopy::FromBytes,zerocopy::IntoBytes,zerocopy::Immutable")
        .arg("--output")
        .arg(&out)
        .status()?;
    if !status.success() {
        return Err(format!("bindgen: {status}").into());
    }
    Ok(())
}
