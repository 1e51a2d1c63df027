//! Finds kernel modules in an unpacked kernel package, each behind those it needs. The package has no `modules.dep`;
//! a module itself says what it depends on (`modinfo`'s `depends`). Not for loading them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

/// Files of these modules and of all they need, in the order in which they load.
pub(super) fn in_order(kernel: &Path, wanted: &[&str]) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    collect(&kernel.join("lib/modules"), &mut all)?;
    ensure!(!all.is_empty(), "{} has no modules", kernel.display());
    let mut order = Vec::new();
    for name in wanted {
        add(name, &all, &mut order)?;
    }
    Ok(order)
}

fn collect(directory: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            collect(&path, into)?;
        } else if path.extension().is_some_and(|it| it == "ko") {
            into.push(path);
        }
    }
    Ok(())
}

fn add(name: &str, all: &[PathBuf], order: &mut Vec<PathBuf>) -> Result<()> {
    // File names may have dashes where the module's name has underscores.
    let path = all
        .iter()
        .find(|path| {
            let stem = path.file_stem().and_then(|it| it.to_str());
            stem.is_some_and(|stem| stem.replace('-', "_") == name)
        })
        .with_context(|| format!("the kernel package has no module {name} (uncompressed)"))?;
    if order.contains(path) {
        return Ok(());
    }
    let content = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    for needed in depends(&content) {
        add(&needed.replace('-', "_"), all, order)?;
    }
    order.push(path.clone());
    Ok(())
}

/// The `depends=` of a module's `.modinfo` section: names with commas between.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|it| it == KEY) else {
        return Vec::new();
    };
    let value = module.get(at + KEY.len()..).unwrap_or_default();
    let value = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(value)
        .split(',')
        .filter(|name| !name.is_empty())
        .map(String::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_load_behind_what_they_need() {
        let directory = tempfile::tempdir().unwrap();
        let modules = directory.path().join("lib/modules/6.1/net");
        fs::create_dir_all(&modules).unwrap();
        for (name, needs) in [("a.ko", "b-1,c"), ("b-1.ko", "c"), ("c.ko", "")] {
            let content = format!("ELF\0license=GPL\0depends={needs}\0name=x\0");
            fs::write(modules.join(name), content).unwrap();
        }
        let order = in_order(directory.path(), &["a", "c"]).unwrap();
        let names: Vec<_> = order.iter().map(|it| it.file_name().unwrap()).collect();
        assert_eq!(names, ["c.ko", "b-1.ko", "a.ko"]);
        in_order(directory.path(), &["d"]).unwrap_err();
    }
}
