//! How mvp recognises the request that it sends to itself (design 2, dead man's switch).

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use rustls::crypto::aws_lc_rs;

use crate::{body::Body, route::Decision};

/// A random token of this process, so that no other process can answer for it and no client can ask in its place.
#[derive(Debug)]
pub struct SelfCheck {
    token: HeaderValue,
}

impl SelfCheck {
    /// Carries the token, in the request and in the answer.
    pub const HEADER: HeaderName = HeaderName::from_static("x-mvp-self-check");

    /// What is asked for.
    pub const PATH: &str = "/livez";

    /// Draws a token.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn new() -> Result<Self, rustls::Error> {
        let mut bytes = [0; 32];
        aws_lc_rs::default_provider()
            .secure_random
            .fill(&mut bytes)
            .map_err(|_failed| rustls::Error::FailedToGetRandomBytes)?;
        let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
            for nibble in [byte >> 4, byte & 15] {
                hex.extend(char::from_digit(nibble.into(), 16));
            }
            hex
        });
        let mut token = HeaderValue::try_from(hex)
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        token.set_sensitive(true);
        Ok(Self { token })
    }

    /// For the request.
    pub fn token(&self) -> HeaderValue {
        self.token.clone()
    }

    /// Whether a request is the self-request.
    pub fn asks<B>(&self, request: &Request<B>) -> bool {
        // No other request is searched for the header.
        request.uri().path() == Self::PATH
            && request
                .headers()
                .get(&Self::HEADER)
                .is_some_and(|value| same(value, &self.token))
    }

    /// Whether an answer came from this process. The answer's token is the request's reversed, so that an echo is none.
    pub fn answered(&self, headers: &HeaderMap) -> bool {
        headers
            .get(&Self::HEADER)
            .is_some_and(|value| same(value, &self.reversed()))
    }

    /// The answer, once the request was parsed and decided.
    pub fn answer(&self, decision: &Decision) -> Response<Body> {
        let mut answer = Response::new(Body::full(decision.because.as_str()));
        answer.headers_mut().insert(Self::HEADER, self.reversed());
        answer
    }

    fn reversed(&self) -> HeaderValue {
        let bytes: Vec<u8> = self.token.as_bytes().iter().rev().copied().collect();
        HeaderValue::from_bytes(&bytes).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

/// Takes as long whatever differs, so that the token cannot be guessed byte by byte.
fn same(one: &HeaderValue, other: &HeaderValue) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    one.len() == other.len() && one.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_of_this_process_asks_and_answers() {
        let (mine, theirs) = (SelfCheck::new().unwrap(), SelfCheck::new().unwrap());
        let mut request = Request::new(());
        *request.uri_mut() = http::Uri::from_static(SelfCheck::PATH);
        assert!(!mine.asks(&request));
        request
            .headers_mut()
            .insert(SelfCheck::HEADER, mine.token());
        assert!(mine.asks(&request) && !theirs.asks(&request));
        assert!(!mine.answered(request.headers()), "an echo is no answer");
        *request.uri_mut() = http::Uri::from_static("/readyz");
        assert!(!mine.asks(&request), "asked for something else");
    }
}
