// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Generates bindings of the provider interface of rdma-core.
//!
//! The interface is private to one release: rdma-core numbers it (`IBVERBS_PABI_VERSION`) and puts
//! the number into a symbol that each provider refers to and into the provider's file name. The
//! number is taken from the source tree, and the build fails here if the installed libibverbs has
//! another.

use anyhow::{bail, ensure, Context, Result};
use regex::Regex;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() -> Result<()> {
    println!("cargo:rerun-if-env-changed=RDMA_CORE");
    println!("cargo:rerun-if-changed=src/ffi/provider.h");
    println!("cargo:rerun-if-changed=../uapi/rdma/qiao-abi.h");
    let source = rdma_core()?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let pabi = private_abi(&source)?;
    check_installed(&pabi)?;
    let include = stage_headers(&source, &out)?;
    generate(&include, &pabi, &out)?;
    println!("cargo:rustc-link-lib=dylib=ibverbs");
    // A symbol that libibverbs does not have must fail the build and not the first user.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
    Ok(())
}

/// Returns the source tree of rdma-core.
fn rdma_core() -> Result<PathBuf> {
    if let Some(path) = env::var_os("RDMA_CORE") {
        return Ok(path.into());
    }
    let metadata = cargo_metadata::MetadataCommand::new()
        .other_options(["--locked".to_owned()])
        .exec()
        .context("cannot list the dependencies")?;
    let package = metadata
        .packages
        .iter()
        .find(|p| p.name == "ibverbs-sys")
        .context("ibverbs-sys is not among the dependencies")?;
    let root = package
        .manifest_path
        .parent()
        .context("a manifest without a folder")?;
    Ok(root.join("vendor/rdma-core").into())
}

/// Returns `IBVERBS_PABI_VERSION` of the source tree.
fn private_abi(source: &Path) -> Result<String> {
    let path = source.join("CMakeLists.txt");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let version = Regex::new(r#"set\(IBVERBS_PABI_VERSION "([0-9]+)"\)"#)?;
    let found = version
        .captures(&text)
        .context("CMakeLists.txt has no IBVERBS_PABI_VERSION")?;
    Ok(found[1].to_owned())
}

/// Checks that the libibverbs to link with has the private ABI `pabi`.
fn check_installed(pabi: &str) -> Result<()> {
    let output = Command::new("cc")
        .args(["-print-file-name=libibverbs.so"])
        .output()
        .context("cannot run cc")?;
    let path = String::from_utf8(output.stdout)?;
    let path = Path::new(path.trim());
    ensure!(
        path.is_absolute(),
        "libibverbs.so is not installed (libibverbs-dev)"
    );
    let library = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let symbol = format!("verbs_register_driver_{pabi}\0");
    if !library
        .windows(symbol.len())
        .any(|w| w == symbol.as_bytes())
    {
        bail!(
            "the installed libibverbs does not have private ABI {pabi}: \
             set RDMA_CORE= to the source of the release that is installed"
        );
    }
    Ok(())
}

/// Lays the headers out as the build of rdma-core does.
fn stage_headers(source: &Path, out: &Path) -> Result<PathBuf> {
    let include = out.join("include");
    if include.exists() {
        fs::remove_dir_all(&include)?;
    }
    fs::create_dir_all(include.join("kernel-abi"))?;
    for (from, to) in [
        ("libibverbs", "infiniband"),
        ("ccan", "ccan"),
        ("util", "util"),
        ("kernel-headers/rdma", "rdma"),
    ] {
        symlink(source.join(from), include.join(to))?;
    }
    // What its configure step would find out matters only to its own sources.
    fs::write(include.join("config.h"), "")?;
    let status = Command::new("python3")
        .arg(source.join("buildlib/make_abi_structs.py"))
        .arg(source.join("kernel-headers/rdma/ib_user_verbs.h"))
        .arg(include.join("kernel-abi/ib_user_verbs.h"))
        .status()
        .context("cannot run python3")?;
    ensure!(status.success(), "make_abi_structs.py failed");
    Ok(include)
}

fn generate(include: &Path, pabi: &str, out: &Path) -> Result<()> {
    bindgen::builder()
        .header("src/ffi/provider.h")
        .clang_arg(format!("-I{}", include.display()))
        .clang_arg("-I../uapi")
        .clang_arg(format!("-DIBVERBS_PABI_VERSION={pabi}"))
        .allowlist_type("(verbs|ibv|ib_uverbs|qiao)_.*")
        .allowlist_var("(QIAO|IBV|VERBS)_.*")
        .allowlist_function("_?verbs_.*|ibv_cmd_.*|ibv_do(nt)?fork_range|qiao_.*")
        .prepend_enum_name(false)
        .derive_default(true)
        .generate_comments(false)
        .generate()?
        .write_to_file(out.join("bindings.rs"))?;
    let register = format!("verbs_register_driver_{pabi}");
    fs::write(
        out.join("register.rs"),
        format!("pub(crate) use super::bindings::{register} as verbs_register_driver;\n"),
    )?;
    Ok(())
}
