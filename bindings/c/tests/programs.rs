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
    let assert = |(what, bytes): (&str, usize)| format!("static_assert({what} == {bytes}, \"{bytes}\");\n");
    let asserts: String = consonance_c::layouts().into_iter().map(assert).collect();
    let main = "int main(void) {\n    puts(\"layouts: all right\");\n    return 0;\n}\n";
    let program = library().join("layouts.c");
    fs::write(&program, format!("#include <assert.h>\n#include <consonance.h>\n#include <stdio.h>\n{asserts}{main}"))
        .unwrap();
    program
}

/// A compiler, and its words for a language that both have.
struct Language {
    compiler: &'static str,
    words: &'static [&'static str],
}

const LANGUAGES: [Language; 2] = [
    Language { compiler: "cc", words: &["-std=c11"] },
    Language { compiler: "c++", words: &["-x", "c++", "-std=c++17"] },
];

/// Compiles and runs a program of this folder, or with this path. Returns the path of what was
/// compiled, unless the compiler is not installed.
fn compile_and_run(source: &str, Language { compiler, words }: &Language) -> Option<PathBuf> {
    let (folder, library) = (Path::new(env!("CARGO_MANIFEST_DIR")), library());
    let name = Path::new(source).file_stem().unwrap().to_str().unwrap();
    let program = library.join(format!("{compiler}-{name}"));
    let mut command = Command::new(compiler);
    command.args(["-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]).args(*words);
    // Set to `address` by `.ci/run`, which builds the library with the same sanitizer.
    let sanitizer = env::var("CONSONANCE_SANITIZER").ok();
    command.args(sanitizer.map(|name| format!("-fsanitize={name}")));
    command.arg("-I").arg(folder.join("include")).arg("-o").arg(&program).arg(folder.join("tests").join(source));
    command.arg("-L").arg(&library).args(["-lconsonance_c", "-lpthread", "-lm", "-ldl"]);
    command.arg(format!("-Wl,-rpath,{}", library.display()));
    // The program looks for the library by its soname.
    let soname = library.join("libconsonance_c.so.1");
    let _ = fs::remove_file(&soname);
    std::os::unix::fs::symlink(library.join("libconsonance_c.so"), &soname).unwrap();
    let Some(compiled) = run(&mut command) else {
        // Not by a macro, whose lines of a test that passes are not shown.
        let _ = writeln!(io::stderr(), "skipped {source}: install {compiler}, a C or C++ compiler");
        return None;
    };
    assert!(compiled.status.success(), "{command:?}:\n{}", said(&compiled));
    // A folder for temporary files in which nobody else makes one.
    let temporary = library.join(format!("{compiler}-{name}-temporary"));
    let _ = fs::remove_dir_all(&temporary);
    fs::create_dir(&temporary).unwrap();
    let driver = library.join("libconsonance_fake_driver.so");
    let mut command = Command::new(&program);
    command.env("TMPDIR", &temporary).env("CONSONANCE_CUDA_DRIVER", driver);
    command.env("CONSONANCE_FAKE_DRIVER", "devices=2 delay=3");
    let ran = run(&mut command).expect("the program that was compiled");
    let said = said(&ran);
    assert!(ran.status.success() && said.contains("all right"), "{compiler} {source}: {}\n{said}", ran.status);
    fs::remove_dir(&temporary).expect("an empty folder: programs leave no file");
    Some(program)
}

/// Whether a program or library has this symbol.
fn has_symbol(file: &[u8], name: &str) -> bool {
    let symbol = format!("\0{name}\0");
    file.windows(symbol.len()).any(|part| part == symbol.as_bytes())
}

/// Checks that programs call every function of the library: their files have its name.
fn call_every_function(programs: &[PathBuf]) {
    let files: Vec<Vec<u8>> = programs.iter().map(|program| fs::read(program).unwrap()).collect();
    let is_called = |name: &str| files.iter().any(|file| has_symbol(file, name));
    let prototypes = consonance_c::prototypes();
    let names = prototypes.iter().map(|prototype| prototype["int ".len()..].split('(').next().unwrap());
    let missing: Vec<&str> =
        names.chain(["cons_abi_version", "cons_code_name"]).filter(|name| !is_called(name)).collect();
    assert!(missing.is_empty(), "functions that no program calls: {missing:?}");
    assert!(!is_called("cons_"), "a name that is no function");
}

// One test: the programs are run one after the other, because each has as many ranks as cores.
#[test]
fn programs_compile_without_warnings_call_every_function_and_run() {
    if env::var("CONSONANCE_SANITIZER").is_ok_and(|name| name == "address") {
        let library = fs::read(library().join("libconsonance_c.so")).unwrap();
        assert!(has_symbol(&library, "__asan_init"), "the library was built without the sanitizer");
    }
    let layouts = layouts();
    for language in &LANGUAGES {
        compile_and_run(layouts.to_str().expect("a path in UTF-8"), language);
        let programs = ["calls.c", "errors.c", "accumulators.c", "exact.c", "gpu.c"]
            .map(|source| compile_and_run(source, language));
        if let [Some(calls), Some(errors), Some(accumulators), Some(exact), Some(gpu)] = programs {
            call_every_function(&[calls, errors, accumulators, exact, gpu]);
        }
        compile_and_run("leaves.c", language);
    }
}
