//! The refusal, by every command, of a value that an option cannot have: one form, whether the
//! parser of the command line refuses the value or the command, which knows the other options.

#![cfg(target_os = "linux")]

use std::process::Command;

#[test]
fn a_bad_value_is_refused_in_one_form() {
    let ranks = "'0' for '--ranks <N>': expected 1 to 256 ranks";
    let from_one = |option: &str| format!("'0' for '{option}': expected a whole number of at least 1");
    let refused = [
        ("bench all_reduce -n 0", ranks.to_owned()),
        ("bench all_reduce -n two", "'two' for '--ranks <N>': expected a whole number".to_owned()),
        ("bench all_reduce -b 1M -e 1K", "'1048576' for '--begin <MIN>': expected at most the 1024".to_owned()),
        ("bench all_reduce --time 0s", "'0s' for '--time <TIME>': expected a time above 0".to_owned()),
        ("bench all_reduce --plot a.png", "'a.png' for '--plot <FILE>': expected a name that ends in .svg".to_owned()),
        ("bench limits -b 2 -e 1", "'2' for '--begin <MIN>': expected at most the 1 bytes of --end".to_owned()),
        ("bench strategies --rounds 100", "'100' for '--rounds <N>': expected a whole number from 1 to 99".to_owned()),
        ("explain all_reduce -n 0", ranks.to_owned()),
        ("explain all_reduce -b 0", "'0' for '--bytes <SIZES>': expected a number of bytes above 0".to_owned()),
        ("run -n 0 true", from_one("--workers <N>")),
        ("run -n 2 --replicas 0 true", from_one("--replicas <R>")),
        ("run -n 2 --max-restarts some true", "'some' for '--max-restarts <N>': expected a whole number".to_owned()),
        ("run -n 2 --timeout 3d true", "'3d' for '--timeout <TIME>': expected a time above 0".to_owned()),
        ("run --hosts 2 -n 1 --cable loss=2 true", "'loss=2' for '--cable <CABLE>': loss: expected a part".to_owned()),
        ("run --hosts 2 -n 1 --cable cut=1s true", "'cut=1s' for '--cable <CABLE>': expected cut and".to_owned()),
        ("run --hosts 2 -n 1 --cable lag=1s true", "'lag=1s' for '--cable <CABLE>': expected delay, ".to_owned()),
        ("soak --seconds 0", from_one("--seconds <N>")),
        ("soak --seconds 1 --processes 17", "'17' for '--processes <P>': expected a whole number from 1".to_owned()),
        ("soak --seconds 1 --seed x", "'x' for '--seed <S>': expected a whole number".to_owned()),
        ("trace -p 0", "'0' for '--pid <P>': expected a whole number from 1 to 4294967295".to_owned()),
        ("trace -p 1 --calls 65", "'65' for '--calls <N>': expected a whole number from 1 to 64".to_owned()),
        ("tune file --time 0", "'0' for '--time <TIME>': expected a time above 0".to_owned()),
        ("tune file --knobs none", "'none' for '--knobs <NAMES>': expected one of ".to_owned()),
        ("gpu-check --every 0", from_one("--every <K>")),
        ("gpu-check --device first", "'first' for '--device <N>': expected a whole number".to_owned()),
    ];
    for (words, sentence) in refused {
        let output = Command::new(env!("CARGO_BIN_EXE_consonance")).args(words.split(' ')).output().expect("it runs");
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{words}: {said}");
        assert!(said.starts_with(&format!("error: invalid value {sentence}")), "{words}: {said}");
        assert!(said.ends_with("\n\nFor more information, try '--help'.\n"), "{words}: {said}");
    }
}
