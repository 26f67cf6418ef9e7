//! The commands of `docs/images.md` as they stand there.

use std::path::Path;
use std::process::{Command, Stdio};

/// Marks the block of commands below it as one that is run.
const MARK: &str = "<!-- recipe -->";

/// The indented blocks behind the marks, in their order.
fn recipes(page: &str) -> Vec<String> {
    let mut recipes = Vec::new();
    for part in page.split(MARK).skip(1) {
        let lines = part.trim_start_matches('\n').lines();
        let block = lines.take_while(|line| line.starts_with("    ") || line.is_empty());
        recipes.push(block.map(str::trim_start).collect::<Vec<_>>().join("\n"));
    }
    recipes
}

#[test]
fn all_commands_of_the_page_about_images_work() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images.md");
    let recipes = recipes(&std::fs::read_to_string(page).unwrap());
    assert!(recipes.len() >= 7, "{recipes:?}");
    let dir = tempfile::tempdir().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_ubtrfs"));
    let mut path = program.parent().unwrap().as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    // One shell for all, as who reads the page would have.
    let script = recipes.join("\n");
    let mut shell = Command::new("bash");
    shell.args(["-e", "-u", "-o", "pipefail", "-x", "-c", &script]).env("PATH", path);
    let output = shell.current_dir(dir.path()).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// The steps of the action, with its inputs as a workflow gives them; all but the build.
#[test]
fn the_action_makes_an_image() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/action/action.yml");
    let action = std::fs::read_to_string(page).unwrap();
    let (_, script) = action.split_once("run: |\n").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("ubtrfs/bin");
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::create_dir(dir.path().join("tree")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ubtrfs"), bin.join("ubtrfs")).unwrap();
    let inputs = [
        ("ROOTDIR", "tree"),
        ("IMAGE", "root.img"),
        ("OPTIONS", "--all-root --shrink"),
        ("SOURCE_DATE_EPOCH", ""),
        ("RUNNER_TEMP", dir.path().to_str().unwrap()),
    ];
    for (name, _) in inputs.iter().take(4) {
        assert!(action.contains(&format!("{name}: ${{{{ inputs.")), "{name}");
    }
    let output = Command::new("bash").args(["-e", "-c", script]).envs(inputs).current_dir(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
