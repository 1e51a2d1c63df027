//! The files around the certificates: the directory kubeadm would have made, kubeconfigs, a static pod manifest.

use std::{net::IpAddr, path::Path};

use anyhow::Context as _;
use base64::Engine as _;

use super::{ClusterPki, Issued, Leaf, Subject};

/// How a kubeconfig's user proves who it is.
#[derive(Debug, Clone, Copy)]
pub enum KubeconfigUser<'a> {
    /// A client certificate.
    Certificate(&'a Issued),
    /// A bearer token.
    Token(&'a str),
    /// Nothing: anonymous.
    Anonymous,
}

/// A kubeconfig with everything inlined, for `server` (`https://HOST:PORT`) under the authority `ca_pem`.
pub fn kubeconfig(server: &str, ca_pem: &str, user: KubeconfigUser<'_>) -> String {
    let inline = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let user = match user {
        KubeconfigUser::Certificate(issued) => format!(
            "    client-certificate-data: {}\n    client-key-data: {}\n",
            inline(&issued.cert_pem()),
            inline(&issued.key_pem())
        ),
        KubeconfigUser::Token(token) => format!("    token: {token}\n"),
        KubeconfigUser::Anonymous => "    {}\n".to_owned(),
    };
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: stand-in\nclusters:\n- name: stand-in\n  cluster:\n    \
         server: {server}\n    certificate-authority-data: {ca}\ncontexts:\n- name: stand-in\n  context:\n    \
         cluster: stand-in\n    user: user\nusers:\n- name: user\n  user:\n{user}",
        ca = inline(ca_pem)
    )
}

/// What a kubeadm static pod manifest of kube-apiserver says about its flags.
#[derive(Debug, Clone)]
pub struct StaticPod {
    /// The image's tag, as `v1.34.2`.
    pub version: String,
    /// Flags in order, without the leading dashes: (`secure-port`, `6443`).
    pub flags: Vec<(String, String)>,
}

impl StaticPod {
    /// The flags kubeadm writes for a server whose files lie in `pki`.
    pub fn kubeadm(version: &str, advertise: IpAddr, port: u16, pki: &Path) -> Self {
        let file = |name: &str| pki.join(name).display().to_string();
        let flag = |name: &str, value: String| (name.to_owned(), value);
        Self {
            version: version.to_owned(),
            flags: vec![
                flag("advertise-address", advertise.to_string()),
                flag("allow-privileged", "true".to_owned()),
                flag("authorization-mode", "Node,RBAC".to_owned()),
                flag("client-ca-file", file("ca.crt")),
                flag("proxy-client-cert-file", file("front-proxy-client.crt")),
                flag("proxy-client-key-file", file("front-proxy-client.key")),
                flag(
                    "requestheader-allowed-names",
                    "front-proxy-client".to_owned(),
                ),
                flag("requestheader-client-ca-file", file("front-proxy-ca.crt")),
                flag(
                    "requestheader-extra-headers-prefix",
                    "X-Remote-Extra-".to_owned(),
                ),
                flag("requestheader-group-headers", "X-Remote-Group".to_owned()),
                flag("requestheader-username-headers", "X-Remote-User".to_owned()),
                flag("secure-port", port.to_string()),
                flag("tls-cert-file", file("apiserver.crt")),
                flag("tls-private-key-file", file("apiserver.key")),
            ],
        }
    }

    /// The manifest as kubeadm writes it to `/etc/kubernetes/manifests/kube-apiserver.yaml` (what a reader of flags needs).
    pub fn yaml(&self) -> String {
        let lines: Vec<String> = self
            .flags
            .iter()
            .map(|(name, value)| format!("    - --{name}={value}\n"))
            .collect();
        let command = lines.concat();
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  labels:\n    component: kube-apiserver\n    tier: control-plane\n  \
             name: kube-apiserver\n  namespace: kube-system\nspec:\n  containers:\n  - command:\n    - kube-apiserver\n\
             {command}    image: registry.k8s.io/kube-apiserver:{version}\n    name: kube-apiserver\n  hostNetwork: true\n  \
             priorityClassName: system-node-critical\n",
            version = self.version
        )
    }
}

impl ClusterPki {
    /// Writes `ca`, `front-proxy-ca`, `apiserver`, `front-proxy-client`, `admin` (`.crt` and `.key` each) into `directory`,
    /// with kubeadm's file names. The serving certificate is for `addresses`.
    pub fn write(&self, directory: &Path, addresses: &[IpAddr]) -> anyhow::Result<()> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("{} cannot be made", directory.display()))?;
        let admin = self.client("kubernetes-admin", &["system:masters"])?;
        let serving = self.serving(addresses)?;
        let front_proxy = self.front_proxy_client()?;
        let sa = self
            .ca
            .issue(&Leaf::client(Subject::new().cn("service-account-signer")))?;
        for (name, issued) in [
            ("ca", &self.ca.certificate),
            ("front-proxy-ca", &self.front_proxy_ca.certificate),
            ("apiserver", &serving),
            ("front-proxy-client", &front_proxy),
            ("admin", &admin),
            ("sa", &sa),
        ] {
            issued.write(directory, name)?;
        }
        Ok(())
    }
}

impl Issued {
    /// Writes `NAME.crt` and `NAME.key` into `directory`.
    pub fn write(&self, directory: &Path, name: &str) -> anyhow::Result<()> {
        for (extension, text) in [("crt", self.cert_pem()), ("key", self.key_pem())] {
            let path = directory.join(format!("{name}.{extension}"));
            std::fs::write(&path, text)
                .with_context(|| format!("{} cannot be written", path.display()))?;
        }
        Ok(())
    }
}
