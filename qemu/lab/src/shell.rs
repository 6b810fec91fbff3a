// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A person's terminal on the guests' consoles, one at a time.

use std::{
    io::{self, ErrorKind, IsTerminal, Read, Write},
    os::unix::net::UnixStream,
    sync::{
        atomic::{AtomicUsize, Ordering},
        Arc, Mutex, PoisonError,
    },
    thread,
};

use anyhow::{ensure, Context, Result};
use crossterm::terminal;

use crate::{
    artefacts::Artefacts,
    report::Report,
    scenario::Scenario,
    session::{Guest, Session, SHORT},
};

/// Control-]: the next guest.
const NEXT_KEY: u8 = 0x1d;
/// Control-\: the end of the lab.
const LEAVE_KEY: u8 = 0x1c;
/// Bytes of a hidden guest that are kept for when it is shown.
const HIDDEN_BYTES: usize = 64 * 1024;

/// Boots the guests of a scenario and stays at their shells until the person leaves.
pub fn run(artefacts: &Artefacts, scenario: Option<&str>) -> Result<()> {
    ensure!(
        io::stdin().is_terminal() && io::stdout().is_terminal(),
        "a shell needs a terminal"
    );
    let name = scenario.unwrap_or_else(|| default_scenario(artefacts));
    let scenario = Scenario::wanted(name, artefacts)?;
    let mut report = Report::new();
    let session = scenario.boot(artefacts, &report)?;
    scenario.load_driver(&session)?;
    report.finish();
    let names: Vec<&str> = session.guests.iter().map(|guest| guest.name).collect();
    println!(
        "guests: {}; Control-] shows the next one, Control-\\ ends the lab",
        names.join(", ")
    );
    println!("consoles and logs: {}", session.dir.display());
    let result = attach(&session);
    println!("\r");
    session.finish(None, &mut report);
    report.finish();
    result?;
    ensure!(report.failed() == 0, "{}", report.failures());
    Ok(())
}

fn default_scenario(artefacts: &Artefacts) -> &'static str {
    let demo = "demo";
    match Scenario::named(demo) {
        Some(scenario) if scenario.in_tree(artefacts) => demo,
        _ => "softroce",
    }
}

/// The output of the guests: that of the shown one goes to the terminal, that of others is kept.
#[derive(Debug)]
struct Screen {
    shown: AtomicUsize,
    hidden: Vec<Mutex<Vec<u8>>>,
}

impl Screen {
    fn put(&self, guest: usize, bytes: &[u8]) -> io::Result<()> {
        let mut kept = self.hidden[guest]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(bytes);
        if self.shown.load(Ordering::SeqCst) == guest {
            return flush(&mut kept);
        }
        let surplus = kept.len().saturating_sub(HIDDEN_BYTES);
        kept.drain(..surplus);
        Ok(())
    }

    fn show(&self, guest: usize) -> io::Result<()> {
        let mut kept = self.hidden[guest]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.shown.store(guest, Ordering::SeqCst);
        flush(&mut kept)
    }
}

fn flush(kept: &mut Vec<u8>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(kept)?;
    kept.clear();
    out.flush()
}

/// Raw mode for as long as this value lives.
struct RawMode;

impl RawMode {
    fn enter() -> Result<Self> {
        terminal::enable_raw_mode()?;
        Ok(Self)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // Fails only if there is no terminal any more.
        let _ = terminal::disable_raw_mode();
    }
}

fn attach(session: &Session) -> Result<()> {
    let screen = Arc::new(Screen {
        shown: AtomicUsize::new(0),
        hidden: session.guests.iter().map(|_| Mutex::default()).collect(),
    });
    let mut consoles = Vec::new();
    for (index, guest) in session.guests.iter().enumerate() {
        let console = UnixStream::connect(&guest.shell_socket)?;
        let mut from = console.try_clone()?;
        let screen = screen.clone();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Ends when the guest is powered off or the person's terminal is gone.
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                if screen.put(index, &buffer[..length]).is_err() {
                    return;
                }
            }
        });
        consoles.push(console);
        guest.open_shell()?;
        set_size(guest)?;
    }
    let _raw = RawMode::enter()?;
    forward_keys(session, &mut consoles, &screen)
}

/// Sends what is typed to the shown guest until the person leaves.
fn forward_keys(session: &Session, consoles: &mut [UnixStream], screen: &Screen) -> Result<()> {
    let mut buffer = [0; 1024];
    loop {
        let length = match io::stdin().read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).context("reading the terminal"),
        };
        for piece in buffer[..length].split_inclusive(|byte| [NEXT_KEY, LEAVE_KEY].contains(byte)) {
            let shown = screen.shown.load(Ordering::SeqCst);
            let (key, text) = match piece.split_last() {
                Some((key @ (&NEXT_KEY | &LEAVE_KEY), text)) => (Some(*key), text),
                _ => (None, piece),
            };
            consoles[shown]
                .write_all(text)
                .context("writing to the guest")?;
            match key {
                Some(LEAVE_KEY) => return Ok(()),
                Some(_) => {
                    let next = (shown + 1) % session.guests.len();
                    set_size(&session.guests[next])?;
                    print!("\r\n[guest {}]\r\n", session.guests[next].name);
                    screen.show(next)?;
                }
                None => {}
            }
        }
    }
}

/// Tells a guest the size of the person's terminal; its console has no other way to know.
fn set_size(guest: &Guest) -> Result<()> {
    let (columns, rows) = terminal::size()?;
    let tty = qiao_agent::SHELL_TTY;
    guest
        .run(
            &format!("stty -F {tty} columns {columns} rows {rows}"),
            SHORT,
        )
        .map(drop)
}
