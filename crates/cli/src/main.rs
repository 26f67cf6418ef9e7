//! The ubtrfs command.

#![warn(clippy::print_stdout, clippy::print_stderr, reason = "say() and note!() do not panic")]

mod about_volume;
mod add;
mod advice;
mod args;
mod away;
mod balance;
mod browse;
mod check;
mod check_status;
mod commits;
mod confirm;
mod control;
mod defragment;
mod describe;
mod device;
mod devices;
mod diff;
mod du;
mod edit;
mod failure;
mod fsck;
mod generate;
mod history;
mod holders;
mod host;
mod image;
mod info;
mod ioctls;
mod json;
mod label;
mod looking;
mod members;
mod merge;
mod mkfs;
mod mount;
mod mount_table;
mod other_contents;
mod output;
mod partitions;
mod passed_over;
mod path;
mod place;
mod problems;
mod process;
mod reading;
mod remedy;
mod remove;
mod repair;
mod replace;
mod report;
mod rescue;
mod resize;
mod resource_limits;
mod restore;
mod scrub;
mod scrub_found;
mod scrub_record;
mod server_process;
mod shell;
mod show;
mod signals;
mod size;
mod spool;
mod stats;
mod stream;
mod subvolume;
mod tree;
mod trees;
mod trust;
mod umount;
mod usage;
mod volume_at;
mod watch;
mod which_device;

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::filesystem::FilesystemCommand;
use args::{Arguments, Command, MkfsAlone};

/// A server allocates and frees much at each commit, in many threads; this allocator returns memory
/// to the system.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    resource_limits::fail_at_file_size();
    if mount::helper::is_called(std::env::args_os().next().as_ref()) {
        return mount::helper::main();
    }
    let name = std::env::args_os().next();
    match name.as_deref().and_then(|name| Path::new(name).file_name()).and_then(|name| name.to_str()) {
        Some("fsck.ubtrfs" | "fsck.fuse.ubtrfs") => return fsck::main(),
        Some("mkfs.btrfs") => return mkfs::main_as_mkfs_btrfs(),
        Some("mkfs.ubtrfs") => return output::end(mkfs::run(&MkfsAlone::parse().mkfs), failure::FAILED),
        _ => {}
    }
    let words = args::filesystem::with_algorithms_apart(std::env::args_os());
    let words = args::balance::with_filters_apart(words.into_iter()).collect();
    let words = args::in_volume::with_images_joined(&mut Arguments::command(), words, place::classify);
    let arguments = Arguments::parse_from(words);
    let done = match &arguments.command {
        Command::Mkfs(arguments) => mkfs::run(arguments),
        Command::Mount(arguments) => mount::run(arguments),
        Command::Umount(arguments) => umount::run(arguments),
        Command::Sync(arguments) => control::sync(arguments),
        Command::Stats(arguments) => stats::run(arguments),
        Command::Check(arguments) => check::run(arguments),
        Command::Rescue(arguments) => rescue::run(arguments),
        Command::Restore(arguments) => restore::run(arguments),
        Command::Image(arguments) => image::run(arguments),
        Command::Info(arguments) => info::run(arguments),
        Command::History(arguments) => history::run(arguments),
        Command::Label(arguments) => label::run(arguments),
        Command::Subvolume(arguments) => subvolume::run(arguments),
        Command::Property(arguments) => subvolume::property(arguments),
        Command::Filesystem(arguments) => match &arguments.what {
            FilesystemCommand::Defragment(arguments) => defragment::run(arguments),
            FilesystemCommand::Du(arguments) => du::run(arguments),
            FilesystemCommand::Df(place) => devices::df(place),
            FilesystemCommand::Usage(place) => devices::usage(place),
            FilesystemCommand::Resize(arguments) => resize::run(arguments),
        },
        Command::Device(arguments) => devices::run(arguments),
        Command::Balance(arguments) => balance::run(arguments),
        Command::Replace(arguments) => replace::run(arguments),
        Command::Defragment(arguments) => defragment::run(arguments),
        Command::Scrub(arguments) => scrub::run(arguments),
        Command::Shell(arguments) => shell::run(arguments),
        Command::Tree(arguments) => tree::run(arguments),
        Command::Ls(arguments) => browse::ls(arguments),
        Command::Stat(arguments) => browse::stat(arguments),
        Command::Cat(arguments) => browse::cat(arguments),
        Command::Diff(arguments) => diff::run(arguments),
        Command::Merge(arguments) => merge::run(arguments),
        Command::Edit(command) => edit::run(command),
        Command::Apply(arguments) => edit::apply(arguments),
        Command::Export(arguments) => edit::export(arguments),
        Command::Import(arguments) => edit::import(arguments),
        Command::Generate(arguments) => generate::run(arguments),
        Command::AskAs(arguments) => control::answer_as(arguments),
    };
    // These commands have a status of their own for what they have found.
    let unwritten = match &arguments.command {
        Command::Check(_) => check_status::NOT_CHECKED,
        Command::Diff(_) | Command::Merge(_) => failure::TROUBLE,
        _ => failure::FAILED,
    };
    output::end(done, unwritten)
}
