//! One flag: what was said about it and where, what value that is, and what is wrong with it. Not for what it means
//! (`resolve`) nor for how a value is written (`values`).

use std::path::PathBuf;

use super::{FILES, Reader};
use crate::config::{
    flags::{FLAGS, Origin},
    published,
    told::{ConfigError, Setting},
    values,
};

/// Flags that are taken from the manifest beside those of [`FILES`].
const INHERITED: [&str; 10] = [
    "secure-port",
    "advertise-address",
    "tls-min-version",
    "tls-cipher-suites",
    "requestheader-allowed-names",
    "requestheader-username-headers",
    "requestheader-uid-headers",
    "requestheader-group-headers",
    "requestheader-extra-headers-prefix",
    "bind-address",
];

impl Reader<'_> {
    /// What was said about a flag: by flag or environment, else by the manifest, else its default.
    pub(super) fn given(&self, name: &'static str) -> (Vec<String>, Origin) {
        if let Some((values, origin)) = self.flags.get(name) {
            return (values.to_vec(), origin);
        }
        let flag = FLAGS.iter().find(|flag| flag.name == name);
        if FILES.contains(&name) || INHERITED.contains(&name) {
            let mut values = self.manifest.get(name);
            if !values.is_empty() {
                if FILES.contains(&name) {
                    for value in &mut values {
                        *value = self.on_host(name, value);
                    }
                }
                let cut = flag.map(|flag| flag.cut(&values, &Origin::Manifest));
                return (cut.unwrap_or(values), Origin::Manifest);
            }
            let values = self.published.as_ref().map(|it| it.get(name));
            if let Some(values) = values.filter(|values| !values.is_empty()) {
                return (values, Origin::ConfigMap);
            }
        }
        let default = flag.map(|flag| flag.default).filter(|it| !it.is_empty());
        let values = default.map(ToOwned::to_owned);
        (values.into_iter().collect(), Origin::Default)
    }

    fn on_host(&self, name: &str, value: &str) -> String {
        if name != "tls-sni-cert-key" {
            return self.manifest.on_host(value);
        }
        let (files, names) = match value.split_once(':') {
            Some((files, names)) => (files, Some(names)),
            None => (value, None),
        };
        let files: Vec<_> = files
            .split(',')
            .map(|file| self.manifest.on_host(file.trim()))
            .collect();
        match names {
            Some(names) => format!("{}:{names}", files.join(",")),
            None => files.join(","),
        }
    }

    /// Every value parsed; `None` if one is wrong.
    pub(super) fn parse<T>(
        &mut self,
        name: &'static str,
        given: &[String],
        origin: &Origin,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let mut parsed = Vec::with_capacity(given.len());
        for text in given {
            match parse(text) {
                Ok(value) => parsed.push(value),
                Err(message) => self.fail(name, origin.clone(), message),
            }
        }
        (parsed.len() == given.len()).then_some(parsed)
    }

    pub(super) fn many<T>(
        &mut self,
        name: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let (given, origin) = self.given(name);
        self.settle(name, given.join(","), origin.clone());
        self.parse(name, &given, &origin, parse)
    }

    /// At most one; empty is none. kube-apiserver takes the last of several, and so does this.
    #[expect(
        clippy::option_option,
        reason = "wrong, not given, given: the outer one means wrong everywhere here"
    )]
    pub(super) fn maybe<T>(
        &mut self,
        name: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Option<T>> {
        let (mut given, origin) = self.given(name);
        let last = given.pop().filter(|text| !text.is_empty());
        self.settle(name, last.clone().unwrap_or_default(), origin.clone());
        match last {
            None => Some(None),
            Some(text) => self
                .parse(name, &[text], &origin, parse)
                .map(|mut values| values.pop()),
        }
    }

    pub(super) fn one<T>(
        &mut self,
        name: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let (mut given, origin) = self.given(name);
        let text = given.pop().unwrap_or_default();
        self.settle(name, text.clone(), origin.clone());
        self.parse(name, &[text], &origin, parse)?.pop()
    }

    pub(super) fn required(&mut self, name: &'static str) -> Option<PathBuf> {
        let path = self.maybe(name, values::path)?;
        if path.is_none() {
            let message = "is needed (or --kubeadm-manifest, which names it)";
            self.fail(name, Origin::Default, message.to_owned());
        }
        path
    }

    pub(super) fn fail(&mut self, flag: &'static str, origin: Origin, message: String) {
        self.errors.push(ConfigError {
            flag,
            origin,
            message,
        });
    }

    pub(super) fn settle(&mut self, name: &'static str, mut value: String, origin: Origin) {
        if FILES.contains(&name) && value.starts_with(published::PATHS) {
            // The path is one of this process and tells nobody anything.
            published::NAME.clone_into(&mut value);
        }
        self.settings.push(Setting {
            name,
            value,
            origin,
        });
    }
}
