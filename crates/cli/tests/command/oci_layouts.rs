//! Makes OCI layouts, blob by blob.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::fixtures::sha256;

pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const CONFIGURATION: &str = "application/vnd.oci.image.config.v1+json";
pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// A layout that is being made.
pub struct Layout {
    pub path: PathBuf,
}

impl Layout {
    pub fn new(path: &Path) -> Self {
        fs::create_dir_all(path.join("blobs/sha256")).unwrap();
        fs::write(path.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Self { path: path.into() }
    }

    /// Returns the path of a blob.
    pub fn file_of(&self, descriptor: &Value) -> PathBuf {
        self.path.join("blobs/sha256").join(descriptor["digest"].as_str().unwrap().trim_start_matches("sha256:"))
    }

    /// Adds a blob, and returns its descriptor.
    pub fn blob(&self, media_type: &str, bytes: &[u8]) -> Value {
        let digest = sha256(bytes);
        fs::write(self.path.join("blobs/sha256").join(&digest), bytes).unwrap();
        json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len() })
    }

    pub fn document(&self, media_type: &str, document: &Value) -> Value {
        self.blob(media_type, document.to_string().as_bytes())
    }

    /// Adds a layer, compressed by a program; with an empty name it is not compressed.
    pub fn layer(&self, archive: &[u8], program: &str) -> Value {
        let (ending, bytes) = match program {
            "" => (String::new(), archive.to_vec()),
            program => (format!("+{program}"), packed(program, archive)),
        };
        self.blob(&format!("{LAYER}{ending}"), &bytes)
    }

    /// Adds an image of layers, with the digests of their uncompressed archives.
    pub fn image(&self, architecture: &str, layers: &[Value], plain: &[String]) -> Value {
        let config = json!({ "os": "linux", "architecture": architecture, "config": {},
            "rootfs": { "type": "layers", "diff_ids": plain } });
        let config = self.document(CONFIGURATION, &config);
        let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers });
        self.document(MANIFEST, &manifest)
    }

    /// Adds an image of archives, none of them compressed.
    pub fn image_of(&self, archives: &[Vec<u8>]) -> Value {
        let layers: Vec<Value> = archives.iter().map(|archive| self.layer(archive, "")).collect();
        self.image("amd64", &layers, &plain_digests(archives))
    }

    /// Writes the index.
    pub fn index(&self, manifests: &[Value]) {
        let index = json!({ "schemaVersion": 2, "manifests": manifests });
        fs::write(self.path.join("index.json"), index.to_string()).unwrap();
    }

    /// Returns the word that names an image of the layout.
    pub fn word(&self, name: &str) -> String {
        let path = self.path.display();
        if name.is_empty() { format!("oci:{path}") } else { format!("oci:{path}:{name}") }
    }
}

pub fn plain_digests(archives: &[Vec<u8>]) -> Vec<String> {
    archives.iter().map(|archive| format!("sha256:{}", sha256(archive))).collect()
}

/// Returns the descriptor with a name for the index.
pub fn named(descriptor: &Value, name: &str) -> Value {
    let mut named = descriptor.clone();
    named["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
    named
}

/// Returns the descriptor with a platform.
pub fn for_platform(descriptor: &Value, architecture: &str, variant: Option<&str>) -> Value {
    let mut for_platform = descriptor.clone();
    for_platform["platform"] = json!({ "os": "linux", "architecture": architecture });
    if let Some(variant) = variant {
        for_platform["platform"]["variant"] = json!(variant);
    }
    for_platform
}

/// Returns the output of a program that gets these bytes as its input.
fn packed(program: &str, bytes: &[u8]) -> Vec<u8> {
    let mut command = Command::new(program);
    let mut child = command.arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&bytes).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{program}");
    output.stdout
}
