//! `mvp check`: asks a running mvp, or looks without one.

use super::client::{Client, ClientError};
use crate::{
    admin::{
        check::{self, node},
        wire::{Finding, Grade},
    },
    config::SameFlags,
};

/// Everything that can be found from here.
pub(super) fn all(SameFlags(flags): &SameFlags, offline: bool) -> Vec<Finding> {
    let mut findings = node::machine();
    if !offline {
        match running(flags.control_socket()) {
            Ok(more) => {
                findings.extend(more);
                return findings;
            }
            Err(absent) => findings.push(absent),
        }
    }
    findings.extend(check::alone(flags));
    findings
}

/// What a running mvp says, or that there is none.
fn running(socket: Option<&std::path::Path>) -> Result<Vec<Finding>, Finding> {
    let finding = |result, found: String, hint: &str| Finding {
        check: "mvp".to_owned(),
        result,
        found,
        hint: Some(hint.to_owned()),
    };
    let asked = Client::new(socket).and_then(|client| client.get("/v1/check"));
    let answered = asked.and_then(|text| {
        serde_json::from_slice::<Vec<Finding>>(&text).map_err(ClientError::Answer)
    });
    match answered {
        Ok(findings) => Ok(findings),
        Err(error @ ClientError::Nobody { .. }) => Err(finding(
            Grade::Warn,
            error.to_string(),
            "looked without it, by the flags given here; start it before the upgrade",
        )),
        Err(error) => Ok(vec![finding(
            Grade::Fail,
            error.to_string(),
            "look at its log; --offline looks without it",
        )]),
    }
}
