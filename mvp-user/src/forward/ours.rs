//! What mvp says in every request of a user: where it comes from, and who asks. Made once for a connection, which nearly always
//! has one user, and copied for each of its requests. Not for what the client has sent.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use http::{HeaderMap, HeaderValue};

use super::headers;
use crate::{
    config::RequestHeaders,
    identity::{self, Caller, User},
};

/// Room for the client's headers behind ours, so that the table of a copy need not grow.
const ROOM: usize = 24;

/// The headers of one user.
pub(super) type Lines = Rc<HeaderMap>;

/// Those of the last user.
#[derive(Debug, Default)]
pub(super) struct Ours(RefCell<Option<(Arc<User>, Lines)>>);

impl Ours {
    /// Those of `caller`, who is at `address`; none if it is no user of a certificate.
    pub(super) fn of(
        &self,
        caller: &Caller,
        address: &HeaderValue,
        names: &RequestHeaders,
    ) -> Option<Lines> {
        let Caller::User(user) = caller else {
            return None;
        };
        let mut last = self.0.borrow_mut();
        // The user is held here, so no other one is ever found at its place.
        if let Some((of, made)) = &*last
            && Arc::ptr_eq(of, user)
        {
            return Some(Rc::clone(made));
        }
        let mut made = HeaderMap::with_capacity(ROOM);
        headers::forwarded_for(&mut made, address);
        identity::forward_identity(caller, &mut made, names);
        let made = Rc::new(made);
        *last = Some((Arc::clone(user), Rc::clone(&made)));
        Some(made)
    }
}
