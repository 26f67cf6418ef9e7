//! What JSON may look like, by the part of JSON Schema that `docs/json.schema.json` uses.
//!
//! It differs from the standard in two ways. A keyword that is not known here is an error, so that
//! a schema says nothing that isn't checked. And a field that the schema doesn't describe is an
//! error where it doesn't say `additionalProperties`, so that a field that gets another name is
//! noticed, also one that may be left out.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// What a reference begins with.
const DEFINITIONS: &str = "#/$defs/";

/// A schema, whose definitions are forms of values.
pub struct Schema {
    definitions: Map<String, Value>,
    /// Fields that values had, by where the schema describes them.
    seen: RefCell<BTreeSet<String>>,
}

impl Schema {
    /// Reads one. An error if it has something that is not known here.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Value::Object(mut root) = serde_json::from_str(text).map_err(|error| error.to_string())? else {
            return Err("a schema is an object".into());
        };
        let Some(Value::Object(definitions)) = root.remove("$defs") else { return Err("it has no $defs".into()) };
        if let Some(keyword) = root.keys().find(|name| !matches!(name.as_str(), "$schema" | "title" | "description")) {
            return Err(format!("{keyword}: a keyword that is not known here"));
        }
        let schema = Self { definitions, seen: RefCell::default() };
        let mut fields = Vec::new();
        schema.definitions.iter().try_for_each(|(name, form)| schema.read(form, name, &mut fields))?;
        Ok(schema)
    }

    /// The names of its definitions.
    pub fn definitions(&self) -> impl Iterator<Item = &str> {
        self.definitions.keys().map(String::as_str)
    }

    /// An error if a value hasn't the form of a definition.
    pub fn check(&self, definition: &str, value: &Value) -> Result<(), String> {
        let form = self.definitions.get(definition).ok_or_else(|| format!("there is no definition {definition}"))?;
        let seen = self.matches(form, definition, value)?;
        self.seen.borrow_mut().extend(seen);
        Ok(())
    }

    /// Fields that are described, and that no value had that was right, as `DEFINITION.FIELD`.
    pub fn unseen(&self) -> Vec<String> {
        let mut fields = Vec::new();
        for (name, form) in &self.definitions {
            // It was read before.
            let _ = self.read(form, name, &mut fields);
        }
        let seen = self.seen.borrow();
        fields.retain(|field| !seen.contains(field));
        fields
    }

    /// Reads a part of the schema: an error if it is none. Gathers the fields that it describes.
    fn read(&self, form: &Value, at: &str, fields: &mut Vec<String>) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{at}: {what}"));
        let Some(keywords) = form.as_object() else { return wrong("it is no object") };
        for (keyword, value) in keywords {
            match (keyword.as_str(), value) {
                ("$ref", Value::String(to)) => match to.strip_prefix(DEFINITIONS) {
                    _ if keywords.keys().any(|other| other != "$ref" && other != "description") => {
                        return wrong("a reference has nothing beside it");
                    }
                    Some(name) if self.definitions.contains_key(name) => {}
                    _ => return wrong("it refers to nothing"),
                },
                ("type", types) if types_of(types).iter().all(|name| of_type(name, &Value::Null).is_some()) => {}
                ("format", Value::String(format)) if format == "date-time" => {}
                ("description", Value::String(_))
                | ("enum", Value::Array(_))
                | ("additionalProperties", Value::Bool(_)) => {}
                ("items" | "additionalProperties", form) => self.read(form, &format!("{at}[]"), fields)?,
                ("anyOf", Value::Array(forms)) => forms.iter().try_for_each(|form| self.read(form, at, fields))?,
                ("properties", Value::Object(properties)) => {
                    for (name, form) in properties {
                        let at = format!("{at}.{name}");
                        self.read(form, &at, fields)?;
                        fields.push(at);
                    }
                }
                ("required", Value::Array(required)) => {
                    let properties = keywords.get("properties").and_then(Value::as_object);
                    let is_one = |name: &Value| {
                        properties.is_some_and(|all| name.as_str().is_some_and(|name| all.contains_key(name)))
                    };
                    if let Some(name) = required.iter().find(|name| !is_one(name)) {
                        return wrong(&format!("{name} is required and not described"));
                    }
                }
                _ => return wrong(&format!("{keyword}: a keyword or a value of it that is not known here")),
            }
        }
        Ok(())
    }

    /// The described fields of a value that has this form; an error if it hasn't.
    fn matches(&self, form: &Value, at: &str, value: &Value) -> Result<Vec<String>, String> {
        let wrong = |what: String| Err(format!("{at}: {what}: {value}"));
        if let Some(to) = form["$ref"].as_str() {
            let name = to.trim_start_matches(DEFINITIONS);
            return self.matches(&self.definitions[name], name, value).map_err(|error| format!("{at}: {error}"));
        }
        let mut seen = Vec::new();
        let types = types_of(&form["type"]);
        if !types.is_empty() && !types.iter().any(|name| of_type(name, value) == Some(true)) {
            return wrong(format!("it is not of the type {}", form["type"]));
        }
        if form["enum"].as_array().is_some_and(|values| !values.contains(value)) {
            return wrong(format!("it is none of {}", form["enum"]));
        }
        if form["format"].is_string() && !value.as_str().is_some_and(is_time) {
            return wrong("it is no time".into());
        }
        if let Some(forms) = form["anyOf"].as_array() {
            let tried: Vec<_> = forms.iter().map(|form| self.matches(form, at, value)).collect();
            match tried.iter().find_map(|tried| tried.as_ref().ok()) {
                Some(fields) => seen.extend(fields.iter().cloned()),
                None => return wrong(format!("it has none of the forms: {tried:?}")),
            }
        }
        if let (Some(values), true) = (value.as_array(), form["items"].is_object()) {
            for value in values {
                seen.extend(self.matches(&form["items"], &format!("{at}[]"), value)?);
            }
        }
        if let Some(values) = value.as_object() {
            seen.extend(self.fields_match(form, at, values)?);
        }
        Ok(seen)
    }

    fn fields_match(&self, form: &Value, at: &str, values: &Map<String, Value>) -> Result<Vec<String>, String> {
        let mut seen = Vec::new();
        let required = form["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        if let Some(name) = required.into_iter().find(|name| !values.contains_key(*name)) {
            return Err(format!("{at}: it has no field {name}: {values:?}"));
        }
        let (properties, others) = (&form["properties"], &form["additionalProperties"]);
        if properties.is_null() && others.is_null() {
            return Ok(seen);
        }
        for (name, value) in values {
            let (form, at) = match properties.get(name) {
                Some(form) => (form, format!("{at}.{name}")),
                None if others.is_object() => (others, format!("{at}[]")),
                None if others == true => continue,
                None => return Err(format!("{at}: the field {name} is not described")),
            };
            seen.extend(self.matches(form, &at, value)?);
            seen.push(at);
        }
        Ok(seen)
    }
}

/// The names of types.
fn types_of(types: &Value) -> Vec<&str> {
    let several = types.as_array().into_iter().flatten();
    several.chain([types]).filter_map(Value::as_str).collect()
}

/// Whether a value is of a type; `None` if there is no such type.
fn of_type(name: &str, value: &Value) -> Option<bool> {
    Some(match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => return None,
    })
}

/// Whether a text is a time as RFC 3339 has it, with nanoseconds, in UTC.
fn is_time(text: &str) -> bool {
    let form = "0000-00-00T00:00:00.000000000+00:00";
    let is_like = |(letter, like): (char, char)| if like == '0' { letter.is_ascii_digit() } else { letter == like };
    text.len() == form.len() && text.ends_with("+00:00") && text.chars().zip(form.chars()).all(is_like)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(form: &Value) -> Result<Schema, String> {
        let time = json!({"type": "string", "format": "date-time"});
        Schema::parse(&json!({"$defs": {"time": time, "form": form}}).to_string())
    }

    #[test]
    fn values_are_refused_that_have_another_form() {
        let form = json!({
            "type": "object",
            "properties": {
                "at": {"$ref": "#/$defs/time"},
                "count": {"type": "integer"},
                "name": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "kind": {"enum": ["one", "two"]},
                "numbers": {"type": "array", "items": {"type": "integer"}},
                "counters": {"type": "object", "additionalProperties": {"type": "integer"}},
                "any": {"type": "object", "additionalProperties": true}
            },
            "required": ["at", "name"]
        });
        let schema = schema(&form).unwrap();
        let time = "2000-01-01T00:00:00.000000000+00:00";
        let whole = json!({
            "at": time, "count": 1, "name": null, "kind": "one", "numbers": [1], "counters": {"a": 1}, "any": {"a": []}
        });
        assert_eq!(schema.check("form", &json!({"at": time, "name": "name"})), Ok(()));
        let optional = ["form.any", "form.count", "form.counters", "form.kind", "form.numbers"];
        assert_eq!(schema.unseen(), optional);
        assert_eq!(schema.check("form", &whole), Ok(()));
        assert!(schema.unseen().is_empty());
        for (field, value) in [
            ("at", json!("2000-01-01 00:00:00")),
            ("at", json!(1)),
            ("count", json!(1.5)),
            ("count", json!(null)),
            ("name", json!(1)),
            ("kind", json!("three")),
            ("numbers", json!(["1"])),
            ("counters", json!({"a": "1"})),
            ("any", json!([])),
            ("counts", json!(1)),
        ] {
            let mut wrong = whole.clone();
            wrong[field] = value;
            assert!(schema.check("form", &wrong).is_err(), "{wrong}");
        }
        for field in ["at", "name"] {
            let mut without = whole.clone();
            without.as_object_mut().unwrap().remove(field);
            assert!(schema.check("form", &without).is_err(), "{without}");
        }
        assert!(schema.check("form", &json!([])).is_err() && schema.check("other", &whole).is_err());
    }

    #[test]
    fn a_schema_is_refused_that_says_more_than_is_checked() {
        for form in [
            json!({"type": "integer", "minimum": 0}),
            json!({"type": "natural"}),
            json!({"type": "string", "format": "uri"}),
            json!({"const": 1}),
            json!({"type": "array", "items": {"minLength": 1}}),
            json!({"type": "object", "properties": {"a": {"pattern": "b"}}}),
            json!({"type": "object", "properties": {}, "required": ["a"]}),
            json!({"$ref": "#/$defs/none"}),
            json!({"$ref": "#/$defs/time", "type": "string"}),
            json!(true),
        ] {
            assert!(schema(&form).is_err(), "{form}");
        }
    }
}
