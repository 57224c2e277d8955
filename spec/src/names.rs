//! Element types and operations in serde's formats: their names.

use crate::{DType, ReduceOp};
use serde_core::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;

macro_rules! by_name {
    ($type:ident, $what:literal, $parse:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                struct Name;

                impl de::Visitor<'_> for Name {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(concat!("the name of ", $what, ":"))?;
                        let names = $type::ALL.iter().enumerate();
                        names
                            .into_iter()
                            .try_for_each(|(place, value)| write!(f, "{} {value}", if place == 0 { "" } else { "," }))
                    }

                    fn visit_str<E: de::Error>(self, name: &str) -> Result<$type, E> {
                        let parse: fn(&str) -> Option<$type> = $parse;
                        parse(name).ok_or_else(|| E::invalid_value(de::Unexpected::Str(name), &self))
                    }
                }

                deserializer.deserialize_str(Name)
            }
        }
    };
}

by_name!(DType, "an element type", |name| DType::ALL.iter().copied().find(|dtype| dtype.name() == name));
by_name!(ReduceOp, "an operation", |name| name.parse().ok());
