//! The C API from C's side: the header is up to date, C and C++ compile it, and programs that are linked with the library do
//! what they should, under the address, leak and undefined-behaviour sanitizers, and under valgrind in full runs.

mod header;

use header::{Function, functions, here};
use std::path::{Path, PathBuf};
use std::process::Command;

const SANITIZERS: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];
const SYSTEM: &[&str] = &["-lpthread", "-ldl", "-lm"];

/// An empty directory for a test, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("kingtide-capi-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path); // of an earlier process with this number
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // nothing depends on it
    }
}

/// Where Cargo put the libraries that belong to this test.
fn libraries() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let dir = exe.parent().unwrap().to_owned();
    assert!(dir.join("libkingtide_c.a").exists(), "no static library beside {}", exe.display());
    dir
}

fn run(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{command:?}: {}\n{text}", out.status);
    text
}

/// Compiles C sources with strict warnings.
fn cc(program: &Path, sources: &[PathBuf], more: &[&str]) {
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-D_POSIX_C_SOURCE=200809L"]);
    cc.arg("-I").arg(here().join("include")).arg("-I").arg(here().join("tests/c"));
    run(cc.args(sources).args(more).args(SYSTEM).arg("-o").arg(program));
}

fn sources() -> Vec<PathBuf> {
    ["main.c", "data.c", "transactions.c", "around.c"].iter().map(|f| here().join("tests/c").join(f)).collect()
}

/// A call of every function with nothing but NULL and zero: an error, or nothing, but never a crash.
fn null_calls(functions: &[Function]) -> String {
    let mut out = "#include \"check.h\"\nvoid test_null(void) {\n".to_owned();
    for f in functions {
        let call = format!("{}({})", f.name, vec!["0"; f.arguments].join(", "));
        let with_err = f.name.ends_with("_new").then(|| f.name.replace("_new", "_free"));
        match (with_err, f.returns.as_str()) {
            (Some(free), _) => out += &format!("    {free}({call});\n"),
            (None, "kingtide_status") if !f.name.starts_with("kingtide_error_") => {
                out += &format!("    CHECK({call} == KINGTIDE_INVALID_ARGUMENT);\n");
            }
            _ => out += &format!("    (void){call};\n"),
        }
    }
    out + "}\n"
}

/// Builds the smoke test.
fn smoke(dir: &Path, how: &[&str]) -> PathBuf {
    let null = dir.join("null.c");
    std::fs::write(&null, null_calls(&functions())).unwrap();
    let (mut all, library, program) = (sources(), libraries().join("libkingtide_c.a"), dir.join("smoke"));
    all.extend([null, library]);
    cc(&program, &all, how);
    program
}

#[test]
fn every_function_is_called_by_the_smoke_test() {
    let mut all = sources();
    all.push(here().join("tests/c/check.h"));
    let called: String = all.iter().map(|s| std::fs::read_to_string(s).unwrap()).collect();
    let functions = functions();
    let missing: Vec<&str> =
        functions.iter().map(|f| f.name.as_str()).filter(|f| !called.contains(&format!("{f}("))).collect();
    println!("{} functions", functions.len());
    assert!(functions.len() > 200 && missing.is_empty(), "not called by tests/c: {missing:?}");
}

#[test]
fn the_smoke_test_passes_under_sanitizers() {
    let dir = Scratch::new("sanitized");
    let data = dir.0.join("data");
    std::fs::create_dir(&data).unwrap();
    let program = smoke(&dir.0, SANITIZERS);
    let text = run(Command::new(program).arg(&data).env("ASAN_OPTIONS", "detect_leaks=1:halt_on_error=1"));
    println!("{text}");
}

/// Slow: part of full runs, where valgrind is installed.
#[test]
fn the_smoke_test_passes_under_valgrind() {
    if std::env::var_os("KINGTIDE_FULL").is_none() || Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: needs KINGTIDE_FULL=1 and valgrind");
        return;
    }
    let dir = Scratch::new("valgrind");
    let data = dir.0.join("data");
    std::fs::create_dir(&data).unwrap();
    let program = smoke(&dir.0, &[]);
    let flags =
        ["--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"];
    println!("{}", run(Command::new("valgrind").args(flags).arg(program).arg(&data)));
}

#[test]
fn the_example_runs_with_the_shared_library() {
    let dir = Scratch::new("bank");
    let (program, lib) = (dir.0.join("bank"), libraries());
    let (search, find) = (format!("-L{}", lib.display()), format!("-Wl,-rpath,{}", lib.display()));
    cc(&program, &[here().join("examples/bank.c")], &[&search, &find, "-lkingtide_c"]);
    let text = run(Command::new(program).arg(dir.0.join("data")));
    println!("{text}");
    assert!(text.contains("1000 moves") && text.contains("100000 in all accounts"), "{text}");
}

/// The conformance table, in memtables and in tables.
#[test]
fn the_conformance_table_holds_in_c() {
    let dir = Scratch::new("conformance");
    let program = dir.0.join("conformance");
    let mut all: Vec<PathBuf> = ["conformance.c", "world.c"].iter().map(|f| here().join("tests/c").join(f)).collect();
    all.push(libraries().join("libkingtide_c.a"));
    cc(&program, &all, SANITIZERS);
    let table = std::fs::read_dir(here().join("../../conformance")).unwrap().map(|f| f.unwrap().path());
    let files: Vec<PathBuf> = table.filter(|f| f.extension().is_some_and(|e| e == "jsonl")).collect();
    assert!(!files.is_empty());
    for how in ["plain", "flushed"] {
        let data = dir.0.join(how);
        std::fs::create_dir(&data).unwrap();
        println!("{how}: {}", run(Command::new(&program).arg(data).arg(how).args(&files)).trim());
    }
}

/// What the documentation shows.
#[test]
fn the_first_program_of_the_documentation_runs() {
    let dir = Scratch::new("first");
    let page = std::fs::read_to_string(here().join("../../docs/c-api.md")).unwrap();
    let blocks: Vec<&str> = page.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [code] = blocks[..] else { panic!("another block of C: what should it print? {blocks:?}") };
    let (source, program) = (dir.0.join("first.c"), dir.0.join("first"));
    std::fs::write(&source, code).unwrap();
    let mut flags = SANITIZERS.to_vec();
    let library = libraries().join("libkingtide_c.a");
    flags.push(library.to_str().unwrap());
    cc(&program, &[source], &flags);
    assert_eq!(run(Command::new(program).current_dir(&dir.0)).trim(), "rising");
}

/// The header by itself, in every language and version that it is for.
#[test]
fn the_header_compiles_as_c_and_cpp() {
    let dir = Scratch::new("header");
    let languages = [("cc", "c", "c99"), ("cc", "c", "c17"), ("c++", "c++", "c++11"), ("c++", "c++", "c++20")];
    for (compiler, language, standard) in languages {
        let source = dir.0.join(format!("only.{}", if language == "c" { "c" } else { "cc" }));
        std::fs::write(&source, "#include \"kingtide.h\"\nint main() { return KINGTIDE_OK; }\n").unwrap();
        let mut command = Command::new(compiler);
        command.args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-pedantic"]).arg(format!("-std={standard}"));
        run(command.arg("-I").arg(here().join("include")).arg(&source));
    }
}

/// Programs see the API's names and no others of ours.
#[test]
fn the_shared_library_exports_the_header() {
    let mut nm = Command::new("nm");
    let listed = run(nm.args(["-D", "--defined-only"]).arg(libraries().join("libkingtide_c.so")));
    let mut exported: Vec<&str> = listed.lines().filter_map(|l| l.split_whitespace().last()).collect();
    exported.sort_unstable();
    let mut wanted: Vec<String> = functions().into_iter().map(|f| f.name).collect();
    wanted.sort_unstable();
    assert_eq!(exported, wanted);
}
