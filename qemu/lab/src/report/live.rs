// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Progress while a run is on: a line that is redrawn on a terminal that can do that, plain lines elsewhere.

use std::{io::IsTerminal, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};

/// The display.
#[derive(Debug)]
pub(super) struct Live {
    bar: Option<ProgressBar>,
}

impl Live {
    pub fn new() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let bar = (std::io::stderr().is_terminal() && !dumb).then(|| {
            let bar = ProgressBar::new_spinner();
            bar.set_style(style("{spinner} {msg} ({elapsed})"));
            bar
        });
        Self { bar }
    }

    /// Shows how many of so many steps are done.
    pub fn expect(&self, steps: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(steps);
            bar.set_style(style("{spinner} [{pos}/{len}] {msg} ({elapsed})"));
        }
    }

    pub fn step(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    pub fn doing(&self, what: &str) {
        match &self.bar {
            Some(bar) => {
                bar.reset_elapsed();
                bar.enable_steady_tick(Duration::from_millis(100));
                bar.set_message(what.to_owned());
            }
            None => eprintln!("lab: {what}"),
        }
    }

    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| println!("{line}")),
            None => println!("{line}"),
        }
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates are constants")
}
