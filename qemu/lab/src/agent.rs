// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The lab's end of the channel to the agent in a guest.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
        Arc, Mutex, MutexGuard, PoisonError,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{anyhow, bail, Context, Result};
use qiao_agent::{Event, Request, Status, Stream};

/// The agent itself ends a command in time; only a guest that hangs makes the lab wait this much longer.
const GRACE: Duration = Duration::from_secs(60);

/// What a command printed and how it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// A connection to one agent.
#[derive(Debug)]
pub struct Agent {
    guest: String,
    port: Mutex<UnixStream>,
    routes: Arc<Mutex<Routes>>,
    next_id: AtomicU64,
    ready: Mutex<Receiver<String>>,
    log: Arc<Mutex<File>>,
}

/// Where the events of running commands go; `None` once the guest is gone.
type Routes = Option<HashMap<u64, Sender<Event>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Agent {
    /// Takes over the connected port of `guest`; every command and what it printed is also written to `log`.
    pub fn new(guest: &str, port: UnixStream, log: &Path) -> Result<Self> {
        let events = BufReader::new(port.try_clone()?);
        let routes = Arc::new(Mutex::new(Some(HashMap::new())));
        let (became_ready, ready) = mpsc::channel();
        let reader_routes = routes.clone();
        let guest_name = guest.to_owned();
        thread::spawn(move || {
            if let Err(error) = route_events(events, &became_ready, &reader_routes) {
                eprintln!("lab: agent of {guest_name}: {error:#}");
            }
            // Dropping the senders tells everyone who waits.
            *lock(&reader_routes) = None;
        });
        Ok(Self {
            guest: guest.into(),
            port: Mutex::new(port),
            routes,
            next_id: AtomicU64::new(1),
            ready: Mutex::new(ready),
            log: Arc::new(Mutex::new(File::create(log)?)),
        })
    }

    /// Waits for the agent to come up; the release of the guest's kernel, `None` if it is not up yet after `timeout`.
    pub fn wait_ready(&self, timeout: Duration) -> Result<Option<String>> {
        match lock(&self.ready).recv_timeout(timeout) {
            Ok(kernel) => Ok(Some(kernel)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                bail!("guest {} ended before its agent came up", self.guest)
            }
        }
    }

    /// Sends a request that has no answer.
    pub fn send(&self, request: &Request) -> Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        lock(&self.port)
            .write_all(&line)
            .with_context(|| format!("writing to the agent of {}", self.guest))
    }

    /// Starts a command line of bash.
    pub fn start(&self, command: &str, timeout: Duration) -> Result<Running<'_>> {
        // With pipefail a pipe cannot hide that its first part failed.
        let argv = ["bash", "-o", "pipefail", "-c", command];
        self.request(command, timeout, |id| Request::Run {
            id,
            argv: argv.map(Into::into).to_vec(),
            timeout_ms: timeout.as_millis() as u64,
        })
    }

    /// Waits until something in the guest listens on a TCP port.
    pub fn wait_listen(&self, port: u16, timeout: Duration) -> Result<()> {
        self.request(&format!("(listener on port {port})"), timeout, |id| {
            Request::WaitListen {
                id,
                port,
                timeout_ms: timeout.as_millis() as u64,
            }
        })?
        .wait()
        .map(drop)
    }

    fn request(
        &self,
        title: &str,
        timeout: Duration,
        request: impl FnOnce(u64) -> Request,
    ) -> Result<Running<'_>> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, events) = mpsc::channel();
        lock(&self.routes)
            .as_mut()
            .with_context(|| format!("guest {} is gone", self.guest))?
            .insert(id, sender);
        self.send(&request(id))?;
        Ok(Running {
            agent: self,
            id,
            title: title.into(),
            events,
            deadline: Instant::now() + timeout + GRACE,
            output: Output::default(),
        })
    }
}

fn route_events(
    events: impl BufRead,
    ready: &Sender<String>,
    routes: &Mutex<Routes>,
) -> Result<()> {
    for line in events.lines() {
        // The socket is reset when QEMU ends; that is how every guest goes.
        let Ok(line) = line else { return Ok(()) };
        match serde_json::from_str(&line).with_context(|| format!("unexpected line {line:?}"))? {
            Event::Ready { kernel } => drop(ready.send(kernel)),
            Event::Output { id, .. } | Event::Exit { id, .. } if !known(routes, id) => {}
            event @ Event::Output { id, .. } => forward(routes, id, event),
            event @ Event::Exit { id, .. } => {
                forward(routes, id, event);
                if let Some(routes) = lock(routes).as_mut() {
                    routes.remove(&id);
                }
            }
        }
    }
    Ok(())
}

fn known(routes: &Mutex<Routes>, id: u64) -> bool {
    lock(routes)
        .as_ref()
        .is_some_and(|routes| routes.contains_key(&id))
}

fn forward(routes: &Mutex<Routes>, id: u64, event: Event) {
    if let Some(route) = lock(routes).as_ref().and_then(|routes| routes.get(&id)) {
        // Fails when the one who started the command no longer cares.
        let _ = route.send(event);
    }
}

/// A command that was started in a guest. Dropping it does not end the command.
#[derive(Debug)]
pub struct Running<'a> {
    agent: &'a Agent,
    id: u64,
    title: String,
    events: Receiver<Event>,
    deadline: Instant,
    output: Output,
}

impl Running<'_> {
    /// Waits until the command has ended; an error unless it exited with 0.
    pub fn wait(self) -> Result<Output> {
        let (title, guest) = (self.title.clone(), self.agent.guest.clone());
        let (status, output) = self.wait_status()?;
        let what = match status {
            Status::Code(0) => return Ok(output),
            Status::Code(code) => format!("exited with {code}"),
            Status::Signal(signal) => format!("was ended by signal {signal}"),
            Status::TimedOut => "did not end in time".into(),
            Status::NotStarted(why) => format!("was not started: {why}"),
        };
        Err(anyhow!("{guest}: `{title}` {what}{}", output.tail()))
    }

    /// Waits until the command has ended, however it does.
    pub fn wait_status(mut self) -> Result<(Status, Output)> {
        let status = loop {
            match self
                .events
                .recv_timeout(self.deadline.saturating_duration_since(Instant::now()))
            {
                Ok(Event::Output { stream, text, .. }) => match stream {
                    Stream::Stdout => self.output.stdout += &text,
                    Stream::Stderr => self.output.stderr += &text,
                },
                Ok(Event::Exit { status, .. }) => break status,
                Ok(Event::Ready { .. }) => unreachable!("has no id and so no route"),
                Err(RecvTimeoutError::Timeout) => {
                    bail!(
                        "{}: no answer to `{}`: the guest hangs",
                        self.agent.guest,
                        self.title
                    )
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!(
                        "{}: the guest ended during `{}`",
                        self.agent.guest,
                        self.title
                    )
                }
            }
        };
        let Output { stdout, stderr } = &self.output;
        writeln!(
            lock(&self.agent.log),
            "$ {}\n{stdout}{stderr}=> {status:?}\n",
            self.title
        )?;
        Ok((status, self.output))
    }

    /// Kills the command and waits for its end.
    pub fn kill(self) -> Result<Output> {
        self.agent.send(&Request::Kill { id: self.id })?;
        Ok(self.wait_status()?.1)
    }
}

impl Output {
    /// The last lines of what was printed, each on its own line, for an error message.
    fn tail(&self) -> String {
        const LINES: usize = 12;
        let lines: Vec<&str> = self.stdout.lines().chain(self.stderr.lines()).collect();
        let last = &lines[lines.len().saturating_sub(LINES)..];
        format!("\n    {}", last.join("\n    "))
    }
}
