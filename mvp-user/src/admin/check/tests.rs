//! What the looks say, without servers.

use super::*;

#[test]
fn an_old_kernel_is_named_with_what_to_do() {
    for old in ["5.4.0-150-generic", "4.18.0-477.el8.x86_64", "5.8.18"] {
        let found = node::kernel(old);
        assert_eq!(found.result, Grade::Fail, "{old}");
        assert!(found.found.contains("5.9 or newer"), "{found:?}");
        assert!(found.hint.unwrap().contains("upgrade the node's kernel"));
    }
    for good in [
        "5.9.0",
        "5.10.102.1-microsoft-standard",
        "6.1.0-18-amd64",
        "6.14rc1",
    ] {
        assert_eq!(node::kernel(good).result, Grade::Ok, "{good}");
    }
    assert_eq!(node::kernel("none").result, Grade::Warn);
}
