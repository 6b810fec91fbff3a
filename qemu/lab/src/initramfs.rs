// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The initramfs of a guest: the agent as `/init`, the boot modules, and the payload, which is what a build changes.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use cpio::newc::{trailer, Builder, ModeFileType};
use ignore::WalkBuilder;
use qiao_agent::{MODULES_DIR, PAYLOAD_DIR};

use crate::kernel::{guest_modules, GuestKernel};

const EXECUTABLE: u32 = 0o755;
const DATA: u32 = 0o644;

/// A file of the initramfs.
#[derive(Clone, Debug)]
struct Entry {
    path: PathBuf,
    mode: u32,
    content: Vec<u8>,
}

/// What goes into an initramfs, in the order of its adding.
#[derive(Clone, Debug, Default)]
pub struct Initramfs {
    files: Vec<Entry>,
}

impl Initramfs {
    /// The part that every guest with a kernel needs: process 1 and modules.
    pub fn new(agent: &Path, kernel: &GuestKernel) -> Result<Self> {
        let mut this = Self::default();
        this.add("init".into(), EXECUTABLE, read(agent)?);
        if let Some(dir) = &kernel.boot_modules {
            for file in files(dir)? {
                let path = Path::new(MODULES_DIR).join(&file);
                this.add(path, DATA, read(&dir.join(&file))?);
            }
        }
        if let Some(dir) = &kernel.installed {
            for file in files(dir)? {
                let path = guest_modules(&kernel.release).join(&file);
                this.add_guest_file(&path, &dir.join(&file))?;
            }
        }
        this.add_payload(
            Path::new("usr/local/sbin/qiao-agent"),
            EXECUTABLE,
            read(agent)?,
        );
        Ok(this)
    }

    /// Adds the file `host` to the guest's root as `guest`, a path relative to that root.
    pub fn add_guest_file(&mut self, guest: &Path, host: &Path) -> Result<()> {
        self.add_payload(guest, DATA, read(host)?);
        Ok(())
    }

    /// Adds the program `host` to the guest's root as `guest`, a path relative to that root.
    pub fn add_guest_program(&mut self, guest: &Path, host: &Path) -> Result<()> {
        self.add_payload(guest, EXECUTABLE, read(host)?);
        Ok(())
    }

    /// Adds a text to the guest's root as the file `guest`, a path relative to that root.
    pub fn add_guest_text(&mut self, guest: &Path, text: &str) {
        self.add_payload(guest, DATA, text.into());
    }

    fn add_payload(&mut self, guest: &Path, mode: u32, content: Vec<u8>) {
        self.add(Path::new(PAYLOAD_DIR).join(guest), mode, content);
    }

    fn add(&mut self, path: PathBuf, mode: u32, content: Vec<u8>) {
        self.files.push(Entry {
            path,
            mode,
            content,
        });
    }

    /// Writes the archive in the format `newc`, which the kernel reads. It is not compressed: unpacking would cost the emulated
    /// guest more than reading.
    pub fn write(&self, mut to: impl Write) -> Result<()> {
        let directories: BTreeSet<&Path> = self
            .files
            .iter()
            .flat_map(|file| file.path.ancestors().skip(1))
            .filter(|path| !path.as_os_str().is_empty())
            .collect();
        let mut inode = 0;
        // A BTreeSet yields parents before their children.
        for directory in directories {
            inode += 1;
            entry(directory, inode, EXECUTABLE, ModeFileType::Directory)?
                .write(&mut to, 0)
                .finish()?;
        }
        for file in &self.files {
            inode += 1;
            let size = u32::try_from(file.content.len()).context("a file beyond 4 GiB")?;
            let mut writer =
                entry(&file.path, inode, file.mode, ModeFileType::Regular)?.write(&mut to, size);
            writer.write_all(&file.content)?;
            writer.finish()?;
        }
        trailer(to)?;
        Ok(())
    }
}

fn entry(path: &Path, inode: u32, mode: u32, kind: ModeFileType) -> Result<Builder> {
    let name = path
        .to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(Builder::new(name)
        .ino(inode)
        .mode(mode)
        .set_mode_file_type(kind))
}

/// Every file below a folder, relative to it.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in WalkBuilder::new(dir).standard_filters(false).build() {
        let entry = entry?;
        if entry.file_type().is_some_and(|kind| kind.is_file()) {
            files.push(entry.path().strip_prefix(dir)?.to_owned());
        }
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cpio::newc::Reader;

    #[test]
    fn folders_come_before_what_is_in_them() {
        let mut archive = Initramfs::default();
        archive.add_guest_text(Path::new("etc/libibverbs.d/qiao.driver"), "driver qiao\n");
        let mut bytes = Vec::new();
        archive.write(&mut bytes).unwrap();

        let mut names = Vec::new();
        let mut rest: &[u8] = &bytes;
        loop {
            let reader = Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            names.push((reader.entry().name().to_owned(), reader.entry().file_size()));
            rest = reader.finish().unwrap();
        }
        let expected = [
            ("payload", 0),
            ("payload/etc", 0),
            ("payload/etc/libibverbs.d", 0),
            ("payload/etc/libibverbs.d/qiao.driver", 12),
        ];
        assert_eq!(names, expected.map(|(name, size)| (name.to_owned(), size)));
    }
}
