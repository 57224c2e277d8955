//! The launcher of an MPI that has started this process, by its variables.

use super::sys::Family;
use std::env;

/// A view of the variables of the environment.
pub(super) type Variables<'v> = &'v dyn Fn(&str) -> Option<String>;

/// The launcher that started this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Launcher {
    /// The variable by which it is known.
    pub(super) variable: &'static str,
    /// The number of this process, of those that it has started.
    pub(super) rank: Option<usize>,
    /// The number of processes that it has started, if it says so.
    pub(super) size: Option<usize>,
    /// The families of MPIs that it may start, the most likely first.
    pub(super) families: &'static [Family],
}

impl Launcher {
    /// Finds the launcher; none if no launcher of an MPI has started this process.
    pub(super) fn of(variable: Variables) -> Option<Launcher> {
        const LAUNCHERS: [(&str, &str, &[Family]); 3] = [
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", &[Family::OpenMpi, Family::Standard]),
            // Those of MPICH and Intel MPI, and Slurm's by PMI.
            ("PMI_RANK", "PMI_SIZE", &[Family::Mpich, Family::Standard]),
            // Slurm's by PMIx, and others'.
            ("PMIX_RANK", "SLURM_STEP_NUM_TASKS", &[Family::OpenMpi, Family::Mpich, Family::Standard]),
        ];
        let (name, size, mut families) = LAUNCHERS.into_iter().find(|(rank, ..)| variable(rank).is_some())?;
        if name == "PMI_RANK" && variable("SLURM_JOB_ID").is_some() {
            // Open MPI 4 may be built for Slurm's PMI.
            families = &[Family::Mpich, Family::Standard, Family::OpenMpi];
        }
        let number = |name: &str| variable(name).and_then(|number| number.parse().ok());
        Some(Launcher { variable: name, rank: number(name), size: number(size), families })
    }

    /// Finds the launcher of this process.
    ///
    /// # Errors
    /// In words, if the variables are those of another process. An MPI would end this one.
    pub(super) fn here() -> Result<Option<Launcher>, String> {
        let launcher = Launcher::of(&variable);
        match variable("PMI_FD") {
            Some(socket) if launcher.is_some() && !is_socket(&socket) => {
                Err(format!("PMI_FD, {socket}, is no socket here: the launcher has started a parent of this process"))
            }
            _ => Ok(launcher),
        }
    }
}

/// Returns the rank and the size of this process's world by the variables of the launcher of an
/// MPI, if such a launcher has started it, or one of its parents.
pub fn world_of_mpi() -> Option<(usize, usize)> {
    let launcher = Launcher::of(&variable)?;
    Some((launcher.rank?, launcher.size?))
}

/// Returns a digest of what distinguishes the processes of a launch from those of others, as far as
/// all of them have it. The daemons of a launcher may be steps of Slurm's, each with an id of its
/// own, which their processes inherit: so Slurm's ids do not count.
pub(super) fn launch(variable: Variables) -> u64 {
    let known = ["PMIX_NAMESPACE", "I_MPI_HYDRA_UUID"].map(|name| variable(name).unwrap_or_default());
    crate::digest::digest(&known.join("\n"))
}

/// Reads a variable that is set and not empty.
pub(super) fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether the text is the number of an open socket.
fn is_socket(number: &str) -> bool {
    let Ok(descriptor) = number.parse() else { return false };
    let mut kind: libc::c_int = 0;
    let mut bytes = size_of_val(&kind) as libc::socklen_t;
    let answer = (&raw mut kind).cast();
    // SAFETY: asks for the kind of a socket, and writes a number. Fails for all that is no socket.
    unsafe { libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_TYPE, answer, &mut bytes) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::{fd::AsRawFd, unix::net::UnixStream};

    fn among<'s>(set: &'s [(&'s str, &'s str)]) -> impl Fn(&str) -> Option<String> + 's {
        |name| set.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn launchers_are_known_by_their_variables() {
        let of = |set: &[(&str, &str)]| {
            Launcher::of(&among(set)).map(|found| (found.variable, found.rank, found.size, found.families.len()))
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("PMI_SIZE", "4")]), None);
        let open = [("PMIX_RANK", "1"), ("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")];
        assert_eq!(of(&open), Some(("OMPI_COMM_WORLD_RANK", Some(1), Some(4), 2)));
        assert_eq!(of(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]), Some(("PMI_RANK", Some(0), Some(2), 2)));
        assert_eq!(of(&[("PMIX_RANK", "0")]), Some(("PMIX_RANK", Some(0), None, 3)));
        let slurm = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("SLURM_JOB_ID", "7")];
        assert_eq!(of(&slurm), Some(("PMI_RANK", Some(0), Some(2), 3)), "also Open MPI");
    }

    #[test]
    fn processes_of_one_launch_are_of_one_launch_also_within_steps_of_slurm() {
        let of = |set: &[(&str, &str)]| launch(&among(set));
        // Open MPI's daemon of the first host is in the batch script, those of others are a step.
        let first = [("OMPI_COMM_WORLD_RANK", "0"), ("PMIX_NAMESPACE", "71"), ("SLURM_JOB_ID", "5")];
        let other =
            [("OMPI_COMM_WORLD_RANK", "1"), ("PMIX_NAMESPACE", "71"), ("SLURM_JOB_ID", "5"), ("SLURM_STEP_ID", "0")];
        assert_eq!(of(&first), of(&other));
        assert_ne!(of(&first), of(&[("OMPI_COMM_WORLD_RANK", "0"), ("PMIX_NAMESPACE", "72")]));
        assert_eq!(of(&[("PMI_RANK", "0"), ("SLURM_STEP_ID", "0")]), of(&[("PMI_RANK", "1"), ("SLURM_STEP_ID", "1")]));
        assert_ne!(of(&[("I_MPI_HYDRA_UUID", "a")]), of(&[("I_MPI_HYDRA_UUID", "b")]));
    }

    #[test]
    fn a_socket_of_a_launcher_is_distinct_from_a_file_with_its_number() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(is_socket(&socket.as_raw_fd().to_string()));
        for wrong in [file.as_raw_fd().to_string(), "999999".to_owned(), "-1".to_owned(), "x".to_owned()] {
            assert!(!is_socket(&wrong), "{wrong}");
        }
    }
}
