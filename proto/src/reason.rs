//! Why something was refused, missed or lost: one closed set for both sides, its words, and its way through
//! a gRPC status.

use prost::Message;

use crate::v1;

macro_rules! reasons {
    ($($name:ident = $wire:ident, $label:literal, $retry:ident;)*) => {
        /// One reason. Its `label` is what metrics and logs call it.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[allow(missing_docs, reason = "the names say it; when each is used is in store.proto")]
        pub enum Reason { $($name,)* }

        impl Reason {
            /// Every reason, for metrics that declare all their labels at start.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Short name for logs and metric labels.
            pub fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)* }
            }
            /// What a client may do about it.
            pub fn retry(self) -> Retry {
                match self { $(Self::$name => Retry::$retry,)* }
            }
            /// As it goes into a message.
            pub fn to_wire(self) -> v1::Reason {
                match self { $(Self::$name => v1::Reason::$wire,)* }
            }
            /// From a message; unspecified or unknown numbers give `None`.
            pub fn from_wire(raw: i32) -> Option<Self> {
                match v1::Reason::try_from(raw).ok()? {
                    v1::Reason::Unspecified => None,
                    $(v1::Reason::$wire => Some(Self::$name),)*
                }
            }
        }
    };
}

/// What a client may do about a reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retry {
    /// Never: the same call gives the same answer.
    Never,
    /// Open a session or register first.
    Reconnect,
    /// Later, after a pause; meanwhile go on without.
    Later,
}

reasons! {
    // The caller broke the contract: the same bytes would be refused again.
    Malformed = Malformed, "malformed", Never;
    WrongSize = WrongSize, "wrong_size", Never;
    BadCoverage = BadCoverage, "bad_coverage", Never;
    PartOutOfRange = PartOutOfRange, "part_out_of_range", Never;
    GroupOutOfRange = GroupOutOfRange, "group_out_of_range", Never;
    FrameTooLarge = FrameTooLarge, "frame_too_large", Never;
    BadDigest = BadDigest, "bad_digest", Never;
    NamespaceConflict = NamespaceConflict, "namespace_conflict", Never;
    NotOwner = NotOwner, "not_owner", Never;
    VersionMismatch = VersionMismatch, "version_mismatch", Never;
    TooLarge = TooLarge, "too_large", Never;
    StagingRange = StagingRange, "staging_range", Never;
    // Only another policy or another identity helps.
    NotAllowed = NotAllowed, "not_allowed", Never;
    // The daemon restarted or dropped the session: a new session repairs it.
    UnknownSession = UnknownSession, "unknown_session", Reconnect;
    UnknownNamespace = UnknownNamespace, "unknown_namespace", Reconnect;
    // It is over; the chunk can be looked up or reserved anew, this handle cannot be used again.
    UnknownReservation = UnknownReservation, "unknown_reservation", Never;
    ReservationExpired = ReservationExpired, "reservation_expired", Never;
    UnknownLease = UnknownLease, "unknown_lease", Never;
    LeaseExpired = LeaseExpired, "lease_expired", Never;
    NamespaceReset = NamespaceReset, "namespace_reset", Never;
    Superseded = Superseded, "superseded", Never;
    // Others hold what is missing now.
    NoSpace = NoSpace, "no_space", Later;
    Throttled = Throttled, "throttled", Later;
    TooMany = TooMany, "too_many", Later;
    Draining = Draining, "draining", Later;
    OverQuota = OverQuota, "over_quota", Later;
    // Data, not faults.
    NeverStored = NeverStored, "never_stored", Never;
    Evicted = Evicted, "evicted", Never;
    NotCovered = NotCovered, "not_covered", Never;
    Internal = Internal, "internal", Later;
    Unsupported = Unsupported, "unsupported", Never;
    Unreachable = Unreachable, "unreachable", Later;
    Deadline = Deadline, "deadline", Later;
    BreakerOpen = BreakerOpen, "breaker_open", Later;
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.label())
    }
}

/// A typed no: why, to what, and what to do about it. Its text is one sentence for a person.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{subject} was refused ({reason}): {advice}")]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// What it happened to.
    pub subject: String,
    /// What a person or program can do about it.
    pub advice: String,
}

impl Refusal {
    /// Puts the three together.
    pub fn new(reason: Reason, subject: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { reason, subject: subject.into(), advice: advice.into() }
    }

    /// The gRPC status that carries it.
    pub fn to_status(&self) -> tonic::Status {
        let detail = v1::ErrorDetail {
            reason: self.reason.to_wire().into(),
            subject: self.subject.clone(),
            advice: self.advice.clone(),
        };
        tonic::Status::with_details(code(self.reason), self.to_string(), detail.encode_to_vec().into())
    }

    /// What a gRPC status says; statuses that no daemon of ours made become [`Reason::Unreachable`] or
    /// [`Reason::Deadline`].
    pub fn from_status(status: &tonic::Status) -> Self {
        if let Ok(detail) = v1::ErrorDetail::decode(status.details())
            && let Some(reason) = Reason::from_wire(detail.reason)
        {
            return Self { reason, subject: detail.subject, advice: detail.advice };
        }
        let (reason, advice) = match status.code() {
            tonic::Code::DeadlineExceeded => (Reason::Deadline, "the daemon was too slow; go on without it"),
            tonic::Code::OutOfRange | tonic::Code::ResourceExhausted => {
                (Reason::TooLarge, "send smaller messages or raise the limit on both sides")
            }
            tonic::Code::Unimplemented => {
                (Reason::Unsupported, "the daemon is of another version; upgrade it")
            }
            _ => (Reason::Unreachable, "the daemon did not answer; go on without it"),
        };
        Self::new(reason, format!("a call ({}: {})", status.code(), status.message()), advice)
    }
}

/// The gRPC code for a reason. Codes matter to proxies and generic tools; our clients read the reason.
fn code(reason: Reason) -> tonic::Code {
    use Reason as R;
    match reason {
        R::Malformed
        | R::WrongSize
        | R::BadCoverage
        | R::PartOutOfRange
        | R::GroupOutOfRange
        | R::FrameTooLarge
        | R::TooLarge
        | R::StagingRange => tonic::Code::InvalidArgument,
        R::BadDigest => tonic::Code::DataLoss,
        R::NamespaceConflict => tonic::Code::AlreadyExists,
        R::NotOwner | R::NotAllowed => tonic::Code::PermissionDenied,
        R::VersionMismatch | R::UnknownSession | R::UnknownNamespace => tonic::Code::FailedPrecondition,
        R::UnknownReservation | R::UnknownLease | R::NeverStored | R::Evicted | R::NotCovered => {
            tonic::Code::NotFound
        }
        R::ReservationExpired | R::LeaseExpired | R::NamespaceReset | R::Superseded => tonic::Code::Aborted,
        R::NoSpace | R::Throttled | R::TooMany | R::OverQuota => tonic::Code::ResourceExhausted,
        R::Draining | R::Unreachable | R::BreakerOpen => tonic::Code::Unavailable,
        R::Deadline => tonic::Code::DeadlineExceeded,
        R::Internal => tonic::Code::Internal,
        R::Unsupported => tonic::Code::Unimplemented,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_survives_the_way_through_a_status() {
        for &reason in Reason::ALL {
            let refusal = Refusal::new(reason, "chunk 3", "try another");
            assert_eq!(Refusal::from_status(&refusal.to_status()), refusal);
            assert_eq!(Reason::from_wire(reason.to_wire().into()), Some(reason));
        }
    }

    #[test]
    fn a_foreign_status_is_an_unreachable_daemon() {
        let refusal = Refusal::from_status(&tonic::Status::internal("h2 protocol error"));
        assert_eq!(refusal.reason, Reason::Unreachable);
        assert!(refusal.to_string().contains("h2 protocol error"));
    }
}
