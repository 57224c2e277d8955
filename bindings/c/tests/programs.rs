//! C and C++ programs on the library, compiled with all warnings as errors.

use std::{
    env, fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// Returns the folder in which cargo puts the library for this test.
fn library() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Runs a command; `None` if the program does not exist.
fn run(command: &mut Command) -> Option<Output> {
    match command.output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => panic!("{command:?}: {error}"),
    }
}

fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat()
}

/// Writes a program that does not compile if a struct of the header has another layout than that of
/// the library.
fn layouts() -> PathBuf {
    let assert = |(what, bytes): (&str, usize)| format!("_Static_assert({what} == {bytes}, \"{bytes}\");\n");
    let asserts: String = consonance_c::layouts().into_iter().map(assert).collect();
    let main = "int main(void) {\n    puts(\"layouts: all right\");\n    return 0;\n}\n";
    let program = library().join("layouts.c");
    fs::write(&program, format!("#include <consonance.h>\n#include <stdio.h>\n{asserts}{main}")).unwrap();
    program
}

/// Compiles and runs a program of this folder, or with this path. `words` are for the compiler.
fn compile_and_run(source: &str, compiler: &str, words: &[&str]) {
    let (folder, library) = (Path::new(env!("CARGO_MANIFEST_DIR")), library());
    let program = library.join(format!("c-{}", source.rsplit('/').next().unwrap().replace('.', "-")));
    let mut command = Command::new(compiler);
    command.args(["-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]).args(words);
    // Set to `address` by `.ci/run`.
    let sanitizer = env::var("CONSONANCE_SANITIZER").ok();
    command.args(sanitizer.map(|name| format!("-fsanitize={name}")));
    command.arg("-I").arg(folder.join("include")).arg("-o").arg(&program).arg(folder.join("tests").join(source));
    command.arg("-L").arg(&library).args(["-lconsonance_c", "-lpthread", "-lm"]);
    command.arg(format!("-Wl,-rpath,{}", library.display()));
    // The program looks for the library by its soname.
    let soname = library.join("libconsonance_c.so.1");
    let _ = fs::remove_file(&soname);
    std::os::unix::fs::symlink(library.join("libconsonance_c.so"), &soname).unwrap();
    let Some(compiled) = run(&mut command) else {
        // Not by a macro, whose lines of a test that passes are not shown.
        let _ = writeln!(io::stderr(), "skipped {source}: install {compiler}, a C or C++ compiler");
        return;
    };
    assert!(compiled.status.success(), "{command:?}:\n{}", said(&compiled));
    let ran = run(&mut Command::new(&program)).expect("the program that was compiled");
    assert!(ran.status.success() && said(&ran).contains("all right"), "{source}: {}\n{}", ran.status, said(&ran));
}

// One test: the programs are run one after the other, because each has as many ranks as cores.
#[test]
fn programs_compile_without_warnings_and_run() {
    compile_and_run(layouts().to_str().expect("a path in UTF-8"), "cc", &["-std=c11"]);
    compile_and_run("calls.c", "cc", &["-std=c11"]);
    compile_and_run("errors.c", "cc", &["-std=c11"]);
    compile_and_run("plus.cpp", "c++", &["-std=c++17"]);
}
