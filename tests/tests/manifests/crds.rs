//! Objects of operators, as far as ours use them; whatever else stands in one is refused.

use serde::{Deserialize, Serialize};

#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Object<S> {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) metadata: Metadata,
    pub(crate) spec: S,
}

#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) namespace: String,
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub(crate) labels: serde_json::Map<String, serde_json::Value>,
}

/// `monitoring.coreos.com/v1`.
#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServiceMonitor {
    pub(crate) selector: Selector,
    pub(crate) endpoints: Vec<Endpoint>,
}

#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Selector {
    pub(crate) match_labels: serde_json::Map<String, serde_json::Value>,
}

#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Endpoint {
    pub(crate) port: String,
    pub(crate) path: String,
    pub(crate) interval: String,
    pub(crate) scrape_timeout: String,
}

/// `cert-manager.io/v1`.
#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Certificate {
    #[serde(rename = "isCA", skip_serializing_if = "Option::is_none")]
    pub(crate) is_ca: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) common_name: Option<String>,
    pub(crate) secret_name: String,
    pub(crate) duration: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) renew_before: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) dns_names: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) uris: Vec<String>,
    pub(crate) private_key: PrivateKey,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) usages: Vec<Usage>,
    pub(crate) issuer_ref: IssuerRef,
}

#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct PrivateKey {
    algorithm: String,
    size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    rotation_policy: Option<String>,
}

#[derive(Deserialize, Serialize, PartialEq, Eq, Debug)]
pub(crate) enum Usage {
    #[serde(rename = "digital signature")]
    DigitalSignature,
    #[serde(rename = "server auth")]
    ServerAuth,
    #[serde(rename = "client auth")]
    ClientAuth,
}

#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct IssuerRef {
    pub(crate) name: String,
    pub(crate) kind: String,
}

/// `cert-manager.io/v1`: either of the two kinds that are used.
#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Issuer {
    #[serde(skip_serializing_if = "Option::is_none")]
    self_signed: Option<Nothing>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ca: Option<Ca>,
}

#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Ca {
    secret_name: String,
}
