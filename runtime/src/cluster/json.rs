//! JSON that keeps the order of keys and rejects duplicate keys.

use crate::{Error, Result};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use std::{collections::HashSet, fmt};

#[derive(Debug)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Parses an argument of `call`.
    pub(super) fn parse(call: &'static str, argument: &str, text: &str) -> Result<Json> {
        serde_json::from_str(text).map_err(|error| {
            // A duplicate key is the only error that is not a syntax error.
            let expected = if error.is_data() { "each key once" } else { "JSON" };
            Error::invalid(call, argument, expected, error.to_string())
        })
    }

    /// Returns the value of a key, if this is an object that has it.
    pub(super) fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Object(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Prints JSON that parses to the same value.
    pub(super) fn text(&self) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        match self {
            Json::Null => "null".to_owned(),
            Json::Bool(truth) => truth.to_string(),
            Json::Integer(number) => number.to_string(),
            Json::Float(number) => number.to_string(),
            Json::Text(text) => quoted(text),
            Json::List(list) => format!("[{}]", list.iter().map(Json::text).collect::<Vec<_>>().join(",")),
            Json::Object(entries) => {
                let entries = entries.iter().map(|(key, value)| format!("{}:{}", quoted(key), value.text()));
                format!("{{{}}}", entries.collect::<Vec<_>>().join(","))
            }
        }
    }
}

/// Prints the value for errors: scalars in full, lists and objects by kind and size.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Json::List(list) => write!(f, "a list of {}", list.len()),
            Json::Object(entries) => write!(f, "an object of {}", entries.len()),
            scalar => f.write_str(&scalar.text()),
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Json, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> std::result::Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, truth: bool) -> std::result::Result<Json, E> {
        Ok(Json::Bool(truth))
    }

    fn visit_i64<E>(self, number: i64) -> std::result::Result<Json, E> {
        Ok(Json::Integer(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> std::result::Result<Json, E> {
        Ok(Json::Integer(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> std::result::Result<Json, E> {
        Ok(Json::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> std::result::Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Json, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(Json::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> std::result::Result<Json, A::Error> {
        let (mut entries, mut keys) = (Vec::new(), HashSet::new());
        while let Some((key, value)) = object.next_entry::<String, Json>()? {
            if !keys.insert(key.clone()) {
                return Err(A::Error::custom(format!("the key {key:?} twice")));
            }
            entries.push((key, value));
        }
        Ok(Json::Object(entries))
    }
}
