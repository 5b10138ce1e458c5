//! The Kubernetes manifests as a cluster would read them, and as the daemon reads what they tell it: sizes, ports, paths and flags
//! come from the daemon's own code.
#![expect(clippy::unwrap_used, reason = "a step of a test that fails is a panic with its place")]

mod crds;
mod kustomize;
mod overlay;

use std::collections::BTreeMap;
use std::process::Command;

use k8s_openapi::api::core::v1::{Container, Namespace, Probe, SecurityContext};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use overlay::{Overlay, Pod, bytes, is_sidecar, typed};
use serde_json::{Value, json};
use tender_client::Address;
use tender_daemon::config::{ADMIN_PORT, Config, HostPort, Listen, TCP_PORT};
use tender_daemon::{LIVE_PATH, METRICS_PATH, READY_PATH};
use tender_proto::limits::DAEMON_OVERHEAD_BYTES;

const OVERLAYS: [&str; 4] =
    ["overlays/sidecar", "overlays/node", "overlays/shared", "overlays/shared-external"];
const EXAMPLES: [&str; 2] = ["examples/vllm-node", "examples/vllm-shared"];
/// A daemon that answers nothing for less is not killed.
const PATIENCE_SECONDS: i32 = 60;
/// Between the end of a drain and the end of the process.
const CLOSING_SECONDS: u64 = 10;

fn overlays() -> Vec<Overlay> {
    OVERLAYS.iter().map(|folder| Overlay::load(folder)).collect()
}

fn everything() -> Vec<Overlay> {
    OVERLAYS.iter().chain(&EXAMPLES).map(|folder| Overlay::load(folder)).collect()
}

/// Every container of everything, with words for a message.
fn each_container(mut check: impl FnMut(&Pod, &Container, &str)) {
    for overlay in everything() {
        for pod in &overlay.pods {
            for container in pod.all() {
                check(pod, container, &format!("{}, container {}", pod.workload, container.name));
            }
        }
    }
}

#[test]
fn the_sizing_page_has_the_figure_of_the_code() {
    let page = std::fs::read_to_string(kustomize::root().join("../../docs/sizing.md")).unwrap();
    assert!(page.contains(&format!("+ {} MiB ", DAEMON_OVERHEAD_BYTES >> 20)), "docs/sizing.md");
}

#[test]
fn every_folder_of_manifests_is_known_here() {
    for parent in ["overlays", "examples"] {
        for entry in std::fs::read_dir(kustomize::root().join(parent)).unwrap() {
            let name = format!("{parent}/{}", entry.unwrap().file_name().to_string_lossy());
            assert!(
                OVERLAYS.iter().chain(&EXAMPLES).any(|known| *known == name),
                "{name} is checked by no test"
            );
        }
    }
}

#[test]
fn a_field_that_does_not_exist_is_noticed() {
    let good = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tender"}});
    assert!(typed::<Namespace>(&good).is_ok());
    let mut bad = good;
    bad["metadata"]["lables"] = json!({});
    assert!(typed::<Namespace>(&bad).unwrap_err().contains("lables"));
}

#[test]
fn every_manifest_is_of_a_known_kind_and_has_known_fields_only() {
    for overlay in everything() {
        assert!(!overlay.pods.is_empty(), "{} runs something", overlay.folder);
    }
}

#[test]
fn kubectl_makes_the_same_of_them() {
    if Command::new("kubectl").arg("version").arg("--client").output().is_err() {
        println!("NOT COMPARED: kubectl is not here; the loader of this test is what was checked");
        return;
    }
    for folder in OVERLAYS.iter().chain(&EXAMPLES) {
        let output =
            Command::new("kubectl").arg("kustomize").arg(kustomize::root().join(folder)).output().unwrap();
        assert!(output.status.success(), "{folder}: {}", String::from_utf8_lossy(&output.stderr));
        let theirs: Vec<Value> =
            serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap();
        let by_name = |all: Vec<Value>| -> BTreeMap<String, Value> {
            all.into_iter().map(|o| (format!("{} {}", o["kind"], o["metadata"]["name"]), o)).collect()
        };
        assert_eq!(by_name(theirs), by_name(kustomize::load(folder)), "{folder}");
    }
}

#[test]
fn every_container_states_what_it_needs_and_its_memory_is_all_its_own() {
    each_container(|_, container, name| {
        let resources = container.resources.as_ref().unwrap_or_else(|| panic!("{name}: no resources"));
        let (requests, limits) =
            (resources.requests.clone().unwrap_or_default(), resources.limits.clone().unwrap_or_default());
        for what in ["cpu", "memory"] {
            assert!(requests.contains_key(what) && limits.contains_key(what), "{name}: no {what}");
        }
        if container.name == "tenderd" {
            assert_eq!(requests["memory"], limits["memory"], "{name}: an arena is not there at times only");
        }
    });
}

#[test]
fn nobody_has_a_privilege_but_the_one_that_gives_folders_of_the_node_away() {
    each_container(|pod, container, name| {
        let own = container.security_context.clone().unwrap_or_default();
        let of_pod = pod.spec.security_context.clone().unwrap_or_default();
        let SecurityContext { capabilities, privileged, allow_privilege_escalation, .. } = own.clone();
        let capabilities = capabilities.unwrap_or_default();
        assert_eq!(capabilities.drop, Some(vec!["ALL".into()]), "{name}");
        assert_eq!(allow_privilege_escalation, Some(false), "{name}");
        assert_eq!(own.read_only_root_filesystem, Some(true), "{name}");
        assert_ne!(privileged, Some(true), "{name}");
        assert_eq!(
            of_pod.seccomp_profile.clone().map(|profile| profile.type_),
            Some("RuntimeDefault".into()),
            "{name}"
        );
        let gives_away = container.name == "folders";
        assert_eq!(capabilities.add, gives_away.then(|| vec!["CHOWN".into()]), "{name}");
        assert_eq!(own.run_as_non_root.or(of_pod.run_as_non_root), Some(!gives_away), "{name}");
        assert_eq!(own.run_as_user.or(of_pod.run_as_user) == Some(0), gives_away, "{name}");
        assert_eq!(pod.spec.automount_service_account_token, Some(false), "{name}");
        assert!(!pod.spec.host_network.unwrap_or(false) && !pod.spec.host_pid.unwrap_or(false), "{name}");
        assert!(!pod.spec.host_ipc.unwrap_or(false), "{name}");
    });
}

#[test]
fn only_what_needs_folders_of_the_node_is_in_a_namespace_that_allows_them() {
    for overlay in overlays() {
        let uses = overlay
            .pods
            .iter()
            .flat_map(|pod| pod.spec.volumes.iter().flatten())
            .any(|v| v.host_path.is_some());
        let level =
            overlay.namespaces[0].metadata.labels.as_ref().unwrap()["pod-security.kubernetes.io/enforce"]
                .clone();
        assert_eq!(level, if uses { "privileged" } else { "restricted" }, "{}", overlay.folder);
    }
}

#[test]
fn the_daemon_accepts_every_flag_and_is_there_in_every_overlay() {
    for overlay in overlays() {
        assert_eq!(overlay.daemons().len(), 1, "{}", overlay.folder);
    }
}

#[test]
fn arena_staging_and_overhead_fit_the_memory_limit_and_the_volume() {
    for overlay in overlays() {
        for (pod, container, config) in overlay.daemons() {
            let engine = &config.engine;
            let file = engine.arena.file_bytes().unwrap();
            let needed = file + engine.max_total_staging_bytes + DAEMON_OVERHEAD_BYTES;
            let limit = bytes(&container.resources.as_ref().unwrap().limits.as_ref().unwrap()["memory"]);
            assert!(needed <= limit, "{}: needs {needed} bytes, the limit is {limit}", pod.workload);
            assert!(limit < needed + needed / 4, "{}: a quarter of the memory is for nothing", pod.workload);
            let volume = pod.volume_of(container, engine.arena.place.to_str().unwrap());
            match (&volume.empty_dir, &volume.host_path) {
                (Some(empty), None) => {
                    assert_eq!(
                        empty.medium.as_deref(),
                        Some("Memory"),
                        "{}: the arena is on a disk",
                        pod.workload
                    );
                    let room = bytes(empty.size_limit.as_ref().expect("a limit"));
                    assert!(file <= room && room <= limit, "{}: {file} <= {room} <= {limit}", pod.workload);
                }
                (None, Some(host)) => assert!(host.path.starts_with("/dev/shm/"), "{}", pod.workload),
                _ => panic!("{}: the arena is in {volume:?}", pod.workload),
            }
        }
    }
}

fn http(probe: &Option<Probe>, name: &str) -> (String, IntOrString, i32) {
    let probe = probe.as_ref().unwrap_or_else(|| panic!("{name}: no probe"));
    let http = probe.http_get.as_ref().unwrap_or_else(|| panic!("{name}: not over HTTP"));
    let patience = probe.period_seconds.unwrap_or(10) * probe.failure_threshold.unwrap_or(3);
    assert!(probe.timeout_seconds.unwrap_or(1) >= 5, "{name}: a busy node is slower than that");
    (http.path.clone().unwrap(), http.port.clone(), patience)
}

#[test]
fn probes_ask_what_the_daemon_answers_and_kill_no_busy_one() {
    for overlay in overlays() {
        for (pod, container, config) in overlay.daemons() {
            let name = &pod.workload;
            let (path, _, patience) = http(&container.startup_probe, name);
            assert_eq!(path, LIVE_PATH, "{name}: ready takes as long as the arena is large");
            assert!(patience >= PATIENCE_SECONDS, "{name}: {patience} s");
            let (path, port, patience) = http(&container.liveness_probe, name);
            assert_eq!(path, LIVE_PATH, "{name}");
            assert!(patience >= PATIENCE_SECONDS, "{name}: {patience} s");
            let admin = config.admin.as_ref().map(ToString::to_string).unwrap_or_default();
            assert!(admin.ends_with(&format!(":{ADMIN_PORT}")), "{name}: {admin}");
            assert!(!admin.starts_with("127."), "{name}: the kubelet does not reach {admin}");
            assert_eq!(port_number(container, &port), i32::from(ADMIN_PORT), "{name}");
            // Ready is a matter of the pod: an engine goes on without its sidecar.
            if is_sidecar(container) {
                assert!(container.readiness_probe.is_none(), "{name}");
            } else {
                assert_eq!(http(&container.readiness_probe, name).0, READY_PATH, "{name}");
            }
        }
    }
}

#[test]
fn whatever_lasts_has_probes() {
    for overlay in everything() {
        for pod in &overlay.pods {
            for container in pod.lasting() {
                let name = format!("{} {}", pod.workload, container.name);
                assert!(container.startup_probe.is_some() && container.liveness_probe.is_some(), "{name}");
                assert!(container.readiness_probe.is_some() || is_sidecar(container), "{name}");
            }
        }
    }
}

fn port_number(container: &Container, port: &IntOrString) -> i32 {
    match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            let found = ports.find(|port| port.name.as_ref() == Some(name));
            found.unwrap_or_else(|| panic!("{}: no port {name}", container.name)).container_port
        }
    }
}

#[test]
fn a_drain_ends_before_the_kill() {
    for overlay in overlays() {
        for (pod, container, config) in overlay.daemons() {
            let grace = u64::try_from(pod.spec.termination_grace_period_seconds.unwrap_or(30)).unwrap();
            let pause = |container: &Container| {
                let command = container
                    .lifecycle
                    .as_ref()
                    .and_then(|l| l.pre_stop.as_ref())
                    .and_then(|p| p.exec.clone());
                command.map_or(0, |exec| match exec.command.unwrap_or_default().as_slice() {
                    [sleep, seconds] if sleep == "sleep" => seconds.parse::<u64>().unwrap(),
                    other => panic!("{other:?} is not understood here"),
                })
            };
            // A sidecar ends when the others have.
            let before: u64 = if is_sidecar(container) {
                pod.spec.containers.iter().map(pause).max().unwrap_or(0)
            } else {
                pause(container)
            };
            let needed = before + config.drain_grace.as_secs() + CLOSING_SECONDS;
            assert!(needed <= grace, "{}: {needed} s are needed, the kill comes after {grace}", pod.workload);
            if !is_sidecar(container) {
                assert!(before > 0, "{}: whoever finds it by a service gets an error", pod.workload);
            }
        }
    }
}

#[test]
fn sockets_and_ports_are_the_ones_the_daemon_and_its_clients_look_for() {
    let usual = &Config::default().listen[0];
    for overlay in overlays() {
        for (pod, container, config) in overlay.daemons() {
            assert!(config.listen.contains(usual), "{}: the tool does not find it", pod.workload);
            for listen in &config.listen {
                match listen {
                    Listen::Unix(path) => {
                        let volume = pod.volume_of(container, path.to_str().unwrap());
                        assert!(volume.empty_dir.is_some() || volume.host_path.is_some(), "{}", pod.workload);
                    }
                    Listen::Tcp(at) => panic!("{}: {at} is not encrypted", pod.workload),
                    Listen::Tls(at) => {
                        assert!(at.to_string().ends_with(&format!(":{TCP_PORT}")), "{}: {at}", pod.workload);
                        assert_eq!(
                            port_number(container, &IntOrString::String("tls".into())),
                            i32::from(TCP_PORT)
                        );
                    }
                }
            }
        }
    }
}

/// Where the engine of this pod looks for its daemon.
fn address_of(pod: &Pod) -> Address {
    let engine = pod.spec.containers.iter().find(|container| container.name == "vllm").expect("an engine");
    let arguments = engine.args.as_ref().unwrap();
    let at = arguments.iter().position(|argument| argument == "--kv-transfer-config").expect("the connector");
    let config: Value = serde_json::from_str(&arguments[at + 1]).expect("JSON");
    assert_eq!(
        config["kv_load_failure_policy"], "recompute",
        "{}: a lost chunk would fail a request",
        pod.workload
    );
    let extra = &config["kv_connector_extra_config"];
    for file in ["ca", "cert", "key"].iter().filter_map(|key| extra["tls"][key].as_str()) {
        assert!(pod.volume_of(engine, file).secret.is_some(), "{}: {file} is in no secret", pod.workload);
    }
    let path = engine
        .env
        .iter()
        .flatten()
        .find(|variable| variable.name == "PYTHONPATH")
        .expect("a path to the connector");
    let copies =
        pod.spec.init_containers.iter().flatten().find(|container| container.name == "connector").unwrap();
    let command = copies.command.as_ref().unwrap();
    let copied = format!("{}{}", command[3], command[2].rsplit_once('/').unwrap().1);
    assert_eq!(path.value, Some(copied), "{}: the connector is somewhere else", pod.workload);
    extra["address"].as_str().expect("an address").parse().expect("an address that the client takes")
}

#[test]
fn each_engine_finds_its_daemon() {
    for (engines, daemons) in [
        ("overlays/sidecar", "overlays/sidecar"),
        ("examples/vllm-node", "overlays/node"),
        ("examples/vllm-shared", "overlays/shared"),
    ] {
        let (engines, daemons) = (Overlay::load(engines), Overlay::load(daemons));
        let (there, container, config) = &daemons.daemons()[0];
        let engine =
            engines.pods.iter().find(|pod| pod.spec.containers.iter().any(|c| c.name == "vllm")).unwrap();
        let address = address_of(engine).to_string();
        if let Some(path) = address.strip_prefix("unix:") {
            assert!(config.listen.contains(&Listen::Unix(path.into())), "{address}");
            let vllm = engine.spec.containers.iter().find(|c| c.name == "vllm").unwrap();
            let (mine, theirs) = (engine.volume_of(vllm, path), there.volume_of(container, path));
            assert_eq!(mine.empty_dir, theirs.empty_dir, "{address}");
            assert_eq!(
                mine.host_path.as_ref().map(|h| &h.path),
                theirs.host_path.as_ref().map(|h| &h.path),
                "{address}"
            );
            let user = |pod: &Pod| pod.spec.security_context.as_ref().and_then(|context| context.run_as_user);
            assert_eq!(user(engine), user(there), "shared memory is for the daemon's own user");
        } else {
            let name = address.strip_prefix("tls://").unwrap().rsplit_once(':').unwrap();
            assert_eq!(name.1, TCP_PORT.to_string());
            let service = daemons
                .services
                .iter()
                .find(|s| name.0.split('.').next() == s.metadata.name.as_deref())
                .unwrap();
            assert_eq!(service.spec.as_ref().unwrap().ports.as_ref().unwrap()[0].port, i32::from(TCP_PORT));
            let mut names = daemons.certificates.iter().flat_map(|certificate| &certificate.spec.dns_names);
            assert!(names.any(|known| known == name.0), "no certificate has {}", name.0);
            let policy = daemons.policies[0].spec.as_ref().unwrap();
            let text = serde_json::to_string(policy).unwrap();
            let (key, value) = engine.labels.iter().find(|(key, _)| key.starts_with("tender/")).unwrap();
            assert!(text.contains(&format!("\"{key}\":\"{value}\"")), "the policy keeps it out");
        }
    }
}

#[test]
fn daemons_know_each_other_by_a_name_of_their_certificate() {
    for folder in ["overlays/shared", "overlays/shared-external"] {
        let overlay = Overlay::load(folder);
        let (pod, container, config) = &overlay.daemons()[0];
        let tls = config.tls.as_ref().expect("certificates");
        for file in [&tls.cert, &tls.key, tls.client_ca.as_ref().expect("clients show certificates")] {
            let volume = pod.volume_of(container, file.to_str().unwrap());
            let secret = volume.secret.as_ref().expect("a secret").secret_name.clone().unwrap();
            assert!(
                overlay.certificates.iter().any(|c| c.spec.secret_name == secret),
                "nobody makes {secret}"
            );
        }
        let peers = config.peers.as_ref().expect("a directory");
        let Some(Listen::Tls(advertised)) = &peers.advertise else { panic!("{:?}", peers.advertise) };
        let host = HostPort::as_str(advertised).rsplit_once(':').unwrap().0;
        let (_, domain) = host.split_once('.').unwrap();
        let certificate = overlay.certificates.iter().find(|c| c.metadata.name == "tenderd").unwrap();
        assert!(
            certificate.spec.dns_names.contains(&format!("*.{domain}")),
            "{host} is not in the certificate"
        );
        assert!(certificate.spec.usages.contains(&crds::Usage::ServerAuth));
        assert!(certificate.spec.usages.contains(&crds::Usage::ClientAuth), "it shows it to the others");
        let headless = overlay
            .services
            .iter()
            .find(|s| domain.starts_with(&format!("{}.", s.metadata.name.as_deref().unwrap())));
        let spec = headless.expect("the service that gives pods their names").spec.as_ref().unwrap();
        assert_eq!(spec.cluster_ip.as_deref(), Some("None"));
    }
}

#[test]
fn all_connections_of_an_engine_come_to_one_daemon_of_a_pool() {
    for folder in ["overlays/shared", "overlays/shared-external"] {
        let overlay = Overlay::load(folder);
        let service = overlay.services.iter().find(|s| s.metadata.name.as_deref() == Some("tenderd-engines"));
        let spec = service.expect("the service of engines").spec.as_ref().unwrap();
        assert_eq!(spec.session_affinity.as_deref(), Some("ClientIP"), "{folder}");
        let by_address = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
        assert_eq!(by_address.and_then(|it| it.timeout_seconds), Some(86_400), "{folder}");
    }
}

#[test]
fn services_budgets_policies_and_scrapes_find_their_pods() {
    for overlay in overlays() {
        let name = &overlay.folder;
        for service in &overlay.services {
            let spec = service.spec.as_ref().unwrap();
            let pods = overlay.selected(spec.selector.as_ref().unwrap());
            assert!(!pods.is_empty(), "{name}: a service of nobody: {service:?}");
            for port in spec.ports.iter().flatten() {
                let target = port.target_port.as_ref().expect("a named port");
                assert!(pods.iter().all(|pod| has_port(pod, target)), "{name}: {target:?}");
            }
        }
        for budget in &overlay.budgets {
            let by = budget.spec.as_ref().unwrap().selector.as_ref().unwrap().match_labels.clone().unwrap();
            assert!(!overlay.selected(&by).is_empty(), "{name}: a budget of nobody");
        }
        // A budget counts by its workload's scale, which a DaemonSet does not have.
        assert_eq!(overlay.budgets.is_empty(), name == "overlays/node", "{name}");
        for policy in &overlay.policies {
            let spec = policy.spec.as_ref().unwrap();
            let pods = overlay.selected(&spec.pod_selector.as_ref().unwrap().match_labels.clone().unwrap());
            assert!(!pods.is_empty(), "{name}: a policy for nobody");
            for port in spec.ingress.iter().flatten().flat_map(|rule| rule.ports.iter().flatten()) {
                let port = port.port.as_ref().unwrap();
                assert!(
                    pods.iter().any(|pod| has_port(pod, port)),
                    "{name}: {port:?} is let in, and nobody is there"
                );
            }
        }
        let covered = |pod: &Pod| {
            overlay.policies.iter().any(|policy| {
                let by = policy
                    .spec
                    .as_ref()
                    .unwrap()
                    .pod_selector
                    .as_ref()
                    .unwrap()
                    .match_labels
                    .clone()
                    .unwrap();
                by.iter().all(|(key, value)| pod.labels.get(key) == Some(value))
            })
        };
        assert!(overlay.pods.iter().all(covered), "{name}: a pod without a policy");
        let [monitor] = overlay.monitors.as_slice() else { panic!("{name}: no scrape") };
        let endpoint = &monitor.spec.endpoints[0];
        assert_eq!(endpoint.path, METRICS_PATH);
        let scraped = overlay.services.iter().find(|service| {
            let labels = service.metadata.labels.clone().unwrap_or_default();
            monitor
                .spec
                .selector
                .match_labels
                .iter()
                .all(|(key, value)| labels.get(key).map(String::as_str) == value.as_str())
        });
        let spec = scraped.expect("a service that is scraped").spec.as_ref().unwrap();
        let port = spec
            .ports
            .iter()
            .flatten()
            .find(|port| port.name.as_ref() == Some(&endpoint.port))
            .expect("its port");
        assert_eq!(port.port, i32::from(ADMIN_PORT));
        assert_eq!(spec.publish_not_ready_addresses, Some(true), "one that is not ready is seen too");
        let seen = overlay.selected(spec.selector.as_ref().unwrap());
        for (pod, ..) in overlay.daemons() {
            assert!(
                seen.iter().any(|seen| seen.workload == pod.workload),
                "{name}: {} is not scraped",
                pod.workload
            );
        }
    }
}

fn has_port(pod: &Pod, port: &IntOrString) -> bool {
    let mut ports = pod.all().flat_map(|container| container.ports.iter().flatten());
    match port {
        IntOrString::Int(number) => ports.any(|port| port.container_port == *number),
        IntOrString::String(name) => ports.any(|port| port.name.as_ref() == Some(name)),
    }
}

#[test]
fn the_image_is_of_this_version_and_its_user_is_the_one_of_the_manifests() {
    let dockerfile = std::fs::read_to_string(kustomize::root().join("../Dockerfile")).unwrap();
    let image = format!("localhost/tender:{}", env!("CARGO_PKG_VERSION"));
    let mut seen = 0;
    each_container(|pod, container, name| {
        if ["tenderd", "connector", "folders"].contains(&container.name.as_str()) {
            assert_eq!(container.image.as_ref(), Some(&image), "{name}");
            let user = pod.spec.security_context.as_ref().and_then(|context| context.run_as_user).unwrap();
            assert!(
                dockerfile.contains(&format!("\nUSER {user}:{user}\n")),
                "{name}: the image runs as somebody else"
            );
            seen += 1;
        }
        if container.name == "connector" {
            let from = &container.command.as_ref().unwrap()[2];
            assert!(dockerfile.contains(&format!(" {from}\n")), "{name}: {from} is not in the image");
        }
    });
    assert!(seen > 0);
    assert!(dockerfile.contains(&format!("ARG VERSION={}\n", env!("CARGO_PKG_VERSION"))));
}
