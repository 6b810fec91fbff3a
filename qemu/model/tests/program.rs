// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The program: says when it is ready and ends on SIGTERM without a trace.

use qiao_model::coverage::Tables;
use rustix::process::{kill_process, Pid, Signal};
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

#[test]
fn it_listens_when_it_says_so_and_ends_clean() {
    let dir = tempfile::Builder::new().prefix("q").tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let config = format!(
        "control = {:?}\ncapture.dir = {:?}\ncoverage = {:?}\n[[hca]]\nname = \"a\"\nsocket = {:?}\n",
        path("control"),
        path("pcap"),
        path("coverage"),
        path("a"),
    );
    std::fs::write(path("model.toml"), config).unwrap();
    let mut model = Command::new(env!("CARGO_BIN_EXE_qiao-model"))
        .arg("--config")
        .arg(path("model.toml"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(model.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    // One client that stays, one that has gone.
    let stays = UnixStream::connect(path("a")).unwrap();
    drop(UnixStream::connect(path("control")).unwrap());
    let pid = Pid::from_child(&model);
    kill_process(pid, Signal::TERM).unwrap();
    assert!(model.wait().unwrap().success());
    drop(stays);
    for socket in ["a", "control"] {
        assert!(!path(socket).exists(), "{socket} is left behind");
    }
    assert!(path("pcap/a-1.pcap").exists());
    let text = std::fs::read(path("coverage")).unwrap();
    let used: Tables = serde_json::from_slice(&text).unwrap();
    assert_eq!(used["registers read"]["MAGIC"], 0);
}

#[test]
fn a_wrong_configuration_is_one_message_and_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.toml");
    std::fs::write(&file, "[[link]]\nends = [\"a:1\", \"b:1\"]\n").unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_qiao-model"))
        .arg("--config")
        .arg(&file)
        .output()
        .unwrap();
    assert!(!run.status.success());
    assert!(String::from_utf8_lossy(&run.stderr).contains("no HCA and no switch is named `a`"));
}
