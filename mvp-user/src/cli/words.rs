//! What stands on the status page for the words of the control socket: sentences, and how good or bad a word is. Pure.

/// How a word is coloured. The word itself always stands there too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tone {
    Good,
    Doubtful,
    Bad,
    Quiet,
}

impl Tone {
    pub(super) const fn class(self) -> &'static str {
        match self {
            Self::Good => "word good",
            Self::Doubtful => "word doubtful",
            Self::Bad => "word bad",
            Self::Quiet => "word quiet",
        }
    }
}

/// How good a word of health, proof, membership or knowledge is.
pub(super) fn tone(word: &str) -> Tone {
    match word {
        "up" | "proven" | "fresh" | "on" => Tone::Good,
        "starting" | "draining" | "stale" | "departed" | "unproven" | "never read" | "full" => {
            Tone::Doubtful
        }
        "down" | "refused" => Tone::Bad,
        _ => Tone::Quiet,
    }
}

/// What becomes of new connections.
pub(super) fn steered(state: &str) -> &'static str {
    match state {
        "on" => "New connections come through mvp",
        "off" => "New connections go straight to kube-apiserver",
        "full" => "mvp is full: new connections go straight to kube-apiserver",
        "none" => "This mvp steers nothing: clients connect to it by its own address",
        _ => "Steering is in a state that this page does not know",
    }
}

/// Why, as a sentence; the word itself where a newer mvp has one that is not known here.
pub(super) fn why(word: &str) -> Option<&'static str> {
    Some(match word {
        "skew" => "The kube-apiservers do not all serve the same.",
        "local_down" => "The kube-apiserver of this node is not up; another one answers.",
        "unread" => "What one of the kube-apiservers serves is not known yet.",
        "quiet" => "They differed until a moment ago.",
        "always" => "It was asked for (mode always).",
        "never" => "It was asked for (mode never).",
        "full" => "There is no room for more connections.",
        "draining" => "This process is about to end.",
        "no_listener" => "No listener of kube-apiserver was seen on its port.",
        "local_down_refused" => {
            "The kube-apiserver of this node is not up, and --local-down=refuse."
        }
        "forwarding_refused" => {
            "The kube-apiserver of this node refuses forwarded identities. `mvp check` says more."
        }
        "no_proof" => {
            "No kube-apiserver has proven yet that it accepts forwarded identities. `mvp check` says more."
        }
        "no_skew" => {
            "No other kube-apiserver serves anything that this node's does not, so there is nothing to do."
        }
        "no_ebpf" => "It was started with --listen or --steer=never.",
        _ => return None,
    })
}

/// Why a request was refused, or went elsewhere.
pub(super) fn event(word: &str) -> Option<&'static str> {
    Some(match word {
        "unauthorized" => "client certificate without identity, no token",
        "bad_request" => "cannot be read",
        "headers_too_large" => "headers beyond 1 MiB",
        "uri_too_long" => "path and query beyond 64 KiB",
        "only_unavailable_serve" => "only unavailable servers have it",
        "not_ready" => "the peers are not learnt yet",
        "unconfirmed" => "a 404 could not be confirmed",
        "unreachable" => "the server broke off",
        "forwarding_refused" => "forwarded identities are refused",
        "local_down" => "local is down",
        "unproven" => "the server has not proven identity forwarding",
        "upgrade_redirected" => "an upgrade was redirected",
        "upgrade_failed" => "an upgrade was answered wrongly",
        "interrupted" => "a write broke off",
        "busy" => "no room upstream",
        "peer_serves" => "local does not serve it",
        "discovery_by_peer" => "local does not know the group",
        "last_resort" => "only it has it",
        "nobody_serves" => "nobody is known to have it",
        "authority_serves" | "authority_unread" | "discovery" | "non_resource" => {
            "it answers while local is away"
        }
        _ => return None,
    })
}

/// `0.0123` is `12.3 ms`: three digits at most.
pub(super) fn seconds(value: f64) -> String {
    if value.is_infinite() {
        return "> 60 s".to_owned();
    }
    let millis = value * 1000.0;
    match millis {
        it if it < 0.1 => "< 0.1 ms".to_owned(),
        it if it < 10.0 => format!("{it:.1} ms"),
        it if it < 1000.0 => format!("{it:.0} ms"),
        it if it < 10_000.0 => format!("{:.1} s", it / 1000.0),
        it => format!("{:.0} s", it / 1000.0),
    }
}

/// Per second: two digits where there are few.
pub(super) fn rate(value: f64) -> String {
    match value {
        it if it <= 0.0 => "0".to_owned(),
        it if it < 0.01 => "< 0.01".to_owned(),
        it if it < 10.0 => format!("{it:.2}"),
        it if it < 100.0 => format!("{it:.1}"),
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and rounded on purpose"
        )]
        it => count(it.round() as u64),
    }
}

/// `1234567` is `1 234 567`, with spaces that do not break.
pub(super) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::Refusal;

    #[test]
    fn numbers_are_short() {
        for (value, wanted) in [
            (0.0, "< 0.1 ms"),
            (0.000_56, "0.6 ms"),
            (0.0123, "12 ms"),
            (0.5, "500 ms"),
            (2.25, "2.2 s"),
            (59.0, "59 s"),
            (f64::INFINITY, "> 60 s"),
        ] {
            assert_eq!(seconds(value), wanted);
        }
        for (value, wanted) in [
            (0.0, "0"),
            (0.001, "< 0.01"),
            (1.5, "1.50"),
            (12.34, "12.3"),
            (1234.6, "1\u{202f}235"),
        ] {
            assert_eq!(rate(value), wanted);
        }
        for (value, wanted) in [
            (0, "0"),
            (999, "999"),
            (1000, "1\u{202f}000"),
            (1_234_567, "1\u{202f}234\u{202f}567"),
        ] {
            assert_eq!(count(value), wanted);
        }
    }

    #[test]
    fn every_refusal_has_words() {
        for refusal in Refusal::ALL {
            assert!(event(refusal.as_str()).is_some(), "{refusal:?}");
        }
    }
}
