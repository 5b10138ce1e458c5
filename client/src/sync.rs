//! Locks of what the models look at (`models`). With the feature `loom` they are loom's, which runs a model through every
//! order in which its threads can meet; nothing but the models works then.

#[cfg(not(feature = "loom"))]
pub(crate) use parking_lot::{Condvar, Mutex};

#[cfg(all(test, feature = "loom"))]
pub(crate) use tender_proto::model::plant;
#[cfg(feature = "loom")]
pub(crate) use tender_proto::model::{Condvar, Mutex};
pub(crate) use tender_proto::model::{Planted, planted};
