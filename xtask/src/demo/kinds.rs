//! Which APIs the checks use, and the objects they need. They are facts about kube-apiserver 1.34 and 1.36 with every
//! API enabled; a check whose API does not differ between the servers at hand fails and says so.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

/// Served by new servers only, in a group-version that both serve.
pub(crate) const NEW_KIND: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
/// Its group.
pub(crate) const NEW_GROUP: &str = "admissionregistration.k8s.io";
/// Its resource.
pub(crate) const NEW_RESOURCE: &str = "mutatingadmissionpolicies";
/// As new; nobody but admins may read it.
pub(crate) const NEW_KIND_DENIED: &str =
    "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings";
/// Served by old servers only.
pub(crate) const OLD_KIND: &str = "/apis/storage.k8s.io/v1alpha1/volumeattributesclasses";
/// A resource of all servers whose subresource `status` only new ones have; the object is in [`objects`].
pub(crate) const NEW_SUBRESOURCE: &str =
    "/apis/resource.k8s.io/v1alpha3/devicetaintrules/demo/status";
/// Where the demo's kubelet listens.
pub(crate) const KUBELET_PORT: u16 = 10250;
/// exec in a pod that the demo's kubelet has: an echo. No output but the upgrade.
pub(crate) const EXEC: &str =
    "/api/v1/namespaces/default/pods/echo/exec?command=cat&container=echo&stdin=true&stdout=true";

/// What must be there before the first check: collection and object.
pub(crate) fn objects(_worker: Ipv4Addr) -> Vec<(&'static str, Value)> {
    vec![
        (
            "/apis/resource.k8s.io/v1alpha3/devicetaintrules",
            json!({"apiVersion": "resource.k8s.io/v1alpha3", "kind": "DeviceTaintRule", "metadata": {"name": "demo"},
                "spec": {"deviceSelector": {"driver": "demo.invalid"},
                    "taint": {"key": "demo.invalid/broken", "value": "yes", "effect": "NoExecute"}}}),
        ),
        (
            "/api/v1/nodes",
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker"}}),
        ),
        (
            "/api/v1/namespaces/default/pods",
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "echo", "namespace": "default"},
                "spec": {"nodeName": "worker", "containers": [{"name": "echo", "image": "echo"}]}}),
        ),
    ]
}

/// An object of the new kind that has no effect: nothing matches it, nothing binds it.
pub(crate) fn new_object(name: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Ignore", "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": [{"apiGroups": ["demo.invalid"], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["nothings"]}]},
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{}"}}],
        },
    })
}
