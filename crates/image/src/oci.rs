//! Imports whole OCI images: takes the layers of an image from an [OCI layout](crate::oci_layout)
//! in order, and checks each against all that the image says about it (the image specification).

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use ubtrfs::{Filesystem, InodeId};

use crate::decompress::decompressed;
use crate::error::{Error, Obstacle, Result, outside};
use crate::import::{ImportOptions, Layer, import_plain};
use crate::job::Job;
use crate::oci_layout::{Blob, Descriptor, Digest, Hashed, Layout};

/// How many indexes may be nested. The image specification nests only two.
const MAX_INDEXES: u32 = 4;

const MANIFESTS: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];
const INDEXES: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
const CONFIGURATIONS: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
/// The types of layers. Their first bytes say how they are compressed.
const LAYERS: [&str; 6] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
];
/// The annotation that has an image's name in its layout.
const NAME: &str = "org.opencontainers.image.ref.name";

/// A reference to an image: a layout, and the name of the image in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OciReference {
    /// The layout: a directory, or a tar archive.
    pub layout: PathBuf,
    /// Whether the layout is an archive.
    pub is_archive: bool,
    /// The name of the image. A layout with one image needs none.
    pub name: Option<String>,
}

impl OciReference {
    /// Parses a word that begins with `oci:` or `oci-archive:`; `None` for others. As with skopeo,
    /// the image's name begins behind the first colon of the rest; but if the whole rest is the
    /// name of a file, it is the layout.
    pub fn parse(word: &Path) -> Option<Self> {
        let bytes = word.as_os_str().as_bytes();
        let (rest, is_archive) = match bytes.strip_prefix(b"oci:") {
            Some(rest) => (rest, false),
            None => (bytes.strip_prefix(b"oci-archive:")?, true),
        };
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        match rest.iter().position(|byte| *byte == b':').filter(|_| !path(rest).exists()) {
            Some(at) => {
                let name = Some(String::from_utf8_lossy(&rest[at + 1..]).into_owned());
                Some(Self { layout: path(&rest[..at]), is_archive, name })
            }
            None => Some(Self { layout: path(rest), is_archive, name: None }),
        }
    }
}

/// The platform of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    os: String,
    architecture: String,
    variant: Option<String>,
}

impl std::str::FromStr for Platform {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let parts: Vec<&str> = text.split('/').collect();
        match parts[..] {
            [os, architecture, ref rest @ ..] if rest.len() < 2 && parts.iter().all(|part| !part.is_empty()) => {
                let variant = rest.first().map(|variant| (*variant).to_owned());
                Ok(Self { os: os.to_owned(), architecture: architecture.to_owned(), variant })
            }
            _ => Err(format!("'{text}' is not OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT, as in linux/arm64")),
        }
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

impl Platform {
    /// The platform of this program. Images use Go's names of architectures.
    fn own() -> Self {
        let is_little = cfg!(target_endian = "little");
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "x86" => "386",
            "aarch64" => "arm64",
            "powerpc64" if is_little => "ppc64le",
            "powerpc64" => "ppc64",
            "mips64" if is_little => "mips64le",
            "mips" if is_little => "mipsle",
            "loongarch64" => "loong64",
            other => other,
        };
        Self { os: "linux".to_owned(), architecture: architecture.to_owned(), variant: None }
    }

    fn is(&self, os: &str, architecture: &str, variant: Option<&str>) -> bool {
        self.os == os
            && self.architecture == architecture
            && self.variant.as_deref().is_none_or(|wanted| variant == Some(wanted))
    }

    fn is_of(&self, descriptor: &Descriptor) -> bool {
        let of = descriptor.platform.as_ref();
        of.is_some_and(|of| self.is(&of.os, &of.architecture, of.variant.as_deref()))
    }
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
    #[serde(flatten)]
    kind: Kind,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
    #[serde(flatten)]
    kind: Kind,
}

/// The fields by which a document's type can be checked, besides those that are read from it. A
/// document that is both an index and a manifest would be a different image for different readers.
#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "mediaType")]
    media_type: Option<String>,
    manifests: Option<IgnoredAny>,
    layers: Option<IgnoredAny>,
}

impl Kind {
    /// Returns an error if the document is not of the type that the descriptor says.
    fn check(&self, layout: &Layout, of: &Descriptor) -> Result<()> {
        let is_other = self.media_type.as_ref().is_some_and(|own| *own != of.media_type);
        if is_other || self.manifests.is_some() || self.layers.is_some() {
            let (digest, media_type) = (of.digest.escape_debug(), of.media_type.escape_debug());
            return Err(layout.refused(&format!("{digest} is not only what '{media_type}' is")));
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Configuration {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    variant: Option<String>,
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<String>,
}

/// A layer, and the digest of its decompressed content.
#[derive(Debug)]
struct OciLayer {
    blob: Descriptor,
    plain: Digest,
}

/// An image in a layout.
#[derive(Debug)]
pub struct OciImage {
    layout: Layout,
    digest: Digest,
    layers: Vec<OciLayer>,
}

impl OciImage {
    /// Finds an image. If there are several with one name, or in one index, the one for the
    /// platform is taken; `None` means the platform that this program runs on.
    pub fn open(reference: &OciReference, platform: Option<&Platform>) -> Result<Self> {
        let open = if reference.is_archive { Layout::open_archive } else { Layout::open };
        let layout = open(&reference.layout)?;
        let found = manifest_of(&layout, reference.name.as_deref(), platform)?;
        let digest = found.digest()?;
        let Manifest { config, layers, kind } = layout.document(&found)?;
        kind.check(&layout, &found)?;
        check_type(&layout, &config, &CONFIGURATIONS, "is not the configuration of an image")?;
        let of: Configuration = layout.document(&config)?;
        if let Some(wanted) = platform
            // Many configurations leave the variant to the index.
            && !wanted.is(&of.os, &of.architecture, of.variant.as_deref().or(wanted.variant.as_deref()))
        {
            let (os, architecture) = (of.os.escape_debug(), of.architecture.escape_debug());
            return Err(layout.refused(&format!("the image is for {os}/{architecture}, not for {wanted}")));
        }
        let plain = of.rootfs.diff_ids;
        if plain.len() != layers.len() {
            let (has, says) = (layers.len(), plain.len());
            return Err(layout.refused(&format!("the image has {has} layers, and its configuration says {says}")));
        }
        let layers = layers.into_iter().zip(plain).map(|(blob, plain)| {
            check_type(&layout, &blob, &LAYERS, "is no layer that can be read")?;
            let wrong = || {
                layout.refused(&format!(
                    "the layer {} has the malformed digest '{}'",
                    blob.digest,
                    plain.escape_debug()
                ))
            };
            let plain = Digest::parse(&plain).ok_or_else(wrong)?;
            Ok(OciLayer { blob, plain })
        });
        let layers = layers.collect::<Result<_>>()?;
        Ok(Self { layout, digest, layers })
    }

    /// The digest of the manifest, which identifies the image.
    pub fn digest(&self) -> [u8; 32] {
        self.digest.0
    }

    /// The bytes of all layers when they are decompressed. This reads all of them.
    pub fn plain_bytes(&self) -> Result<u64> {
        let mut all = 0_u64;
        for layer in &self.layers {
            let bytes = self.read(layer, |plain| io::copy(plain, &mut io::sink()).map_err(outside("the layer")))?;
            all = all.saturating_add(bytes);
        }
        Ok(all)
    }

    /// Reads the image into a directory.
    pub fn import(&self, fs: &Arc<Filesystem>, dir: InodeId, options: ImportOptions, job: &mut Job<'_>) -> Result<()> {
        let options = ImportOptions { layer: Layer::Oci, ..options };
        self.layers
            .iter()
            .try_for_each(|layer| self.read(layer, |plain| import_plain(fs, dir, plain, options.clone(), job)))
    }

    /// Has a layer read, and checks its digests.
    fn read<T>(&self, layer: &OciLayer, read: impl FnOnce(&mut dyn Read) -> Result<T>) -> Result<T> {
        let about = |error: Error| match error {
            Error::Refused(why) => self.layout.refused(&format!("the layer {}: {why}", layer.blob.digest)),
            error => error,
        };
        let mut blob: Blob<'_> = self.layout.blob(&layer.blob)?;
        let (done, plain) = {
            let mut plain = Hashed::new(decompressed(&mut blob)?);
            let done = read(&mut plain).map_err(about)?;
            (done, plain.finish().map_err(outside("the layer"))?)
        };
        blob.finish()?;
        if plain != layer.plain {
            let digest = &layer.blob.digest;
            return Err(self.layout.refused(&format!("the layer {digest} is not what the configuration says it is")));
        }
        Ok(done)
    }
}

fn check_type(layout: &Layout, of: &Descriptor, known: &[&str], why: &str) -> Result<()> {
    if known.contains(&of.media_type.as_str()) {
        return Ok(());
    }
    let (digest, media_type) = (of.digest.escape_debug(), of.media_type.escape_debug());
    Err(layout.refused(&format!("{digest}, of the type '{media_type}', {why}")))
}

/// Finds the manifest of the image.
fn manifest_of(layout: &Layout, name: Option<&str>, platform: Option<&Platform>) -> Result<Descriptor> {
    let Index { manifests: mut left, .. } = layout.index()?;
    let names: BTreeSet<String> = left.iter().filter_map(|of| of.annotations.get(NAME).cloned()).collect();
    let shown = || {
        let names: Vec<String> = names.iter().map(|name| name.escape_debug().to_string()).collect();
        names.join(", ")
    };
    match name {
        Some(name) => {
            left.retain(|of| of.annotations.get(NAME).is_some_and(|has| has == name));
            if left.is_empty() {
                let name = name.escape_debug();
                let known =
                    if names.is_empty() { "none has a name".to_owned() } else { format!("there are {}", shown()) };
                return Err(layout.refused(&format!("no image has the name '{name}': {known}")));
            }
        }
        None if names.len() > 1 => {
            return Err(layout.refused(&format!("there are several images: add the name of one, of {}", shown())));
        }
        None => {}
    }
    for _ in 0..=MAX_INDEXES {
        let found = match &left[..] {
            [] => return Err(layout.refused("there is no image")),
            [one] => one.clone(),
            several => {
                let wanted = platform.cloned().unwrap_or_else(Platform::own);
                let found = several.iter().find(|of| wanted.is_of(of));
                found
                    .cloned()
                    .ok_or_else(|| layout.blocked(&format!("no image is for {wanted}"), of_platforms(several)))?
            }
        };
        if !INDEXES.contains(&found.media_type.as_str()) {
            check_type(layout, &found, &MANIFESTS, "is no image")?;
            return Ok(found);
        }
        let Index { manifests, kind } = layout.document(&found)?;
        kind.check(layout, &found)?;
        left = manifests;
    }
    Err(layout.refused(&format!("there are more than {MAX_INDEXES} indexes within each other")))
}

fn of_platforms(several: &[Descriptor]) -> Obstacle {
    let platforms: BTreeSet<String> = several
        .iter()
        .filter_map(|of| of.platform.as_ref())
        .map(|of| {
            let variant = of.variant.as_ref().map_or(String::new(), |variant| format!("/{variant}"));
            format!("{}/{}{variant}", of.os, of.architecture).escape_debug().to_string()
        })
        .collect();
    Obstacle::Platform { there: platforms.into_iter().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_a_layout_and_a_name() {
        let parse =
            |word: &str| OciReference::parse(Path::new(word)).map(|of| (of.layout.display().to_string(), of.name));
        assert_eq!(parse("oci:a/b"), Some(("a/b".into(), None)));
        assert_eq!(parse("oci:a:x/y:1"), Some(("a".into(), Some("x/y:1".into()))));
        assert_eq!(parse("oci-archive:a.tar:x"), Some(("a.tar".into(), Some("x".into()))));
        assert_eq!(parse("./oci:a"), None);
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("a:b");
        std::fs::create_dir(&odd).unwrap();
        assert_eq!(parse(&format!("oci:{}", odd.display())), Some((odd.display().to_string(), None)));
    }

    #[test]
    fn platforms_are_matched_by_what_was_asked_for() {
        let platform: Platform = "linux/arm".parse().unwrap();
        assert!(platform.is("linux", "arm", Some("v7")) && !platform.is("linux", "arm64", None));
        let platform: Platform = "linux/arm/v6".parse().unwrap();
        assert!(!platform.is("linux", "arm", Some("v7")) && !platform.is("linux", "arm", None));
        for wrong in ["linux", "linux/", "/arm", "a/b/c/d", ""] {
            assert!(wrong.parse::<Platform>().is_err(), "{wrong}");
        }
    }
}
