//! Whether kube-apiserver's manifest still says what this process was started with, which reads it at its start only.

use super::{
    flags::{Flags, Origin},
    resolve::resolve,
    told::Setting,
};

/// The flags of which the manifest says something else than when `settings` were made of `flags`; none where it cannot be
/// read now: it is being written, or kube-apiserver is taken from the node.
pub fn changed(flags: &Flags, settings: &[Setting]) -> Vec<&'static str> {
    let Ok(now) = resolve(flags, |_| Vec::new()) else {
        return Vec::new();
    };
    let is_said_there = |it: &Setting| it.origin == Origin::Manifest;
    let differs = |now: &&Setting| {
        settings.iter().any(|then| {
            let one = then.name == now.name && (is_said_there(then) || is_said_there(now));
            one && then.value != now.value
        })
    };
    now.settings
        .iter()
        .filter(differs)
        .map(|it| it.name)
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    #[test]
    fn what_the_manifest_says_anew_is_told_by_flag() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kube-apiserver.yaml");
        let write = |more: &str| {
            let needed = "--client-ca-file=/a, --tls-cert-file=/b, --tls-private-key-file=/c";
            let text = format!(
                "spec: {{containers: [{{name: kube-apiserver, command: [kube-apiserver, {needed}, {more}]}}]}}"
            );
            std::fs::write(&path, text).unwrap();
        };
        write("--secure-port=6443");
        let manifest = format!("--kubeadm-manifest={}", path.display());
        let matches = Flags::augment_args(Command::new("mvp"))
            .try_get_matches_from(["mvp", manifest.as_str()])
            .unwrap();
        let flags = Flags::from_arg_matches(&matches).unwrap();
        let settings = resolve(&flags, |_| Vec::new()).unwrap().settings;
        write("--secure-port=6443, --v=4");
        assert!(changed(&flags, &settings).is_empty());
        write("--secure-port=8443, --requestheader-group-headers=X-Group");
        let both = ["secure-port", "requestheader-group-headers"];
        assert_eq!(changed(&flags, &settings), both);
        std::fs::write(&path, "spec:").unwrap();
        assert!(changed(&flags, &settings).is_empty());
    }
}
