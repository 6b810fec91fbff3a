// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs commands for the lab.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        mpsc::{self, RecvTimeoutError},
        Arc, Mutex, MutexGuard, PoisonError,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{bail, Context, Result};
use nix::{
    errno::Errno,
    sys::{
        reboot::{reboot, RebootMode},
        signal::{killpg, Signal},
    },
    unistd::{sync, Pid},
};
use qiao_agent::{Event, Request, Status, Stream, PORT_NAME, SHELL_TTY};

/// How often `/proc/net/tcp` is read while a listener is awaited.
const LISTEN_POLL: Duration = Duration::from_millis(50);
/// State of a listening socket in `/proc/net/tcp` (`TCP_LISTEN` of the kernel).
const TCP_LISTEN: &str = "0A";

/// The port to the lab and the process groups that run.
struct Agent {
    port: Mutex<File>,
    running: Mutex<HashMap<u64, Pid>>,
}

/// A panic of one thread leaves the maps and the port usable: every change to them is a single call.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves the lab until it asks to power off or closes the port.
pub fn run() -> Result<()> {
    let path = agent_port()?;
    let port = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("opening {}", path.display()))?;
    let requests = BufReader::new(port.try_clone()?);
    let agent = Arc::new(Agent {
        port: Mutex::new(port),
        running: Mutex::default(),
    });
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    agent.send(&Event::Ready {
        kernel: kernel.trim().into(),
    });
    for line in requests.lines() {
        let line = line.context("reading from the lab")?;
        let request = serde_json::from_str(&line).with_context(|| format!("request {line:?}"))?;
        agent.clone().serve(request)?;
    }
    bail!("the lab closed the port")
}

/// The device of the virtio-serial port that has the agent's name. There is no udev to make a link of that name.
fn agent_port() -> Result<PathBuf> {
    for entry in fs::read_dir("/sys/class/virtio-ports")? {
        let entry = entry?;
        // The attribute is absent for a port that QEMU gave no name.
        let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if name.trim() == PORT_NAME {
            return Ok(PathBuf::from("/dev").join(entry.file_name()));
        }
    }
    bail!("no virtio-serial port is called {PORT_NAME}")
}

impl Agent {
    fn send(&self, event: &Event) {
        let mut line = serde_json::to_vec(event).expect("events are plain data");
        line.push(b'\n');
        if let Err(error) = lock(&self.port).write_all(&line) {
            // The lab is gone, and with it every reader of this message but the console.
            eprintln!("qiao-agent: fatal: writing to the lab: {error}");
            std::process::exit(1);
        }
    }

    fn serve(self: Arc<Self>, request: Request) -> Result<()> {
        match request {
            Request::Run {
                id,
                argv,
                timeout_ms,
            } => {
                thread::spawn(move || {
                    let status = self.run_command(id, &argv, Duration::from_millis(timeout_ms));
                    self.send(&Event::Exit { id, status });
                });
            }
            Request::Kill { id } => self.kill(id),
            Request::WaitListen {
                id,
                port,
                timeout_ms,
            } => {
                thread::spawn(move || {
                    let status = wait_listen(port, Duration::from_millis(timeout_ms));
                    self.send(&Event::Exit { id, status });
                });
            }
            Request::Shell => {
                let tty = open_shell_tty().with_context(|| format!("opening {SHELL_TTY}"))?;
                thread::spawn(|| keep_shell(tty));
            }
            Request::PowerOff => {
                sync();
                reboot(RebootMode::RB_POWER_OFF).context("powering off")?;
            }
        }
        Ok(())
    }

    fn kill(&self, id: u64) {
        if let Some(group) = lock(&self.running).get(&id) {
            kill_group(*group);
        }
    }

    fn run_command(&self, id: u64, argv: &[String], timeout: Duration) -> Status {
        let Some((program, arguments)) = argv.split_first() else {
            return Status::NotStarted("no program given".into());
        };
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => return Status::NotStarted(format!("{program}: {error}")),
        };
        let group = Pid::from_raw(child.id() as i32);
        lock(&self.running).insert(id, group);
        let status = self.follow(id, &mut child, group, timeout);
        lock(&self.running).remove(&id);
        status
    }

    /// Forwards output until the command has ended or its time is over.
    fn follow(&self, id: u64, child: &mut Child, group: Pid, timeout: Duration) -> Status {
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        thread::scope(|scope| {
            scope.spawn(|| self.forward(id, Stream::Stdout, stdout));
            scope.spawn(|| self.forward(id, Stream::Stderr, stderr));
            let (ended, end) = mpsc::channel();
            let timer = scope.spawn(move || {
                let over = end.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout);
                if over {
                    kill_group(group);
                }
                over
            });
            let status = child.wait();
            drop::<mpsc::Sender<()>>(ended);
            let timed_out = timer.join().expect("the timer thread does not panic");
            // What the command left behind would hold its output open.
            kill_group(group);
            match status {
                Ok(_) if timed_out => Status::TimedOut,
                Ok(status) => status_of(status),
                Err(error) => Status::NotStarted(format!("waiting: {error}")),
            }
        })
    }

    fn forward(&self, id: u64, stream: Stream, from: Option<impl Read>) {
        let Some(mut from) = from else { return };
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            self.send(&Event::Output { id, stream, text });
        }
    }
}

fn status_of(status: ExitStatus) -> Status {
    match (status.code(), status.signal()) {
        (Some(code), _) => Status::Code(code),
        (None, Some(signal)) => Status::Signal(signal),
        (None, None) => unreachable!("a process that was waited for exited or was killed"),
    }
}

fn kill_group(group: Pid) {
    match killpg(group, Signal::SIGKILL) {
        // ESRCH: all have ended.
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => eprintln!("qiao-agent: killing process group {group}: {error}"),
    }
}

fn wait_listen(port: u16, timeout: Duration) -> Status {
    let start = Instant::now();
    loop {
        match listens(port) {
            Ok(true) => return Status::Code(0),
            Ok(false) if start.elapsed() >= timeout => return Status::TimedOut,
            Ok(false) => thread::sleep(LISTEN_POLL),
            Err(error) => return Status::NotStarted(format!("{error:#}")),
        }
    }
}

fn listens(port: u16) -> Result<bool> {
    let wanted = format!(":{port:04X}");
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let table = fs::read_to_string(table).with_context(|| format!("reading {table}"))?;
        let found = table.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().unwrap_or_default();
            local.ends_with(&wanted) && fields.nth(1) == Some(TCP_LISTEN)
        });
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

fn open_shell_tty() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(SHELL_TTY)
}

/// Starts a login shell on the shell's terminal again and again: leaving it must not leave the person without one.
///
/// A terminal that nobody has open forgets its size, hence `_held`.
fn keep_shell(_held: File) {
    loop {
        let shell = || -> Result<ExitStatus> {
            let tty = open_shell_tty()?;
            // setsid makes the terminal the controlling one, so that job control and ^C work.
            Ok(Command::new("setsid")
                .args(["--ctty", "--wait", "bash", "--login"])
                .current_dir("/root")
                .stdin(tty.try_clone()?)
                .stdout(tty.try_clone()?)
                .stderr(tty)
                .status()?)
        };
        if let Err(error) = shell() {
            eprintln!("qiao-agent: no shell on {SHELL_TTY}: {error:#}");
            return;
        }
    }
}
