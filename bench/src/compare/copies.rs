//! Bytes that a proxy copies in memory, counted by valgrind (dhat, copy mode), which runs it: every `memcpy` and its kin with
//! the place that called it. Not what the kernel copies, not what a compiler copies in place, and not time.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use tokio::process::Command;

/// What the names of profiles begin with; the process id follows.
const PREFIX: &str = "copies.";
/// Places that copy less than this for each byte that is forwarded are not told.
const LEAST: f64 = 0.05;

/// The arguments of valgrind. Profiles go into `directory`.
fn arguments(directory: &Path) -> [String; 3] {
    [
        "--tool=dhat".to_owned(),
        "--mode=copy".to_owned(),
        format!("--dhat-out-file={}%p", directory.join(PREFIX).display()),
    ]
}

/// Whether there is a valgrind that counts copies; says what is missing.
pub(super) async fn look() -> Result<()> {
    let directory = tempfile::tempdir().context("a directory for a profile")?;
    let output = Command::new("valgrind")
        .args(arguments(directory.path()))
        .arg("true")
        .output()
        .await
        .context("copies are counted by valgrind, which is not installed (package valgrind)")?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        bail!(
            "this valgrind counts no copies (3.17 and newer do): {}",
            words.lines().last().unwrap_or_default()
        );
    }
    Ok(())
}

/// The same program with the same arguments, counted.
pub(super) fn counted(command: &Command, directory: &Path) -> Command {
    let command = command.as_std();
    let mut counted = Command::new("valgrind");
    counted
        .args(arguments(directory))
        .arg(command.get_program())
        .args(command.get_args())
        .kill_on_drop(true);
    counted
}

/// What was copied, and where.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Copies {
    bytes: u64,
    places: BTreeMap<String, u64>,
}

/// What dhat writes, as far as it is read.
#[derive(Deserialize)]
struct Profile {
    pps: Vec<Point>,
    ftbl: Vec<String>,
}

/// One place, with the stack that led to it.
#[derive(Deserialize)]
struct Point {
    #[serde(rename = "tb")]
    bytes: u64,
    #[serde(rename = "fs")]
    frames: Vec<usize>,
}

impl Copies {
    /// Of all processes whose profiles lie in `directory`; they are removed.
    pub(super) fn collect(directory: &Path) -> Result<Self> {
        let mut copies = Self::default();
        let mut found = false;
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(PREFIX) {
                copies.add(&fs::read_to_string(&path)?)?;
                fs::remove_file(&path)?;
                found = true;
            }
        }
        if !found {
            bail!("valgrind left no profile: the proxy did not end by itself");
        }
        Ok(copies)
    }

    fn add(&mut self, profile: &str) -> Result<()> {
        let profile: Profile =
            serde_json::from_str(profile).context("valgrind's profile is not as it was")?;
        for point in profile.pps {
            let frames = point.frames.iter();
            let frames = frames.filter_map(|at| Some(profile.ftbl.get(*at)?.as_str()));
            self.bytes += point.bytes;
            *self.places.entry(place(frames)).or_default() += point.bytes;
        }
        Ok(())
    }

    /// For each of the bytes that were forwarded, beyond what `idle` copied that forwarded none; and where, the most first.
    #[expect(clippy::cast_precision_loss, reason = "bytes far below 2^52")]
    pub(super) fn per_byte(&self, forwarded: u64, idle: &Self) -> (f64, Vec<(String, f64)>) {
        let share = |busy: u64, idle: u64| busy.saturating_sub(idle) as f64 / forwarded as f64;
        let mut places: Vec<_> = self
            .places
            .iter()
            .map(|(place, bytes)| {
                let idle = idle.places.get(place).copied().unwrap_or_default();
                (place.clone(), share(*bytes, idle))
            })
            .filter(|(_, share)| *share >= LEAST)
            .collect();
        places.sort_by(|one, other| other.1.total_cmp(&one.1));
        (share(self.bytes, idle.bytes), places)
    }
}

/// The innermost function of a stack that has a path and is not of Rust's own library: what was inlined into it has none. Where
/// nobody has one (programs in C), whoever called `memcpy`.
#[expect(
    single_use_lifetimes,
    reason = "an anonymous one is unstable in this place"
)]
fn place<'a>(frames: impl Iterator<Item = &'a str> + Clone) -> String {
    let mut names = frames.map(name);
    let found = names.clone().find(|name| {
        let own = name.split('<').next().unwrap_or_default().contains("::");
        (own || name.starts_with('<'))
            && !["core::", "alloc::", "std::"]
                .iter()
                .any(|library| name.contains(*library))
    });
    let found = found.or_else(|| names.nth(1));
    found.unwrap_or("unknown").to_owned()
}

/// `0x12D80E7: rustls::x::read (buffers.rs:208)` without its address and file.
fn name(frame: &str) -> &str {
    let name = frame.split_once(": ").map_or(frame, |(_, name)| name);
    name.rsplit_once(" (").map_or(name, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As valgrind 3.19 writes it, shortened.
    const PROFILE: &str = r#"{"dhatFileVersion":2,"mode":"copy","verb":"Copied","bklt":false,"bkacc":false,"tu":"instrs","te":9,"pid":7
,"pps":
 [{"tb":4000,"tbk":3
  ,"fs":[1,2,3,4]
  }
 ,{"tb":2000,"tbk":1
  ,"fs":[1,5,6]
  }
 ,{"tb":10,"tbk":1
  ,"fs":[1,7,8]
  }
 ]
,"ftbl":
 ["[root]"
 ,"0x484ADBD: memmove (in /usr/libexec/valgrind/vgpreload_dhat-amd64-linux.so)"
 ,"0xD4D895: copy_from_slice<u8> (mod.rs:4325)"
 ,"0xD4D895: <&[u8] as std::io::Read>::read (impls.rs:310)"
 ,"0x12D80E7: rustls::msgs::deframer::buffers::DeframerVecBuffer::read (buffers.rs:208)"
 ,"0xD3F3B9: take (wire.rs:274)"
 ,"0xD3F3B9: <mvp_user::wire::Wire as tokio::io::async_read::AsyncRead>::poll_read (wire.rs:325)"
 ,"0x2EDA4B: htx_add_data (in /usr/sbin/haproxy)"
 ,"0x1B9CCF: ??? (in /usr/sbin/haproxy)"
 ]
}
"#;

    #[test]
    fn copies_are_told_by_the_function_that_made_them() {
        let mut copies = Copies::default();
        copies.add(PROFILE).unwrap();
        copies.add(PROFILE).unwrap();
        let mut idle = Copies::default();
        idle.add(PROFILE).unwrap();
        let (each, places) = copies.per_byte(1000, &idle);
        assert!((each - 6.01).abs() < 1e-9, "{each}");
        let names: Vec<_> = places.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "rustls::msgs::deframer::buffers::DeframerVecBuffer::read",
                "<mvp_user::wire::Wire as tokio::io::async_read::AsyncRead>::poll_read",
            ]
        );
        assert!(copies.places.contains_key("htx_add_data"), "{copies:?}");
        assert!(Copies::default().add("{}").is_err());
    }

    #[test]
    fn profiles_are_collected_once() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Copies::collect(directory.path()).is_err());
        fs::write(directory.path().join("copies.7"), PROFILE).unwrap();
        fs::write(directory.path().join("mvp.sock"), "").unwrap();
        assert_eq!(Copies::collect(directory.path()).unwrap().bytes, 6010);
        assert!(Copies::collect(directory.path()).is_err());
    }

    #[test]
    fn a_program_keeps_its_arguments_under_valgrind() {
        let mut plain = Command::new("/usr/sbin/haproxy");
        plain.args(["-db", "-f", "x.cfg"]);
        let counted = counted(&plain, Path::new("/tmp/x"));
        let words: Vec<_> = counted.as_std().get_args().collect();
        assert_eq!(
            words,
            [
                "--tool=dhat",
                "--mode=copy",
                "--dhat-out-file=/tmp/x/copies.%p",
                "/usr/sbin/haproxy",
                "-db",
                "-f",
                "x.cfg"
            ]
        );
    }
}
