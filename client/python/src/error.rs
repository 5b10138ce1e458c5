//! Python exceptions, one for each kind of error an engine's start can meet. Calls inside an engine step do not
//! raise: what fails there is counted by the client and reported as data.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use tender_client::ClientError;
use tender_client::layout::LayoutRefusal;
use tender_proto::Refusal;

create_exception!(tender_kv, TenderError, PyException, "Something of Tender could not be started or asked.");
create_exception!(tender_kv, ConfigError, TenderError, "A value of the configuration cannot be used.");
create_exception!(
    tender_kv,
    LayoutError,
    TenderError,
    "A KV cache layout was not proved to be safe to copy."
);
create_exception!(
    tender_kv,
    RefusedError,
    TenderError,
    "The daemon, or a check on this side, said no. `reason` is its short name, `advice` what to do about it."
);

/// As exception: the same words.
pub(crate) fn client_error(error: ClientError) -> PyErr {
    match error {
        ClientError::Config { .. } => ConfigError::new_err(error.to_string()),
        ClientError::Refused(refusal) => refused(&refusal),
        _ => TenderError::new_err(error.to_string()),
    }
}

/// With the parts of the refusal as attributes.
pub(crate) fn refused(refusal: &Refusal) -> PyErr {
    Python::attach(|py| {
        let error = RefusedError::new_err(refusal.to_string());
        let value = error.value(py);
        let set = |name: &str, text: &str| value.setattr(name, text);
        let parts = [
            ("reason", refusal.reason.label()),
            ("subject", refusal.subject.as_str()),
            ("advice", refusal.advice.as_str()),
        ];
        match parts.into_iter().try_for_each(|(name, text)| set(name, text)) {
            Ok(()) => error,
            Err(broken) => broken,
        }
    })
}

/// The sentence names the layers and the byte ranges.
pub(crate) fn layout_error(refusal: &LayoutRefusal) -> PyErr {
    LayoutError::new_err(refusal.to_string())
}
