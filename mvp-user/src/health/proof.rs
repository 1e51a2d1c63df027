//! The proof of identity forwarding (design 4.3): does this server take the word of our front-proxy certificate?
//!
//! A `SelfSubjectReview` is asked for as the marker user; the answer's echo decides. Judging is pure ([`judge`]);
//! [`prove`] only asks in the versions that exist.

use http::StatusCode;
use serde::Deserialize;

use super::link::{Link, LinkError, PROBE_GROUP, PROBE_USER};

/// Whom an answer shows us as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The marker user: proven.
    Echoed,
    /// Nobody, or somebody else: refused.
    Refused,
    /// The server has no such API: ask in another way.
    Absent,
    /// It says nothing about who we are (429, 5xx, ...): the last result stays.
    Unknown,
}

#[derive(Deserialize)]
struct Review {
    status: ReviewStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewStatus {
    user_info: UserInfo,
}

#[derive(Deserialize)]
struct UserInfo {
    #[serde(default)]
    username: String,
    #[serde(default)]
    groups: Vec<String>,
}

#[derive(Deserialize)]
struct Forbidden {
    kind: String,
    message: String,
}

/// What an answer to a `SelfSubjectReview`, or to a request that is forbidden to the marker user, proves.
pub fn judge(status: StatusCode, body: &[u8]) -> Verdict {
    match status {
        StatusCode::OK | StatusCode::CREATED => match serde_json::from_slice::<Review>(body) {
            Ok(review) => {
                let user = review.status.user_info;
                if user.username == PROBE_USER && user.groups.iter().any(|g| g == PROBE_GROUP) {
                    Verdict::Echoed
                } else {
                    Verdict::Refused
                }
            }
            Err(_not_a_review) => Verdict::Unknown,
        },
        StatusCode::UNAUTHORIZED => Verdict::Refused,
        // `User "x" cannot ...` (`k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go`).
        StatusCode::FORBIDDEN => match serde_json::from_slice::<Forbidden>(body) {
            Ok(Forbidden { kind, message }) if kind == "Status" => {
                match message
                    .split_once("User \"")
                    .and_then(|(_, rest)| rest.split_once('"'))
                {
                    Some((PROBE_USER, _)) => Verdict::Echoed,
                    Some(_somebody_else) => Verdict::Refused,
                    None => Verdict::Unknown,
                }
            }
            _ => Verdict::Unknown,
        },
        StatusCode::NOT_FOUND => Verdict::Absent,
        _ => Verdict::Unknown,
    }
}

/// Asks the server behind `link` who we are.
pub(crate) async fn prove(link: &mut Link) -> Result<Verdict, LinkError> {
    for version in ["v1", "v1beta1"] {
        let path = format!("/apis/authentication.k8s.io/{version}/selfsubjectreviews");
        let review = serde_json::json!({
            "apiVersion": format!("authentication.k8s.io/{version}"),
            "kind": "SelfSubjectReview",
        });
        let answer = link.post_json(&path, review.to_string()).await?;
        match judge(answer.status, &answer.body) {
            Verdict::Absent => {}
            // A webhook that is asked about everything denies reviews too (its own words, 403), or fails (500).
            Verdict::Unknown
                if matches!(
                    answer.status,
                    StatusCode::FORBIDDEN | StatusCode::INTERNAL_SERVER_ERROR
                ) => {}
            verdict => return Ok(verdict),
        }
    }
    // Before Kubernetes 1.27 there is no SelfSubjectReview, and no webhook is asked about reading: a path that nobody but
    // cluster-admin may read is answered with a 403 that names the user.
    let answer = link.get("/mvp-probe", "application/json", None).await?;
    Ok(match judge(answer.status, &answer.body) {
        Verdict::Absent => Verdict::Unknown,
        verdict => verdict,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(user: &str, groups: &[&str]) -> Vec<u8> {
        serde_json::to_vec(&serde_json::json!({
            "kind": "SelfSubjectReview",
            "status": { "userInfo": { "username": user, "groups": groups } },
        }))
        .unwrap()
    }

    fn forbidden(user: &str) -> Vec<u8> {
        serde_json::to_vec(&serde_json::json!({
            "kind": "Status",
            "message": format!("selfsubjectreviews.authentication.k8s.io is forbidden: User \"{user}\" cannot create resource"),
        }))
        .unwrap()
    }

    #[test]
    fn only_the_echo_of_the_marker_user_and_group_proves() {
        let ours = review(PROBE_USER, &[PROBE_GROUP, "system:authenticated"]);
        assert_eq!(judge(StatusCode::CREATED, &ours), Verdict::Echoed);
        let no_group = review(PROBE_USER, &["system:authenticated"]);
        assert_eq!(judge(StatusCode::CREATED, &no_group), Verdict::Refused);
        let other = review("system:anonymous", &["system:unauthenticated"]);
        assert_eq!(judge(StatusCode::CREATED, &other), Verdict::Refused);
        assert_eq!(judge(StatusCode::UNAUTHORIZED, b""), Verdict::Refused);
    }

    #[test]
    fn a_403_proves_by_the_user_that_it_names() {
        let status = StatusCode::FORBIDDEN;
        assert_eq!(judge(status, &forbidden(PROBE_USER)), Verdict::Echoed);
        assert_eq!(
            judge(status, &forbidden("system:anonymous")),
            Verdict::Refused
        );
        assert_eq!(judge(status, &forbidden("mvp:probe-not")), Verdict::Refused);
        assert_eq!(judge(status, b"<html>mvp:probe</html>"), Verdict::Unknown);
    }

    #[test]
    fn what_says_nothing_about_us_decides_nothing() {
        for status in [429, 500, 502, 503, 504, 302] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(judge(status, b"{}"), Verdict::Unknown, "{status}");
        }
        assert_eq!(judge(StatusCode::OK, b"not json"), Verdict::Unknown);
    }
}
