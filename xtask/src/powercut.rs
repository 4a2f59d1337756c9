//! `cargo xtask powercut`: power cuts on real file systems. Makes an image, mounts it through a loop device, and lets the
//! test `power_cut` of `kill_nine` write to it, shut the file system down as a power cut would, and look at what is left; on
//! ext4 and on XFS.
//!
//! Needs root, loop devices, `mkfs.ext4`, `mkfs.xfs` and `xfs_io` (Debian: `e2fsprogs`, `xfsprogs`). The device mapper is not
//! needed: the shutdown comes from the file system itself (`FS_IOC_SHUTDOWN`). What it does not model is a disk that loses or
//! reorders blocks which it said to have written and was not asked to flush; the file system in memory does.

use crate::tree::root;
use std::path::Path;
use std::process::{Command, Stdio};

const USAGE: &str = "usage: cargo xtask powercut [--rounds N] [ext4|xfs]...";

/// Runs `cargo xtask powercut`.
pub fn run(args: &[String]) -> Result<(), String> {
    let (mut rounds, mut systems) = ("60".to_owned(), Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--rounds" => rounds = args.next().ok_or(USAGE)?.clone(),
            "ext4" | "xfs" => systems.push(arg.as_str()),
            _ => return Err(USAGE.to_owned()),
        }
    }
    if systems.is_empty() {
        systems = vec!["ext4", "xfs"];
    }
    let missing: Vec<&str> =
        ["mount", "umount", "mkfs.ext4", "mkfs.xfs", "xfs_io"].into_iter().filter(|p| !is_there(p)).collect();
    if !missing.is_empty() || !Path::new("/dev/loop-control").exists() {
        return Err(format!("powercut needs root, loop devices, and these programs, which are missing: {missing:?}"));
    }
    let dir = root().join("target/powercut");
    std::fs::create_dir_all(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    for system in systems {
        on(system, &dir, &rounds)?;
    }
    Ok(())
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/sbin".into(), "/usr/sbin".into()]).any(|dir| dir.join(program).exists())
}

fn on(system: &str, dir: &Path, rounds: &str) -> Result<(), String> {
    let (image, mount) = (dir.join(system).with_extension("img"), dir.join(system));
    let (image_text, mount_text) = (image.display().to_string(), mount.display().to_string());
    std::fs::create_dir_all(&mount).map_err(|e| format!("cannot make {mount_text}: {e}"))?;
    let _ = Command::new("umount").arg(&mount).stderr(Stdio::null()).status(); // of a run that was broken off
    let file = std::fs::File::create(&image).map_err(|e| format!("cannot make {image_text}: {e}"))?;
    file.set_len(1 << 30).map_err(|e| format!("{image_text}: {e}"))?;
    let force = if system == "xfs" { "-f" } else { "-F" };
    call(Command::new(format!("mkfs.{system}")).args(["-q", force, &image_text]))?;
    call(Command::new("mount").args(["-o", "loop", &image_text, &mount_text]))?;
    println!("== {system}");
    let test = [
        "test",
        "--release",
        "-p",
        "kingtide",
        "--test",
        "process",
        "kill_nine::power_cut",
        "--",
        "--ignored",
        "--nocapture",
    ];
    let done = call(
        Command::new("cargo")
            .args(test)
            .current_dir(root())
            .env("KINGTIDE_POWER_IMAGE", &image)
            .env("KINGTIDE_POWER_MOUNT", &mount)
            .env("KINGTIDE_POWER_ROUNDS", rounds),
    );
    if done.is_ok() {
        call(Command::new("umount").arg(&mount))?;
        let _ = std::fs::remove_file(&image);
    } // else it is evidence
    done
}

fn call(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("{command:?}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} failed: {status}")) }
}
