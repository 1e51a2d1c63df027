//! Who may do what: a few rules in place of RBAC. Members of `system:masters` may do everything; everybody may read health and
//! version; authenticated users may read discovery and ask about themselves; the rest is [`Rule`]s.

use serde::{Deserialize, Serialize};

use super::{
    authn::User,
    info::Info,
    status::{About, Status},
};

/// Allows a user or group some verbs on some resources or paths. `*` matches everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// User name or group.
    pub subject: String,
    /// Verbs.
    pub verbs: Vec<String>,
    /// `resource.group`, `resource/subresource.group`, `*`; or paths that begin with `/` (`/metrics`, `/logs/*`).
    pub on: Vec<String>,
}

impl Rule {
    /// Everything for a user or group.
    pub fn everything(subject: &str) -> Self {
        Self::new(subject, &["*"], &["*", "/*"])
    }

    /// A rule.
    pub fn new(subject: &str, verbs: &[&str], on: &[&str]) -> Self {
        let owned = |list: &[&str]| list.iter().map(|entry| (*entry).to_owned()).collect();
        Self {
            subject: subject.to_owned(),
            verbs: owned(verbs),
            on: owned(on),
        }
    }

    fn allows(&self, user: &User, info: &Info) -> bool {
        (self.subject == user.name || user.groups.contains(&self.subject))
            && self
                .verbs
                .iter()
                .any(|verb| verb == "*" || *verb == info.verb)
            && self.on.iter().any(|on| covers(on, info))
    }
}

fn covers(on: &str, info: &Info) -> bool {
    if !info.resource_request {
        return match on.strip_suffix('*') {
            Some(prefix) => prefix.starts_with('/') && info.path.starts_with(prefix),
            None => on == info.path,
        };
    }
    let resource = if info.subresource.is_empty() {
        info.resource.clone()
    } else {
        format!("{}/{}", info.resource, info.subresource)
    };
    on == "*"
        || on
            == if info.group.is_empty() {
                resource
            } else {
                format!("{resource}.{}", info.group)
            }
}

/// Allowed, or the 403 that kube-apiserver would give.
pub(crate) fn authorize(rules: &[Rule], user: &User, info: &Info) -> Result<(), Status> {
    let verb = info.verb.as_str();
    let path = info.path.as_str();
    let health = ["/healthz", "/livez", "/readyz", "/version"];
    let discovery = ["/api", "/apis", "/openapi"];
    let under = |roots: &[&str]| {
        roots.iter().any(|root| {
            path.strip_prefix(root)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    };
    let authenticated = user
        .groups
        .iter()
        .any(|group| group == "system:authenticated");
    let reviews = [
        "selfsubjectreviews",
        "selfsubjectaccessreviews",
        "selfsubjectrulesreviews",
    ];
    let allowed = user.groups.iter().any(|group| group == "system:masters")
        || (!info.resource_request && verb == "get" && under(&health))
        || (authenticated && !info.resource_request && verb == "get" && under(&discovery))
        || (authenticated && verb == "create" && reviews.contains(&info.resource.as_str()))
        || rules.iter().any(|rule| rule.allows(user, info));
    if allowed {
        Ok(())
    } else {
        Err(refusal(user, info))
    }
}

/// The words of `responsewriters.Forbidden`.
pub(crate) fn refusal(user: &User, info: &Info) -> Status {
    if !info.resource_request {
        return Status::forbidden_path(&user.name, &info.verb, &info.path);
    }
    let resource = if info.subresource.is_empty() {
        info.resource.clone()
    } else {
        format!("{}/{}", info.resource, info.subresource)
    };
    let place = if info.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {:?}", info.namespace)
    };
    let why = format!(
        "User {:?} cannot {} resource {resource:?} in API group {:?} {place}",
        user.name, info.verb, info.group
    );
    Status::forbidden(
        About {
            group: &info.group,
            resource: &info.resource,
            name: &info.name,
        },
        &why,
    )
}
