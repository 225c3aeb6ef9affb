// SPDX-License-Identifier: Apache-2.0

//! What Docker is asked for a copy of a container, from what it says of the original. Pure.
//!
//! Everything that was chosen for the original is chosen again, but what only one container
//! can have: a host name that Docker made of its id, addresses, aliases, published ports.

use serde_json::{Map, Value, json};

/// How much of a container's id Docker uses as a name.
const SHORT: usize = 12;

/// The body of a request to create, from `inspect` of the original.
pub(super) fn of_copy(original: &Value, image: &str) -> Value {
    let id = original["Id"].as_str().unwrap_or_default();
    let mut config = original["Config"].clone();
    config["Image"] = json!(image);
    if let Some(config) = config.as_object_mut() {
        if is_short(&config["Hostname"], id) {
            config.remove("Hostname");
        }
        config.remove("MacAddress");
        // Where there is no bridge, dockerd says so at the first start, after it has made what
        // is mounted at /etc/hosts: then it was not chosen.
        if original["HostsPath"]
            .as_str()
            .is_some_and(|path| !path.is_empty())
        {
            config.remove("NetworkDisabled");
        }
    }
    let mut host = original["HostConfig"].clone();
    if let Some(host) = host.as_object_mut() {
        host.remove("ContainerIDFile");
        let ports = host.get_mut("PortBindings").and_then(Value::as_object_mut);
        ports
            .into_iter()
            .flatten()
            .for_each(|(_, all)| any_port(all));
    }
    let networks = original["NetworkSettings"]["Networks"].as_object();
    let endpoints: Map<String, Value> = networks
        .into_iter()
        .flatten()
        // Named by default, on a host without that network.
        .filter(|(_, endpoint)| {
            endpoint["NetworkID"]
                .as_str()
                .is_some_and(|id| !id.is_empty())
        })
        .map(|(name, endpoint)| (name.clone(), of_endpoint(endpoint, id)))
        .collect();
    config["HostConfig"] = host;
    if !endpoints.is_empty() {
        config["NetworkingConfig"] = json!({ "EndpointsConfig": endpoints });
    }
    config
}

fn is_short(name: &Value, id: &str) -> bool {
    name.as_str().is_some() && name.as_str() == id.get(..SHORT)
}

/// A port of the host is one container's; the copy gets one that is free.
fn any_port(bindings: &mut Value) {
    for binding in bindings.as_array_mut().into_iter().flatten() {
        binding["HostPort"] = json!("");
    }
}

/// The same network, with an address of its own.
fn of_endpoint(endpoint: &Value, id: &str) -> Value {
    let mut aliases = endpoint["Aliases"].clone();
    if let Some(aliases) = aliases.as_array_mut() {
        aliases.retain(|alias| !is_short(alias, id));
    }
    json!({
        "Aliases": aliases,
        "Links": endpoint["Links"],
        "DriverOpts": endpoint["DriverOpts"],
    })
}

/// Where what a container writes goes to, if Docker tells.
pub(super) fn upper(container: &Value) -> Option<&str> {
    container["GraphDriver"]["Data"]["UpperDir"].as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn original() -> Value {
        let id = "0123456789abcdef".repeat(4);
        json!({
            "Id": id, "HostsPath": "/var/lib/docker/containers/x/hosts",
            "Config": {
                "Hostname": &id[..12], "Image": "agent", "Env": ["A=1"], "Tty": true,
                "MacAddress": "02:42:ac:11:00:02", "NetworkDisabled": true,
            },
            "HostConfig": {
                "ContainerIDFile": "/tmp/x",
                "Runtime": "io.containerd.crab.v1",
                "Memory": 1000,
                "PortBindings": {"80/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8080"}]},
            },
            "NetworkSettings": {"Networks": {"bridge": {"NetworkID": ""}, "net": {
                "NetworkID": "1", "Aliases": [&id[..12], "web"], "IPAddress": "172.18.0.2",
                "MacAddress": "02:42:ac:12:00:02",
                "IPAMConfig": {"IPv4Address": "172.18.0.2"},
            }}},
            "GraphDriver": {"Data": {"UpperDir": "/var/lib/docker/overlay2/x/diff"}},
        })
    }

    #[test]
    fn what_was_chosen_is_chosen_again_and_what_is_unique_is_not() {
        let copy = of_copy(&original(), "sha256:1");
        assert_eq!(copy["Image"], "sha256:1");
        assert_eq!(copy["Env"], json!(["A=1"]));
        assert_eq!(copy["Tty"], true);
        for gone in ["Hostname", "MacAddress", "NetworkDisabled"] {
            assert!(copy.get(gone).is_none(), "{gone}");
        }
        assert_eq!(copy["HostConfig"]["Memory"], 1000);
        assert!(copy["HostConfig"].get("ContainerIDFile").is_none());
        assert_eq!(
            copy["HostConfig"]["PortBindings"]["80/tcp"][0],
            json!({"HostIp": "127.0.0.1", "HostPort": ""})
        );
        let endpoints = &copy["NetworkingConfig"]["EndpointsConfig"];
        assert!(endpoints.get("bridge").is_none());
        let endpoint = &endpoints["net"];
        assert_eq!(endpoint["Aliases"], json!(["web"]));
        assert!(endpoint.get("IPAMConfig").is_none() && endpoint.get("MacAddress").is_none());
    }

    #[test]
    fn a_host_name_that_was_chosen_stays() {
        let mut original = original();
        original["Config"]["Hostname"] = json!("agent");
        assert_eq!(of_copy(&original, "x")["Hostname"], "agent");
        assert_eq!(upper(&original), Some("/var/lib/docker/overlay2/x/diff"));
        assert_eq!(upper(&json!({"GraphDriver": null})), None);
    }
}
