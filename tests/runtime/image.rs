//! The image of every test container, written as an OCI layout. The probe is its only program.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

/// The image's name. The tests import the image and ask no registry.
pub(crate) const IMAGE: &str = "pinfold.test/probe:1";

fn digest(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A tar archive in memory.
struct Archive(tar::Builder<Vec<u8>>);

// === impl Archive ===

impl Archive {
    fn new() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }

    fn add(&mut self, path: &str, kind: tar::EntryType, mode: u32, bytes: &[u8]) {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(bytes.len() as u64);
        self.0.append_data(&mut header, path, bytes).unwrap();
    }

    fn file(&mut self, path: &str, bytes: &[u8]) {
        self.add(path, tar::EntryType::Regular, 0o755, bytes);
    }

    fn folder(&mut self, path: &str) {
        self.add(path, tar::EntryType::Directory, 0o755, &[]);
    }

    /// Adds a blob and returns its descriptor.
    fn blob(&mut self, kind: &str, bytes: &[u8]) -> Value {
        let digest = digest(bytes);
        self.file(&format!("blobs/sha256/{digest}"), bytes);
        json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{digest}"),
            "size": bytes.len(),
        })
    }

    fn bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

/// Writes the image as an archive for `ctr images import`. The default command, used by sandboxes, waits forever.
pub(crate) fn write(probe: &Path, to: &Path) {
    let mut layer = Archive::new();
    for folder in ["dev", "etc", "proc", "report", "sys", "tmp"] {
        layer.folder(folder);
    }
    layer.file("probe", &fs::read(probe).unwrap());
    let layer = layer.bytes();

    let mut image = Archive::new();
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/probe"], "Cmd": ["pause"], "Env": ["PATH=/"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", digest(&layer))]},
    });
    let config = image.blob("config.v1+json", config.to_string().as_bytes());
    let layer = image.blob("layer.v1.tar", &layer);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": [layer],
    });
    let mut manifest = image.blob("manifest.v1+json", manifest.to_string().as_bytes());
    manifest["annotations"] =
        json!({"io.containerd.image.name": IMAGE, "org.opencontainers.image.ref.name": "1"});
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    image.file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#);
    image.file("index.json", index.to_string().as_bytes());
    fs::write(to, image.bytes()).unwrap();
}
