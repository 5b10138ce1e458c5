//! Reads a kustomization as far as ours go: resources, a namespace, and JSON patches. Everything else is refused, so that what is
//! checked is what `kubectl apply -k` would send; where kubectl is there, another test compares the two.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Kustomization {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    namespace: Option<String>,
    resources: Vec<PathBuf>,
    #[serde(default)]
    patches: Vec<Patch>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Patch {
    target: Target,
    patch: String,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Target {
    kind: String,
    name: String,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Operation {
    op: String,
    path: String,
    value: Value,
}

/// `deploy/k8s`.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/k8s")
}

/// All objects of a folder below [`root`].
pub(crate) fn load(folder: &str) -> Vec<Value> {
    load_folder(&root().join(folder))
}

fn load_folder(folder: &Path) -> Vec<Value> {
    let path = folder.join("kustomization.yaml");
    let text = read(&path);
    let kustomization: Kustomization =
        serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut objects: Vec<Value> = kustomization
        .resources
        .iter()
        .map(|resource| folder.join(resource))
        .flat_map(|at| if at.is_dir() { load_folder(&at) } else { documents(&at) })
        .collect();
    for patch in &kustomization.patches {
        let mut of_target = objects
            .iter_mut()
            .filter(|o| o["kind"] == *patch.target.kind && o["metadata"]["name"] == *patch.target.name);
        let object =
            of_target.next().unwrap_or_else(|| panic!("{}: nothing is {:?}", path.display(), patch.target));
        let operations: Vec<Operation> = serde_saphyr::from_str(&patch.patch).expect("JSON patches");
        for operation in operations {
            apply(object, operation);
        }
    }
    if let Some(namespace) = &kustomization.namespace {
        for object in objects.iter_mut().filter(|object| object["kind"] != "Namespace") {
            object["metadata"]["namespace"] = namespace.clone().into();
        }
    }
    objects
}

fn documents(path: &Path) -> Vec<Value> {
    serde_saphyr::from_multiple(&read(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn apply(object: &mut Value, operation: Operation) {
    let Operation { op, path, value } = operation;
    let (parent, last) = path.rsplit_once('/').expect("a pointer");
    let last = last.replace("~1", "/").replace("~0", "~");
    let parent = object.pointer_mut(parent).unwrap_or_else(|| panic!("nothing is at {path}"));
    match (op.as_str(), parent) {
        ("add", Value::Array(list)) if last == "-" => list.push(value),
        ("replace", Value::Array(list)) => list[last.parse::<usize>().expect("an index")] = value,
        ("replace", Value::Object(map)) if map.contains_key(&last) => _ = map.insert(last, value),
        (op, _) => panic!("{op} {path} is not known here, or there is nothing"),
    }
}
