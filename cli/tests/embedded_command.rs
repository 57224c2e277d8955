//! The command, carried by another program as an interpreter carries a module. The processes that
//! it starts of itself must begin as that program, too. This test is the program; its first
//! argument names the module.

use std::{
    env,
    process::{Command, ExitCode},
};

/// The argument before the command's arguments.
const MODULE: &str = "consonance-as-a-module";

/// Set for all processes that the test starts. Such a process must run the command; otherwise it
/// would be the test again, without an end.
const BELOW: &str = "CONSONANCE_TEST_CARRIED";

fn main() -> ExitCode {
    let mut arguments = env::args_os();
    let program = arguments.next().expect("a name");
    if env::args_os().nth(1).is_some_and(|first| first == MODULE) {
        consonance_cli::carried_by([program.clone(), MODULE.into()]);
        return consonance_cli::main([program].into_iter().chain(arguments.skip(1)));
    }
    if env::var_os(BELOW).is_some() {
        eprintln!("started without {MODULE}");
        return ExitCode::FAILURE;
    }
    let cases = [
        ("run -n 2 -- echo here", "[worker 1] here\n"),
        ("explain all_reduce --transport processes --no-measure", "2 processes, slice\n"),
        ("bench barrier --transport processes --time 1ms --vs one_shot", "one_shot"),
        ("soak --seconds 1 --no-faults", "every result as the spec says\n"),
        ("soak --grains --schedules 1 --seed 3", "undisturbed on one replica\n"),
    ];
    for (words, said) in cases {
        let output = Command::new(&program).arg(MODULE).args(words.split(' ')).env(BELOW, "1").output();
        let output = output.expect("this program");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains(said), "{words}: {output:?}");
    }
    ExitCode::SUCCESS
}
