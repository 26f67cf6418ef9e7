//! Tests the completions of bash with the file that `ubtrfs generate` writes.

use std::process::Command;

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::scratch_dir;

use crate::{success, ubtrfs};

/// Prints the completions for the last word in a line, as bash requests them: it divides words at
/// white space, and makes `=` and `:` words of their own. `$1` is the file, `$2` the line.
const COMPLETE: &str = r#"
    source "$1"
    COMP_LINE=$2 COMP_POINT=${#2}
    spaced=${2//=/ = }
    read -ra COMP_WORDS <<< "${spaced//:/ : }"
    case $2 in *[[:space:]]) COMP_WORDS+=('') ;; esac
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    word=${COMP_WORDS[COMP_CWORD]}
    case $2 in *[=:]) word= ;; esac
    registered=$(complete -p ubtrfs)
    [[ $registered =~ -F\ ([a-z_]+) ]]
    "${BASH_REMATCH[1]}" ubtrfs "$word" "${COMP_WORDS[COMP_CWORD - 1]}"
    echo "${COMPREPLY[@]}"
"#;

#[test]
fn bash_completes_profiles_checksums_features_and_mount_options() {
    require!(Need::Tool("bash"));
    let dir = scratch_dir();
    success(&ubtrfs(&["generate".as_ref(), dir.path().as_os_str()]));
    let file = dir.path().join("bash-completion/completions/ubtrfs");
    let complete = |line: &str| {
        let output = Command::new("bash").args(["--norc", "-c", COMPLETE, "bash"]).arg(&file).arg(line).output();
        success(&output.unwrap()).trim().to_owned()
    };
    for (line, offered) in [
        ("ubtrfs moun", "mount"),
        ("ubtrfs mkfs -d ra", "raid0 raid1 raid1c3 raid1c4 raid10"),
        ("ubtrfs mkfs -d single --metadata d", "dup"),
        ("ubtrfs mkfs --compress z", "zlib zstd"),
        ("ubtrfs mount -o noatim", "noatime"),
        ("ubtrfs mount --options ro,subv", "ro,subvol= ro,subvolid="),
        ("ubtrfs mount -o ro,compress=z", "zlib zstd"),
        ("ubtrfs mount -o ro,compress=", "zlib lzo zstd no"),
        ("ubtrfs mount -o compress=zstd,noat", "zstd,noatime"),
        ("ubtrfs mount -o rescue=ignoreb", "ignorebadroots"),
        ("ubtrfs shell -o degr", "degraded"),
        ("ubtrfs mkfs -O squ", "squota"),
        ("ubtrfs mkfs --features squota,^no-", "squota,^no-holes"),
    ] {
        assert_eq!(complete(line), offered, "{line}");
    }
    // Each algorithm that is offered can be used for a volume.
    let image = dir.path().join("image");
    let sums = complete("ubtrfs mkfs --csum ");
    assert_eq!(sums.split(' ').count(), 4, "{sums}");
    for sum in sums.split(' ') {
        success(&ubtrfs(&["mkfs", "-f", "--size", "128M", "--csum", sum, image.to_str().unwrap()]));
    }
}
