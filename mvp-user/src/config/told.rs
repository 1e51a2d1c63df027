//! What is told about the configuration: one line of `--print-config`, and one error. Not for reading it (`resolve`).

use std::fmt;

use serde::Serialize;

use super::{
    flags::{FLAGS, Origin},
    published,
};

/// One thing that is wrong with the configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    pub(super) flag: &'static str,
    pub(super) origin: Origin,
    pub(super) message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.origin {
            Origin::Environment => {
                let env = FLAGS.iter().find(|flag| flag.name == self.flag);
                write!(f, "{}: ", env.map_or(self.flag, |flag| flag.env))?;
            }
            Origin::Manifest => write!(f, "--{} of kube-apiserver's manifest: ", self.flag)?,
            Origin::ConfigMap => write!(f, "{} of ConfigMap {}: ", self.flag, published::NAME)?,
            Origin::Flag | Origin::Default => write!(f, "--{}: ", self.flag)?,
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

/// One line of `--print-config`.
#[derive(Clone, Debug, Serialize)]
pub struct Setting {
    /// Flag.
    pub name: &'static str,
    /// Value as text; lists with commas.
    pub value: String,
    /// Where it is from.
    #[serde(serialize_with = "as_text")]
    pub origin: Origin,
}

fn as_text<S: serde::Serializer>(origin: &Origin, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(origin)
}
