//! Kubernetes `Status` answers, with the words and field order of kube-apiserver.

use serde::Serialize;

/// `metav1.Status`.
#[derive(Debug, Clone, Serialize)]
#[expect(clippy::struct_field_names, reason = "the names are the API's")]
pub(crate) struct Status {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    metadata: Empty,
    pub(crate) status: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) details: Option<Box<Details>>,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) code: u16,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(code: &u16) -> bool {
    *code == 0
}

#[derive(Debug, Clone, Serialize)]
struct Empty {}

/// `metav1.StatusDetails`.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Details {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) uid: String,
    #[serde(rename = "retryAfterSeconds", skip_serializing_if = "no_retry")]
    pub(crate) retry_after_seconds: i32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn no_retry(seconds: &i32) -> bool {
    *seconds == 0
}

/// What an object error is about: resource and group as in `jobs.batch`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    pub(crate) group: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) name: &'a str,
}

impl About<'_> {
    fn resource_group(&self) -> String {
        if self.group.is_empty() {
            self.resource.to_owned()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }

    fn details(&self) -> Details {
        Details {
            name: self.name.to_owned(),
            group: self.group.to_owned(),
            kind: self.resource.to_owned(),
            ..Details::default()
        }
    }
}

impl Status {
    pub(crate) fn failure(
        code: u16,
        reason: &str,
        message: impl Into<String>,
        details: Option<Details>,
    ) -> Self {
        Self {
            kind: "Status",
            api_version: "v1",
            metadata: Empty {},
            status: "Failure",
            message: message.into(),
            reason: reason.to_owned(),
            details: details.map(Box::new),
            code,
        }
    }

    /// `Success` with details: the answer to a deletion.
    pub(crate) fn success(about: About<'_>, uid: &str) -> Self {
        let details = Details {
            uid: uid.to_owned(),
            ..about.details()
        };
        Self {
            status: "Success",
            ..Self::failure(0, "", "", Some(details))
        }
    }

    /// `Success` without details but with a code: the answer to an eviction.
    pub(crate) fn created() -> Self {
        Self {
            status: "Success",
            ..Self::failure(201, "", "", None)
        }
    }

    pub(crate) fn unauthorized() -> Self {
        Self::failure(401, "Unauthorized", "Unauthorized", None)
    }

    /// Kind (b) of 404: known group, unknown version, resource or subresource.
    pub(crate) fn unknown_resource() -> Self {
        let message = "the server could not find the requested resource";
        Self::failure(404, "NotFound", message, Some(Details::default()))
    }

    /// Kind (c) of 404: the object is not there.
    pub(crate) fn missing(about: About<'_>) -> Self {
        let message = format!("{} \"{}\" not found", about.resource_group(), about.name);
        Self::failure(404, "NotFound", message, Some(about.details()))
    }

    pub(crate) fn exists(about: About<'_>) -> Self {
        let message = format!(
            "{} \"{}\" already exists",
            about.resource_group(),
            about.name
        );
        Self::failure(409, "AlreadyExists", message, Some(about.details()))
    }

    pub(crate) fn conflict(about: About<'_>) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{}\": the object has been modified; please apply your changes to the latest \
             version and try again",
            about.resource_group(),
            about.name
        );
        Self::failure(409, "Conflict", message, Some(about.details()))
    }

    pub(crate) fn precondition(about: About<'_>, what: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{}\": Precondition failed: {what}",
            about.resource_group(),
            about.name
        );
        Self::failure(409, "Conflict", message, Some(about.details()))
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::failure(405, "MethodNotAllowed", message, Some(Details::default()))
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::failure(400, "BadRequest", message, None)
    }

    pub(crate) fn invalid(about: About<'_>, message: impl Into<String>) -> Self {
        Self::failure(422, "Invalid", message, Some(about.details()))
    }

    pub(crate) fn too_large() -> Self {
        let message = "Request entity too large: limit is 3145728";
        Self::failure(413, "RequestEntityTooLarge", message, None)
    }

    pub(crate) fn unsupported_media_type() -> Self {
        let message = "the body of the request was in an unknown format - accepted media types include: \
                       application/json, application/yaml, application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, \
                       application/apply-patch+yaml";
        Self::failure(
            415,
            "UnsupportedMediaType",
            message,
            Some(Details::default()),
        )
    }

    pub(crate) fn expired() -> Self {
        Self::failure(
            410,
            "Expired",
            "The resourceVersion for the provided watch is too old.",
            None,
        )
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        let message = format!("Internal error occurred: {}", message.into());
        Self::failure(500, "InternalError", message, None)
    }

    pub(crate) fn forbidden_path(user: &str, verb: &str, path: &str) -> Self {
        let message = format!("forbidden: User {user:?} cannot {verb} path {path:?}");
        Self::failure(403, "Forbidden", message, Some(Details::default()))
    }

    pub(crate) fn forbidden(about: About<'_>, why: &str) -> Self {
        let message = if about.name.is_empty() {
            format!("{} is forbidden: {why}", about.resource_group())
        } else {
            format!(
                "{} {:?} is forbidden: {why}",
                about.resource_group(),
                about.name
            )
        };
        Self::failure(403, "Forbidden", message, Some(about.details()))
    }

    /// What a starting server says (notfoundhandler).
    pub(crate) fn starting() -> Self {
        let message = "the request has been made before all known HTTP paths have been installed, please try again";
        let details = Details {
            retry_after_seconds: 5,
            ..Details::default()
        };
        Self::failure(503, "ServiceUnavailable", message, Some(details))
    }

    /// What a stopping server says once its handlers are gone.
    pub(crate) fn shutting_down() -> Self {
        let details = Details {
            retry_after_seconds: 1,
            ..Details::default()
        };
        Self::failure(
            503,
            "ServiceUnavailable",
            "apiserver is shutting down",
            Some(details),
        )
    }

    /// Which media types there are; `rest` is go-restful's wording, used for paths that it routes.
    pub(crate) fn not_acceptable(rest: bool) -> Self {
        let offered = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
        if rest {
            let message = format!("406: Not Acceptable\n\nAvailable representations: {offered}");
            Self::failure(406, "NotAcceptable", message, Some(Details::default()))
        } else {
            let message = format!("only the following media types are accepted: {offered}");
            Self::failure(406, "NotAcceptable", message, None)
        }
    }
}
