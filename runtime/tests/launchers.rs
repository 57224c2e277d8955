//! Processes of launchers: each launcher's variables make one world, on one host without an
//! address, and a variable that is missing is an error, never a silent world of one.

use consonance::{Error, MultiWorkerMirroredStrategy, ProcessGroup};
use std::{
    env,
    process::{Command, Output, Stdio},
    sync::mpsc,
    time::Duration,
};

/// Set in a process that a test has started.
const PLAYED: &str = "CONSONANCE_TEST_LAUNCHED";

/// The beginning of the names of all variables that say something of a launch.
const LAUNCHERS: [&str; 14] = [
    "TF_CONFIG",
    "CONSONANCE_CHIEF",
    "CONSONANCE_JOB",
    "CONSONANCE_LAUNCHER",
    "CONSONANCE_REPLICAS",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "MASTER_",
    "TORCHELASTIC_",
    "SLURM_",
    "OMPI_",
    "PMI",
    "MPI_",
];

/// Returns a command without the variables of a launcher.
fn bare(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if LAUNCHERS.iter().any(|launcher| name.starts_with(launcher)) {
            command.env_remove(name);
        }
    }
    command
}

/// Starts this test in a process with these variables. It makes a strategy and says how that went.
fn played(variables: &[(&str, &str)]) -> Command {
    let mut command = bare(env::current_exe().expect("a test"));
    command.args(["--exact", "a_process_of_a_launcher", "--nocapture"]).env(PLAYED, "");
    command.envs(variables.iter().copied());
    command
}

/// Returns what a process of a test says.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let said = text.lines().find_map(|line| line.split_once("> ")).map(|(_, said)| said.to_owned());
    said.unwrap_or_else(|| panic!("{output:?}"))
}

/// Runs as a process of a launcher if the environment says so.
#[test]
fn a_process_of_a_launcher() {
    if env::var_os(PLAYED).is_none() {
        return;
    }
    let made = MultiWorkerMirroredStrategy::new().and_then(|strategy| {
        let sums = strategy.run(|replica| replica.all_reduce("sum", 1))?;
        Ok(format!("replica {} of {}", strategy.local_replicas().start, sums.values()[0]))
    });
    match made {
        Ok(made) => println!("\n> {made}"),
        Err(Error::InvalidCall { argument, .. }) => println!("\n> refused for {argument}"),
        Err(error) => println!("\n> {error}"),
    }
}

/// The variables of Slurm in a step of two tasks on two nodes.
const SLURM: [(&str, &str); 7] = [
    ("SLURM_JOB_ID", "7"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_PROCID", "0"),
    ("SLURM_NTASKS", "2"),
    ("SLURM_STEP_NUM_TASKS", "2"),
    ("SLURM_STEP_NODELIST", "node[1-2]"),
    ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
];

/// The variables of Open MPI on two hosts.
const OPEN_MPI: [(&str, &str); 3] =
    [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "1")];

/// The variables of MPICH and Intel MPI on two hosts.
const MPICH: [(&str, &str); 3] = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "1")];

/// Returns the variables with one less.
fn without<'v>(variables: &[(&'v str, &'v str)], name: &str) -> Vec<(&'v str, &'v str)> {
    variables.iter().copied().filter(|(other, _)| *other != name).collect()
}

#[test]
fn a_strategy_of_a_launcher_is_no_silent_world_of_one() {
    let batch = [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2")];
    for (variables, says) in [
        (OPEN_MPI.to_vec(), "refused for CONSONANCE_CHIEF"),
        (without(&OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE"), "refused for CONSONANCE_CHIEF"),
        (without(&OPEN_MPI, "OMPI_COMM_WORLD_SIZE"), "refused for OMPI_COMM_WORLD_SIZE"),
        (without(&OPEN_MPI, "OMPI_COMM_WORLD_RANK"), "refused for OMPI_COMM_WORLD_RANK"),
        (MPICH.to_vec(), "refused for CONSONANCE_CHIEF"),
        (without(&MPICH, "MPI_LOCALNRANKS"), "refused for CONSONANCE_CHIEF"),
        (without(&MPICH, "PMI_SIZE"), "refused for PMI_SIZE"),
        (vec![("PMI_SIZE", "2"), ("PMI_ID", "0")], "refused for PMI_RANK"),
        (vec![("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "prterun-host-7@1")], "refused for WORLD_SIZE"),
        (without(&SLURM, "SLURM_STEP_NODELIST"), "refused for SLURM_STEP_NODELIST or SLURM_JOB_NODELIST"),
        (batch.to_vec(), "refused for SLURM_STEP_NUM_TASKS"),
        (vec![("RANK", "0")], "refused for WORLD_SIZE"),
        (vec![("WORLD_SIZE", "2")], "refused for RANK"),
        (vec![("RANK", "0"), ("WORLD_SIZE", "2")], "refused for MASTER_ADDR"),
    ] {
        let output = played(&variables).output().expect("a process");
        assert_eq!(said(&output), says, "{variables:?}");
    }
}

/// A user or a launcher that says that there is one process needs to say no more.
#[test]
fn a_world_of_one_needs_no_address() {
    let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")];
    for variables in [
        &[][..],
        &[("WORLD_SIZE", "1")],
        &[("RANK", "0"), ("WORLD_SIZE", "1")],
        &[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")],
        &[("PMI_RANK", "0"), ("PMI_SIZE", "1"), ("PMI_FD", "8")],
        &slurm,
    ] {
        let output = played(variables).output().expect("a process");
        assert_eq!(said(&output), "replica 0 of 1", "{variables:?}");
    }
}

/// The processes of a test.
struct Pair([std::process::Child; 2]);

impl Pair {
    /// Starts the processes of ranks 0 and 1, which have these variables beside their own.
    fn start(rank: &str, variables: &[(&str, &str)]) -> Pair {
        Pair(["0", "1"].map(|own| {
            let mut command = played(variables);
            command.env(rank, own).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().expect("a process")
        }))
    }

    /// Returns what the processes say.
    fn said(self) -> [String; 2] {
        self.0.map(|process| said(&process.wait_with_output().expect("an end")))
    }
}

const WORLD: [&str; 2] = ["replica 0 of 2", "replica 1 of 2"];

#[test]
fn the_processes_of_a_launcher_on_one_host_form_a_world() {
    let of_host = std::process::id().to_string();
    let slurm = [
        ("SLURM_JOB_ID", &*of_host),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_STEP_NODELIST", "localhost"),
        ("SLURM_STEP_TASKS_PER_NODE", "2"),
    ];
    let open_mpi = [("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
    let torch = [
        ("WORLD_SIZE", "2"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "localhost"),
        ("MASTER_PORT", "1"),
        ("TORCHELASTIC_RUN_ID", &*of_host),
    ];
    // An address of the chief is not needed, and nobody connects to it.
    let chief = [("CONSONANCE_CHIEF", "192.0.2.1:4000")];
    let mpich = [("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")];
    for (rank, variables) in [
        ("SLURM_PROCID", &slurm[..]),
        ("OMPI_COMM_WORLD_RANK", &open_mpi),
        ("RANK", &torch),
        ("PMI_RANK", &mpich),
        ("PMI_RANK", &[&mpich[..], &chief].concat()),
    ] {
        assert_eq!(Pair::start(rank, variables).said(), WORLD, "{variables:?}");
    }
}

/// The ranks of a daemon that is a task of Slurm's have the daemon's variables, too.
#[test]
fn the_ranks_of_a_launcher_within_a_step_come_before_the_tasks_of_the_step() {
    let daemon = [
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_NUM_TASKS", "1"),
        ("SLURM_STEP_NODELIST", "localhost"),
        ("SLURM_STEP_TASKS_PER_NODE", "1"),
    ];
    for (rank, size, local) in [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ] {
        let variables = [&daemon[..], &[(size, "2"), (local, "2")]].concat();
        assert_eq!(Pair::start(rank, &variables).said(), WORLD, "{rank}");
    }
}

/// Both jobs have the same variables: only the processes that have started them differ.
#[test]
fn two_jobs_at_the_same_time_do_not_meet() {
    let own = env::current_exe().expect("a test");
    let test = format!("{} --exact a_process_of_a_launcher --nocapture", own.display());
    for [rank, size, local] in [
        ["PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"],
        ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"],
    ] {
        // A script of the rank's, which has its variables and waits for it, is no launcher.
        let script = format!(r#"for rank in 0 1; do {rank}=$rank {size}=2 {local}=2 sh -c '{test}; :' & done; wait"#);
        let jobs = [(); 3].map(|()| {
            let mut command = bare("sh");
            command.args(["-c", &script]).env(PLAYED, "").stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().expect("a job")
        });
        for job in jobs {
            let output = job.wait_with_output().expect("an end");
            let text = String::from_utf8_lossy(&output.stdout);
            let mut said: Vec<&str> =
                text.lines().filter_map(|line| line.split_once("> ")).map(|said| said.1).collect();
            said.sort_unstable();
            assert_eq!(said, WORLD, "{output:?}");
        }
    }
}

/// Returns a port of this process's own, below those that the system chooses by itself.
fn port(place: u16) -> u16 {
    20_000 + (std::process::id() % 3_000) as u16 * 4 + place
}

#[test]
fn the_processes_of_two_hosts_meet_at_the_chief() {
    if let Err(absent) = consonance::raw::Wire::open(None) {
        return println!("skipped: processes with a network: {absent}");
    }
    let (chief, master) = (format!("localhost:{}", port(0)), (port(1) - 1).to_string());
    let chief = ("CONSONANCE_CHIEF", &*chief);
    let torch = [("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "1")];
    let with_master = [&torch[..], &[("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &*master)]].concat();
    let open_mpi = [("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"), chief];
    let mpich = [("PMI_SIZE", "2"), chief];
    let slurm =
        [&SLURM.map(|(name, value)| if name == "SLURM_PROCID" { ("", "") } else { (name, value) })[..], &[chief]];
    let slurm = without(&slurm.concat(), "");
    for (rank, variables) in [
        ("RANK", &with_master[..]),
        ("RANK", &[&torch[..], &[chief]].concat()),
        ("RANK", &[("WORLD_SIZE", "2"), chief]),
        ("OMPI_COMM_WORLD_RANK", &open_mpi),
        ("PMI_RANK", &mpich),
        ("SLURM_PROCID", &slurm),
    ] {
        assert_eq!(Pair::start(rank, variables).said(), WORLD, "{variables:?}");
    }
}

/// Hosts may call the chief by other names. Who counts other processes is told so at once.
#[test]
fn ranks_with_other_counts_do_not_meet_at_the_chief() {
    if let Err(absent) = consonance::raw::Wire::open(None) {
        return println!("skipped: processes with a network: {absent}");
    }
    let port = port(3);
    // The chief waits once it has asked for its own table.
    let (tell, waits) = mpsc::channel();
    let join = |rank: &str, size: &str, name: &str| {
        let variables = [("RANK", rank), ("WORLD_SIZE", size), ("CONSONANCE_CHIEF", &format!("{name}:{port}"))];
        let variable =
            |name: &str| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned());
        let group = ProcessGroup::from_environment(variable)?.timeout(Duration::from_secs(20))?;
        let tell = tell.clone();
        group.on_wait(move |_| _ = tell.send(())).join().map(|group| group.size())
    };
    std::thread::scope(|scope| {
        let chief = scope.spawn(|| join("0", "2", "localhost"));
        waits.recv_timeout(Duration::from_secs(20)).expect("the chief waits");
        let Err(Error::Meeting { problem, .. }) = join("2", "3", "127.0.0.1") else { panic!("the chief counts two") };
        assert!(problem.contains("rank 2 counts 3 processes: rank 0, process "), "{problem}");
        assert_eq!(join("1", "2", "127.0.0.1").expect("the chief waits"), 2);
        assert_eq!(chief.join().expect("no panic").expect("rank 1 came"), 2);
    });
}

/// Returns the refusal of rank 0 with these variables: the argument, and what was expected.
fn refused(variables: &[(&str, &str)]) -> (String, String) {
    let variable = |name: &str| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned());
    match ProcessGroup::from_environment(variable).err() {
        Some(Error::InvalidCall { call: "ProcessGroup::from_env", argument, expected, .. }) => (argument, expected),
        other => panic!("{variables:?}: {other:?}"),
    }
}

#[test]
fn a_refusal_says_how_to_give_the_missing_variable() {
    let (argument, expected) = refused(&OPEN_MPI);
    assert_eq!(argument, "CONSONANCE_CHIEF");
    assert_eq!(
        expected,
        "the address of rank 0, host:port, since 1 of the 2 processes are on this host; `mpirun -x \
         CONSONANCE_CHIEF=host:port` passes it to all"
    );
    let (_, expected) = refused(&without(&MPICH, "MPI_LOCALNRANKS"));
    assert_eq!(
        expected,
        "the address of rank 0, host:port, since MPI_LOCALNRANKS does not tell that all 2 processes are on this host; \
         `mpiexec -genv CONSONANCE_CHIEF host:port` passes it to all"
    );
    let far = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "192.0.2.1"), ("MASTER_PORT", "7")];
    assert_eq!(refused(&far).1, "the number of ranks on this host, since MASTER_ADDR is another host's");
}

#[test]
fn a_wrong_variable_of_a_launcher_is_refused() {
    let with = |variables: &[(&'static str, &'static str)], changed: &'static str, value: &'static str| {
        [without(variables, changed), vec![(changed, value)]].concat()
    };
    let torch =
        [("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "1"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "7")];
    for (variables, changed, value) in [
        (&OPEN_MPI[..], "OMPI_COMM_WORLD_RANK", "2"),
        (&OPEN_MPI, "OMPI_COMM_WORLD_RANK", "-1"),
        (&OPEN_MPI, "OMPI_COMM_WORLD_SIZE", "99999999999999999999"),
        (&OPEN_MPI, "OMPI_COMM_WORLD_SIZE", "9999999999"),
        (&OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE", "0"),
        (&OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE", "3"),
        (&OPEN_MPI, "CONSONANCE_CHIEF", "a"),
        (&OPEN_MPI, "CONSONANCE_CHIEF", "a:0"),
        (&MPICH, "CONSONANCE_CHIEF", "http://a:1"),
        (&SLURM, "CONSONANCE_CHIEF", ":7"),
        (&torch, "MASTER_PORT", "65535"),
        (&torch, "MASTER_PORT", "0"),
        (&torch, "MASTER_PORT", "x"),
        (&torch, "MASTER_ADDR", "a b"),
        (&torch, "MASTER_ADDR", ""),
        (&torch, "WORLD_SIZE", "two"),
    ] {
        assert_eq!(refused(&with(variables, changed, value)).0, changed, "{value}");
    }
}

/// Runs two processes under each launcher of this machine. Debian's names tell two MPIs apart.
#[test]
fn a_launcher_of_this_machine_starts_a_world() {
    let names = ["mpiexec", "mpirun", "mpiexec.hydra", "mpiexec.openmpi", "mpiexec.mpich"];
    let mut tried = 0;
    for name in names {
        let about = Command::new(name).arg("--version").output();
        let Ok(about) = about.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()) else { continue };
        let mut command = bare(name);
        // It refuses root, and more processes than cores, otherwise.
        if ["Open MPI", "OpenRTE", "prterun"].iter().any(|mark| about.contains(mark)) {
            command.args(["--allow-run-as-root", "--oversubscribe"]);
        }
        command.args(["-n", "2"]).arg(env::current_exe().expect("a test"));
        command.args(["--exact", "a_process_of_a_launcher", "--nocapture"]).env(PLAYED, "");
        let output = command.output().expect("a launcher");
        let text = String::from_utf8_lossy(&output.stdout);
        let mut said: Vec<&str> = text.lines().filter_map(|line| line.split_once("> ")).map(|said| said.1).collect();
        said.sort_unstable();
        assert_eq!(said, WORLD, "{name}, {about}: {output:?}");
        tried += 1;
    }
    if tried == 0 {
        println!("skipped: launchers of MPI; none of {} is in PATH", names.join(", "));
    }
}
