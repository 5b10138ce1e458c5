//! An overlay as typed objects, and what the daemon in it is told.

use std::collections::BTreeMap;
use std::ffi::OsString;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Container, Namespace, PodSpec, Service, ServiceAccount, Volume};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tender_daemon::config::Config;

use crate::crds::{Certificate, Issuer, Object, ServiceMonitor};
use crate::kustomize;

/// What a pod and a container are told about themselves, and what is in the secrets that somebody else makes.
const NODE: &[(&str, &str)] =
    &[("status.podIP", "10.1.2.3"), ("metadata.name", "tenderd-0"), ("metadata.namespace", "tender")];
const SECRETS: &[(&str, &str)] = &[("tender-directory/uri", "rediss://user:password@redis.example:6379")];

pub(crate) struct Overlay {
    pub(crate) folder: String,
    pub(crate) pods: Vec<Pod>,
    pub(crate) services: Vec<Service>,
    pub(crate) policies: Vec<NetworkPolicy>,
    pub(crate) budgets: Vec<PodDisruptionBudget>,
    pub(crate) namespaces: Vec<Namespace>,
    pub(crate) monitors: Vec<Object<ServiceMonitor>>,
    pub(crate) certificates: Vec<Object<Certificate>>,
}

/// The pods that a workload makes.
pub(crate) struct Pod {
    pub(crate) workload: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) spec: PodSpec,
}

/// `what` as `T`, if that knows every field of it.
pub(crate) fn typed<T: DeserializeOwned + Serialize>(what: &Value) -> Result<T, String> {
    let object: T = serde_json::from_value(what.clone()).map_err(|error| error.to_string())?;
    let known = serde_json::to_value(&object).map_err(|error| error.to_string())?;
    if known == *what {
        Ok(object)
    } else {
        Err(format!("some field is not known.\nwritten: {what:#}\nknown: {known:#}"))
    }
}

impl Overlay {
    pub(crate) fn load(folder: &str) -> Self {
        let mut all = Self {
            folder: folder.into(),
            pods: Vec::new(),
            services: Vec::new(),
            policies: Vec::new(),
            budgets: Vec::new(),
            namespaces: Vec::new(),
            monitors: Vec::new(),
            certificates: Vec::new(),
        };
        for object in kustomize::load(folder) {
            let name = format!("{folder}: {} {}", object["kind"], object["metadata"]["name"]);
            all.take(&object).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        all
    }

    fn take(&mut self, object: &Value) -> Result<(), String> {
        let version = object["apiVersion"].as_str().unwrap_or_default();
        match (version, object["kind"].as_str().unwrap_or_default()) {
            ("v1", "Namespace") => self.namespaces.push(typed(object)?),
            ("v1", "ServiceAccount") => _ = typed::<ServiceAccount>(object)?,
            ("v1", "Service") => self.services.push(typed(object)?),
            ("networking.k8s.io/v1", "NetworkPolicy") => self.policies.push(typed(object)?),
            ("policy/v1", "PodDisruptionBudget") => self.budgets.push(typed(object)?),
            ("apps/v1", "Deployment") => {
                let it: Deployment = typed(object)?;
                let template = it.spec.ok_or("no spec")?.template;
                self.pod(object, template.metadata.and_then(|m| m.labels), template.spec);
            }
            ("apps/v1", "DaemonSet") => {
                let it: DaemonSet = typed(object)?;
                let template = it.spec.ok_or("no spec")?.template;
                self.pod(object, template.metadata.and_then(|m| m.labels), template.spec);
            }
            ("apps/v1", "StatefulSet") => {
                let it: StatefulSet = typed(object)?;
                let template = it.spec.ok_or("no spec")?.template;
                self.pod(object, template.metadata.and_then(|m| m.labels), template.spec);
            }
            ("monitoring.coreos.com/v1", "ServiceMonitor") => self.monitors.push(typed(object)?),
            ("cert-manager.io/v1", "Certificate") => self.certificates.push(typed(object)?),
            ("cert-manager.io/v1", "Issuer") => _ = typed::<Object<Issuer>>(object)?,
            (version, kind) => return Err(format!("{version} {kind} is checked by nobody: add it here")),
        }
        Ok(())
    }

    fn pod(&mut self, object: &Value, labels: Option<BTreeMap<String, String>>, spec: Option<PodSpec>) {
        let workload = format!("{} {}", self.folder, object["metadata"]["name"].as_str().unwrap_or_default());
        let selected = &object["spec"]["selector"]["matchLabels"];
        let labels = labels.unwrap_or_default();
        for (key, value) in selected.as_object().expect("a selector") {
            assert_eq!(
                labels.get(key).map(String::as_str),
                value.as_str(),
                "{workload} does not select its own pods"
            );
        }
        self.pods.push(Pod { workload, labels, spec: spec.expect("a pod") });
    }

    /// The pods that have these labels.
    pub(crate) fn selected(&self, by: &BTreeMap<String, String>) -> Vec<&Pod> {
        self.pods
            .iter()
            .filter(|pod| by.iter().all(|(key, value)| pod.labels.get(key) == Some(value)))
            .collect()
    }

    /// Every container that runs tenderd, with what it is told.
    pub(crate) fn daemons(&self) -> Vec<(&Pod, &Container, Config)> {
        let containers = self.pods.iter().flat_map(|pod| pod.all().map(move |container| (pod, container)));
        containers
            .filter(|(_, container)| container.name == "tenderd")
            .map(|(pod, container)| (pod, container, told(container)))
            .collect()
    }
}

impl Pod {
    /// Every container, those that run before the others too.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Container> {
        self.spec.init_containers.iter().flatten().chain(&self.spec.containers)
    }
    /// Those that are to run for ever.
    pub(crate) fn lasting(&self) -> impl Iterator<Item = &Container> {
        self.all().filter(|container| self.spec.containers.contains(container) || is_sidecar(container))
    }
    pub(crate) fn volume(&self, name: &str) -> &Volume {
        let volume = self.spec.volumes.iter().flatten().find(|volume| volume.name == name);
        volume.unwrap_or_else(|| panic!("{}: there is no volume {name}", self.workload))
    }
    /// The volume in which a path of this container lies.
    pub(crate) fn volume_of(&self, container: &Container, path: &str) -> &Volume {
        let mounts = container.volume_mounts.iter().flatten();
        let mount = mounts.filter(|m| path.starts_with(&m.mount_path)).max_by_key(|m| m.mount_path.len());
        let mount = mount.unwrap_or_else(|| panic!("{}: {path} is in no volume", self.workload));
        self.volume(&mount.name)
    }
}

/// A native sidecar.
pub(crate) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// The daemon's own reading of a container's arguments and variables.
fn told(container: &Container) -> Config {
    let variables: BTreeMap<_, _> =
        container.env.iter().flatten().map(|variable| (variable.name.as_str(), value_of(variable))).collect();
    let expanded = |text: &str| {
        variables
            .iter()
            .fold(text.to_owned(), |text, (name, value)| text.replace(&format!("$({name})"), value))
    };
    let arguments = container.args.iter().flatten().map(|argument| expanded(argument));
    // A variable TENDERD_X is the flag --x.
    let variables = variables.iter().filter_map(|(name, value)| {
        let flag = name.strip_prefix("TENDERD_")?.to_lowercase().replace('_', "-");
        Some(format!("--{flag}={value}"))
    });
    let all = std::iter::once("tenderd".to_owned()).chain(arguments).chain(variables);
    let all: Vec<String> = all.collect();
    assert!(!all.iter().any(|argument| argument.contains("$(")), "a variable is not known: {all:?}");
    Config::load(all.iter().map(OsString::from))
        .unwrap_or_else(|error| panic!("tenderd refuses {all:?}: {error}"))
}

fn value_of(variable: &k8s_openapi::api::core::v1::EnvVar) -> String {
    let find = |table: &[(&str, &str)], key: &str| {
        let found = table.iter().find(|(name, _)| *name == key);
        found.unwrap_or_else(|| panic!("nobody says what {key} is")).1.to_owned()
    };
    match (&variable.value, &variable.value_from) {
        (Some(value), None) => value.clone(),
        (None, Some(from)) => match (&from.field_ref, &from.secret_key_ref) {
            (Some(field), None) => find(NODE, &field.field_path),
            (None, Some(secret)) => find(SECRETS, &format!("{}/{}", secret.name, secret.key)),
            _ => panic!("{variable:?} comes from elsewhere"),
        },
        _ => panic!("{variable:?} has no value"),
    }
}

/// Bytes of a memory quantity.
pub(crate) fn bytes(quantity: &Quantity) -> u64 {
    let text = quantity.0.as_str();
    for (suffix, shift) in [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40)] {
        if let Some(number) = text.strip_suffix(suffix) {
            return number.parse::<u64>().expect("a whole number") << shift;
        }
    }
    text.parse().expect("a number of bytes")
}
