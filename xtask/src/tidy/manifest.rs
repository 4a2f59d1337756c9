//! Rules for Cargo manifests: dependencies go down only, and each says why it is there; a crate is ready to be published, or says
//! that it is not to be.

use crate::report::Report;

/// The layers of ARCHITECTURE.md, lowest first: the line `base <- mem, vfs <- ...` of its first code block.
pub struct Layers(Vec<Vec<String>>);

impl Layers {
    /// Reads them.
    pub fn parse(architecture: &str) -> Option<Layers> {
        let line = architecture.lines().find(|l| l.contains("<-"))?;
        let name = |n: &str| n.replace(['(', ')'], " ").split_whitespace().next_back().map(str::to_owned);
        let layer = |l: &str| l.split(',').filter_map(name).collect::<Vec<_>>();
        // "keybench (and later kt, capi)": what comes later has its layer already.
        Some(Layers(line.split("<-").map(|l| layer(&l.replace("(and later", ","))).collect()))
    }

    fn rank(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|layer| layer.iter().any(|n| n == name))
    }
}

/// The name of a crate in ARCHITECTURE.md.
fn short(package: &str) -> &str {
    package.strip_prefix("kingtide-").unwrap_or(package)
}

/// Checks one manifest; `ours` are the packages of the workspace.
pub fn check(path: &str, text: &str, layers: &Layers, ours: &[String], report: &mut Report) {
    let package = package_name(text).unwrap_or_default();
    let rank = layers.rank(short(&package));
    let is_task = package == "xtask";
    if rank.is_none() && !is_task && !package.is_empty() {
        report.add(path, 0, &format!("crate `{package}` has no layer; add it to the first diagram of ARCHITECTURE.md"));
    }
    let mut section = String::new();
    let mut line_before = "";
    for (n, line) in text.lines().enumerate() {
        let before = std::mem::replace(&mut line_before, line);
        let trimmed = line.trim();
        if trimmed.starts_with('[') {
            section = trimmed.trim_matches(['[', ']']).to_owned();
        } else if section.ends_with("dependencies") && !section.starts_with("workspace") {
            let Some(name) = dependency(line) else { continue };
            if name == package {
                continue; // so that Cargo builds its libraries for its tests
            }
            let is_ours = ours.iter().any(|o| o == name);
            let below = layers.rank(short(name)).zip(rank).is_some_and(|(theirs, own)| theirs < own);
            if is_ours && !below {
                let message =
                    format!("`{package}` may not depend on `{name}`: dependencies go down only (ARCHITECTURE.md)");
                report.add(path, n, &message);
            } else if !is_ours && !before.trim().starts_with('#') {
                report.add(path, n, &format!("dependency `{name}` without a comment line above; say why it pays"));
            }
        }
    }
}

/// What the manifest of a published crate has beside what Cargo itself insists on.
const PUBLISHED: [&str; 5] = ["keywords = ", "categories = ", "readme = ", "include = ", "[package.metadata.docs.rs]"];

/// Checks that a crate can be published, or must not be.
pub fn publishable(path: &str, text: &str, report: &mut Report) {
    if text.lines().any(|l| l == "publish = false") || !text.contains("[package]") {
        return;
    }
    for field in PUBLISHED.iter().filter(|f| !text.lines().any(|l| l.starts_with(*f))) {
        let field = field.trim_end_matches(" = ");
        report.add(path, 0, &format!("a crate to be published lacks `{field}`; add it, or `publish = false`"));
    }
}

/// Checks the workspace's manifest: what published crates depend on has the workspace's version.
pub fn versions(path: &str, text: &str, report: &mut Report) {
    let version = text.lines().find_map(|l| l.strip_prefix("version = ")).unwrap_or_default();
    for (n, line) in text.lines().enumerate().filter(|(_, l)| l.starts_with("kingtide") && l.contains("path = ")) {
        if !line.contains(&format!("version = {version}")) && !line.starts_with("kingtide-testkit") {
            report.add(path, n, &format!("needs `version = {version}`, or what depends on it cannot be published"));
        }
    }
}

/// The package's name.
pub fn package_name(text: &str) -> Option<String> {
    let line = text.lines().find(|l| l.starts_with("name = "))?;
    line.split('"').nth(1).map(str::to_owned)
}

/// The name of the dependency that a line declares.
fn dependency(line: &str) -> Option<&str> {
    let (left, _) = line.split_once('=')?;
    let name = left.trim().split('.').next()?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_');
    (is_name && !line.starts_with([' ', '\t'])).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_go_down_and_explain_themselves() {
        let layers =
            Layers::parse("```\nbase  <-  mem, vfs  <-  table  <-  kingtide  <-  keybench (and later kt, capi)\n")
                .unwrap();
        assert_eq!((layers.rank("base"), layers.rank("vfs"), layers.rank("capi")), (Some(0), Some(1), Some(4)));
        let ours = ["kingtide-base", "kingtide-mem", "kingtide-vfs", "kingtide"].map(str::to_owned);
        let problems = |text: &str| {
            let mut report = Report::default();
            check("Cargo.toml", text, &layers, &ours, &mut report);
            report.problems
        };
        let mem = "[package]\nname = \"kingtide-mem\"\n[dependencies]\n";
        assert!(problems(&format!("{mem}kingtide-base.workspace = true\n# Why.\nlibc = \"0.2\"\n")).is_empty());
        assert!(problems(&format!("{mem}libc = \"0.2\"\n"))[0].starts_with("Cargo.toml:4: dependency `libc`"));
        assert!(problems(&format!("{mem}kingtide-vfs.workspace = true\n"))[0].contains("may not depend"));
        assert!(problems("[package]\nname = \"new\"\n")[0].contains("has no layer"));
        let task = "[package]\nname = \"xtask\"\n[dependencies]\nkingtide.workspace = true\n";
        assert_eq!(problems(task).len(), 1);
    }

    #[test]
    fn crates_are_ready_to_be_published_or_say_that_they_are_not() {
        let problems = |text: &str| {
            let mut report = Report::default();
            publishable("Cargo.toml", text, &mut report);
            report.problems
        };
        let start = "[package]\nname = \"kingtide-new\"\n";
        assert_eq!(problems(start).len(), PUBLISHED.len());
        assert!(problems(&format!("{start}publish = false\n")).is_empty());
        assert!(problems("[workspace]\n").is_empty());
        let whole = PUBLISHED.map(|f| f.replace(" = ", " = []")).join("\n");
        assert!(problems(&format!("{start}{whole}\n")).is_empty());

        let mut report = Report::default();
        let ours = "version = \"0.2.0\"\nkingtide = { path = \"a\", version = \"0.2.0\" }\nkingtide-testkit = { path = \"b\" }\n";
        versions("Cargo.toml", ours, &mut report);
        assert!(report.problems.is_empty());
        versions("Cargo.toml", &ours.replace("path = \"a\", version = \"0.2.0\"", "path = \"a\""), &mut report);
        versions("Cargo.toml", &ours.replace("version = \"0.2.0\" }", "version = \"0.1.0\" }"), &mut report);
        assert_eq!(report.problems.len(), 2);
    }
}
