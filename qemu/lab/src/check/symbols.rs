// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Modules built against the overlay find in the distribution's kernel every symbol that Rust code may need: the two were
//! compiled from the same sources by the same compilers, and so the mangled names agree.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{ensure, Context, Result};

use crate::{artefacts::Artefacts, report::Report};

/// The lists that the overlay's build generates.
const LISTS: [&str; 4] = ["core", "kernel", "helpers", "bindings"];

/// A test for each list.
pub(super) fn check(artefacts: &Artefacts, report: &mut Report) {
    // Not the overlay's copy: the file as the distribution ships it.
    let shipped = PathBuf::from(format!(
        "/usr/src/linux-headers-{}/Module.symvers",
        artefacts.kernel
    ));
    for list in LISTS {
        report.test(format!("overlay symbols: {list}"), || {
            let generated = artefacts
                .kernel_objects
                .join(format!("rust/exports_{list}_generated.h"));
            let count = check_list(&read(&generated)?, &read(&shipped)?)?;
            Ok(format!("{count} symbols"))
        });
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

/// Number of symbols in a generated list; an error if the kernel does not export one of them, or there is none.
fn check_list(generated: &str, symvers: &str) -> Result<usize> {
    let exported: HashSet<&str> = symvers
        .lines()
        .filter_map(|line| line.split('\t').nth(1))
        .collect();
    let symbols: Vec<&str> = generated
        .lines()
        .filter_map(|line| {
            line.strip_prefix("EXPORT_SYMBOL_RUST_GPL(")?
                .strip_suffix(");")
        })
        .collect();
    ensure!(!symbols.is_empty(), "the overlay's list is empty");
    let missing: Vec<&str> = symbols
        .iter()
        .filter(|symbol| !exported.contains(**symbol))
        .copied()
        .collect();
    ensure!(
        missing.is_empty(),
        "{} of {} symbols are not in the distribution's kernel, the first is {}",
        missing.len(),
        symbols.len(),
        missing[0]
    );
    Ok(symbols.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYMVERS: &str = "0x00000000\t_RNvC4core3fmt\tvmlinux\tEXPORT_SYMBOL_GPL\t\n0x00000000\tkfree\tvmlinux\tEXPORT_SYMBOL\t\n";

    #[test]
    fn all_found() {
        assert_eq!(
            check_list("EXPORT_SYMBOL_RUST_GPL(_RNvC4core3fmt);\n", SYMVERS).unwrap(),
            1
        );
    }

    #[test]
    fn one_missing_or_none_listed_is_an_error() {
        let list = "EXPORT_SYMBOL_RUST_GPL(_RNvC4core3fmt);\nEXPORT_SYMBOL_RUST_GPL(_RNvOther);\n";
        let error = check_list(list, SYMVERS).unwrap_err().to_string();
        assert!(error.contains("_RNvOther"), "{error}");
        assert!(check_list("", SYMVERS).is_err());
    }
}
