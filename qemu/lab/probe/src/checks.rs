// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What was expected and what came: a line for each case, which the lab reads.

use std::fmt::Debug;

use rustix::io::Errno;

/// Counts the cases, so that the lab sees if the program ended early.
#[derive(Debug, Default)]
pub struct Checks {
    cases: usize,
}

impl Checks {
    /// Starts with no case.
    pub fn new() -> Self {
        Self::default()
    }

    /// A case that holds or does not.
    pub fn holds(&mut self, name: &str, holds: bool, found: impl Debug) {
        self.cases += 1;
        let word = if holds { "ok" } else { "FAIL" };
        println!("{word} {name}: {found:?}");
    }

    /// A call that must fail with `expected`.
    pub fn refused<T: Debug>(&mut self, name: &str, expected: Errno, result: Result<T, Errno>) {
        match result {
            Err(found) if found == expected => self.holds(name, true, text(found)),
            Err(found) => self.holds(
                name,
                false,
                format!("{} instead of {}", text(found), text(expected)),
            ),
            Ok(value) => self.holds(
                name,
                false,
                format!("{value:?} instead of {}", text(expected)),
            ),
        }
    }

    /// A call that must succeed; its result if it does.
    pub fn works<T>(&mut self, name: &str, result: Result<T, Errno>) -> Option<T> {
        match result {
            Ok(value) => {
                self.holds(name, true, "done");
                Some(value)
            }
            Err(found) => {
                self.holds(name, false, text(found));
                None
            }
        }
    }

    /// Says that all cases were tried.
    pub fn finish(self) {
        println!("done {}", self.cases);
    }
}

fn text(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}
