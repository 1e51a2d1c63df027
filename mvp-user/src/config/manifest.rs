//! kube-apiserver's static pod manifest: its flags, with paths as the node has them (design 4.5).

use std::{io::Read as _, path::Path};

use serde::Deserialize;

/// Where kubeadm, and those who follow it, put the manifest.
pub(crate) const DEFAULT_MANIFEST: &str = "/etc/kubernetes/manifests/kube-apiserver.yaml";
/// Real ones have 5 KiB.
const LARGEST: u64 = 1 << 20;

/// What the manifest says.
#[derive(Debug, Default)]
pub(crate) struct Manifest {
    flags: Vec<(String, String)>,
    mounts: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct Pod {
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    containers: Vec<Container>,
    #[serde(default)]
    volumes: Vec<Volume>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    name: String,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    volume_mounts: Vec<Mount>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    name: String,
    mount_path: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: String,
    host_path: Option<HostPath>,
}

#[derive(Deserialize)]
struct HostPath {
    path: String,
}

impl Manifest {
    /// Reads the file.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let mut text = String::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(LARGEST).read_to_string(&mut text))
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Self::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Understands the text.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let pod: Pod = serde_yaml_ng::from_str(text)
            .map_err(|error| format!("not the manifest of a pod: {error}"))?;
        let container = pod
            .spec
            .containers
            .iter()
            .find(|container| container.runs_kube_apiserver())
            .ok_or("no container in it runs kube-apiserver")?;
        let mounts = container
            .volume_mounts
            .iter()
            .filter_map(|mount| {
                let volume = pod.spec.volumes.iter().find(|it| it.name == mount.name)?;
                let host = volume.host_path.as_ref()?;
                Some((mount.mount_path.clone(), host.path.clone()))
            })
            .collect();
        let words: Vec<&String> = container.command.iter().chain(&container.args).collect();
        let mut flags = Vec::new();
        for (at, word) in words.iter().enumerate() {
            let Some(word) = word.strip_prefix("--") else {
                continue;
            };
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                // pflag also takes `--name value`.
                None => match words.get(at + 1) {
                    Some(next) if !next.starts_with('-') => (word, (*next).clone()),
                    _ => (word, "true".to_owned()),
                },
            };
            flags.push((name.to_owned(), value));
        }
        Ok(Self { flags, mounts })
    }

    /// Whether there was none.
    pub(crate) const fn is_empty(&self) -> bool {
        self.flags.is_empty()
    }

    /// The values of a flag, in order.
    pub(crate) fn get(&self, name: &str) -> Vec<String> {
        self.flags
            .iter()
            .filter(|(known, _)| known == name)
            .map(|(_, value)| value.clone())
            .collect()
    }

    /// A path of the container, as the node has it: through the longest host path mount that leads to it.
    pub(crate) fn on_host(&self, path: &str) -> String {
        self.mounts
            .iter()
            .filter_map(|(inside, host)| {
                let rest = path.strip_prefix(inside.as_str())?;
                (rest.is_empty() || rest.starts_with('/') || inside.ends_with('/'))
                    .then(|| (inside.len(), format!("{host}{rest}")))
            })
            .max()
            .map_or_else(|| path.to_owned(), |(_, host)| host)
    }
}

impl Container {
    fn runs_kube_apiserver(&self) -> bool {
        self.name == "kube-apiserver"
            || self
                .command
                .iter()
                .chain(&self.args)
                .any(|word| word == "kube-apiserver" || word.ends_with("/kube-apiserver"))
    }
}
