//! The guide: one page per topic. Its examples run as tests.

pub mod strategies {
    #![doc = include_str!("strategies.md")]
}

pub mod values {
    #![doc = include_str!("values.md")]
}

pub mod collectives {
    #![doc = include_str!("collectives.md")]
}

pub mod variables {
    #![doc = include_str!("variables.md")]
}

pub mod datasets {
    #![doc = include_str!("datasets.md")]
}

pub mod training {
    #![doc = include_str!("training.md")]
}

pub mod grains {
    #![doc = include_str!("grains.md")]
}

pub mod sparse {
    #![doc = include_str!("sparse.md")]
}

pub mod errors {
    #![doc = include_str!("errors.md")]
}

pub mod clusters {
    #![doc = include_str!("clusters.md")]
}

pub mod workers {
    #![doc = include_str!("workers.md")]
}

#[cfg(target_os = "linux")]
pub mod servers {
    #![doc = include_str!("servers.md")]
}

pub mod seeing {
    #![doc = include_str!("seeing.md")]
}

pub mod engines {
    #![doc = include_str!("engines.md")]
}

pub mod bindings {
    #![doc = include_str!("bindings.md")]
}

pub mod tensorflow {
    #![doc = include_str!("tensorflow.md")]
}

pub mod pytorch {
    #![doc = include_str!("pytorch.md")]
}

pub mod mpi {
    #![doc = include_str!("mpi.md")]
}

pub mod performance {
    #![doc = include_str!("performance.md")]
}
