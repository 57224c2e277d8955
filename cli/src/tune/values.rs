//! The values of all knobs, and where they come from.

use consonance_kernels::tuning::{Knob, Scope, Settled, Tuning, TuningError, VARIABLE, Value, settled};
use serde_json::{Value as Json, json};
use std::{fmt, time::Duration};

/// The values of this process, and of a group that it has.
#[derive(Clone, Debug)]
pub struct Values {
    settled: Settled,
    group: Tuning,
}

impl Values {
    /// Returns the values of this process, with those of a group of it.
    ///
    /// # Errors
    /// If the file that `CONSONANCE_TUNING` names is malformed, or cannot be read.
    pub fn of_group(group: &Tuning) -> Result<Values, TuningError> {
        Ok(Values { settled: settled()?, group: *group })
    }

    /// Returns the values of this process.
    ///
    /// # Errors
    /// As [`of_group`](Values::of_group).
    pub fn of_this_process() -> Result<Values, TuningError> {
        let settled = settled()?;
        Ok(Values { group: settled.tuning, settled })
    }

    /// Returns the value of a knob, and where it comes from.
    pub fn get(&self, knob: &Knob) -> (Value, String) {
        let own = self.settled.tuning.get(knob);
        match knob.scope {
            Scope::Group if self.group.get(knob) != own => (self.group.get(knob), "group".to_owned()),
            _ => (own, self.settled.origin(knob).to_string()),
        }
    }

    /// Says in words where the values come from as a whole.
    pub fn source(&self) -> String {
        match &self.settled.file {
            Some(file) => format!("{VARIABLE}={file}"),
            None if self.settled.is_off => format!("the defaults ({VARIABLE}=off)"),
            None if self.settled.measures => "this machine's caches".to_owned(),
            None => "this machine's caches, and a measurement of pipelines".to_owned(),
        }
    }

    /// Returns the knobs whose values are not the defaults, as `name value (origin)`.
    pub fn changed(&self) -> Vec<String> {
        let is_changed = |knob: &&Knob| self.get(knob).0 != Tuning::DEFAULT.get(knob);
        let text = |knob: &Knob| {
            let (value, origin) = self.get(knob);
            format!("{} {value} ({origin})", knob.name)
        };
        Tuning::offered().filter(is_changed).map(text).collect()
    }

    /// Returns each knob's value and origin as a JSON object.
    pub fn json(&self) -> Json {
        let entry = |knob: &Knob| {
            let (value, origin) = self.get(knob);
            let value = match value {
                Value::Bytes(bytes) => json!(bytes),
                Value::Way(way) => json!(way.name()),
                Value::Pipeline(pipeline) => json!(pipeline.name()),
            };
            (knob.name.to_owned(), json!({ "value": value, "from": origin }))
        };
        Tuning::offered().map(entry).collect()
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "knobs: from {}", self.source())?;
        for knob in Tuning::offered() {
            let (value, origin) = self.get(knob);
            writeln!(f, "  {:<22} {value:>10}   {origin}", knob.name)?;
        }
        for knob in Tuning::offered().map(|knob| knob.name) {
            let of_knob = self.settled.trials.iter().filter(|trial| trial.knob == knob);
            let times: Vec<String> =
                of_knob.map(|trial| format!("{} {:.1}", trial.value, micros(trial.time))).collect();
            if !times.is_empty() {
                writeln!(f, "{knob}, measured, µs: {}", times.join(", "))?;
            }
        }
        Ok(())
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_is_shown_with_its_origin() {
        let group = Tuning { window_bytes: 3 << 10, ..Values::of_this_process().unwrap().settled.tuning };
        let values = Values::of_group(&group).unwrap();
        let (text, json) = (values.to_string(), values.json());
        for knob in Tuning::offered() {
            let (value, origin) = values.get(knob);
            let line = format!("  {:<22} {value:>10}   {origin}\n", knob.name);
            assert!(text.contains(&line), "{line}{text}");
            assert_eq!(json[knob.name]["from"], origin);
        }
        assert_eq!(json["window_bytes"], json!({ "value": 3072, "from": "group" }));
        assert!(values.changed().contains(&"window_bytes 3072 (group)".to_owned()));
    }
}
