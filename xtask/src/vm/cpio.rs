//! Writes the "newc" archives that Linux takes as an initramfs
//! (<https://docs.kernel.org/driver-api/early-userspace/buffer-format.html>). Not for reading them.

use std::collections::BTreeSet;

/// An archive being written.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    directories: BTreeSet<String>,
}

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const DEVICE: u32 = 0o020_600;

impl Archive {
    /// An executable file, with the directories above it.
    pub(super) fn file(&mut self, path: &str, content: &[u8]) {
        self.parents(path);
        self.entry(path, PROGRAM, (0, 0), content);
    }

    /// An empty directory, with those above it.
    pub(super) fn directory(&mut self, path: &str) {
        self.parents(&format!("{path}/"));
    }

    /// A character device.
    pub(super) fn device(&mut self, path: &str, major: u32, minor: u32) {
        self.parents(path);
        self.entry(path, DEVICE, (major, minor), &[]);
    }

    /// The whole archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        let slashes = path.match_indices('/').map(|(at, _)| at);
        for at in slashes.filter(|at| *at > 0) {
            let parent = path.get(..at).unwrap_or_default();
            if self.directories.insert(parent.to_owned()) {
                self.entry(parent, DIRECTORY, (0, 0), &[]);
            }
        }
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        let name = path.trim_start_matches('/');
        self.entries += 1;
        let size = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            size(content.len()),
            0,
            0,
            device.0,
            device.1,
            size(name.len() + 1),
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_aligned_and_has_its_directories_before_it() {
        let mut archive = Archive::default();
        archive.file("/a/b/c", b"12345");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8(bytes).unwrap();
        let names: Vec<&str> = text
            .split("070701")
            .skip(1)
            .map(|entry| entry[104..].split('\0').next().unwrap())
            .collect();
        assert_eq!(names, ["a", "a/b", "a/b/c", "TRAILER!!!"]);
        let file = text.split("070701").nth(3).unwrap();
        assert_eq!(&file[8..16], "000081ed");
        assert_eq!(&file[48..56], "00000005");
        // 6 + 104 + "a/b/c\0" = 116 is aligned already.
        assert_eq!(&file[110..118], "12345\0\0\0");
    }
}
