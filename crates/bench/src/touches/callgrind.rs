//! Reads the output of callgrind: the cost of each function, including the functions that it
//! called.

use std::collections::{BTreeMap, HashMap};

/// A cost, as callgrind and its simulated caches count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Instructions.
    pub instructions: u64,
    /// Accesses to data that missed the first-level cache.
    pub first_misses: u64,
    /// Accesses to data that missed the last-level cache, too.
    pub last_misses: u64,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.instructions += other.instructions;
        self.first_misses += other.first_misses;
        self.last_misses += other.last_misses;
    }
}

/// Inclusive costs by names of functions.
pub type Costs = BTreeMap<String, Cost>;

/// The positions of the events that count in a line of costs.
#[derive(Default)]
struct Columns {
    instructions: Vec<usize>,
    first_misses: Vec<usize>,
    last_misses: Vec<usize>,
}

impl Columns {
    fn of(events: &str) -> Self {
        let at = |names: &[&str]| {
            let events = events.split_whitespace().enumerate();
            events.filter(|(_, event)| names.contains(event)).map(|(at, _)| at).collect()
        };
        Self { instructions: at(&["Ir"]), first_misses: at(&["D1mr", "D1mw"]), last_misses: at(&["DLmr", "DLmw"]) }
    }

    /// Returns the cost of a line, whose first word is a position. Zeros at the end are left out of
    /// the line.
    fn cost(&self, line: &str) -> Cost {
        let values: Vec<u64> = line.split_whitespace().skip(1).map(|word| word.parse().unwrap_or(0)).collect();
        let sum = |columns: &[usize]| columns.iter().filter_map(|at| values.get(*at)).sum();
        Cost {
            instructions: sum(&self.instructions),
            first_misses: sum(&self.first_misses),
            last_misses: sum(&self.last_misses),
        }
    }
}

/// Names that callgrind writes once, with the numbers that it writes for them from then on.
#[derive(Default)]
struct Names(HashMap<String, String>);

impl Names {
    /// Returns the name in `(number) name` or `(number)`.
    fn resolve(&mut self, text: &str) -> String {
        let Some((number, name)) = text.strip_prefix('(').and_then(|rest| rest.split_once(')')) else {
            return text.to_owned();
        };
        match name.trim() {
            "" => self.0.get(number).cloned().unwrap_or_default(),
            name => self.0.entry(number.to_owned()).insert_entry(name.to_owned()).get().clone(),
        }
    }
}

/// Reads a profile. The cost of a recursive function counts once for each depth, so it should not
/// be used.
pub fn inclusive(profile: &str) -> Costs {
    let (mut columns, mut names, mut costs) = (Columns::default(), Names::default(), Costs::new());
    let mut current = String::new();
    for line in profile.lines() {
        if let Some(events) = line.strip_prefix("events:") {
            columns = Columns::of(events);
        } else if let Some(name) = line.strip_prefix("fn=") {
            current = names.resolve(name);
        } else if let Some(name) = line.strip_prefix("cfn=") {
            names.resolve(name);
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            // The line has the function's own cost, or that of a call, after a line that says so.
            *costs.entry(current.clone()).or_default() += columns.cost(line);
        }
    }
    costs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_include_those_of_calls_and_names_are_remembered() {
        let profile = "\
version: 1
positions: line
events: Ir Dr D1mr DLmr D1mw DLmw
fl=(1) a.rs
fn=(1) outer
10 5 1 1
+2 7
cfn=(2) inner
calls=3 20
* 100 9 4 2 1
fn=(2)
20 100 9 4 2 1
totals: 112
";
        let costs = inclusive(profile);
        let inner = Cost { instructions: 100, first_misses: 5, last_misses: 2 };
        assert_eq!(costs["inner"], inner);
        assert_eq!(costs["outer"], Cost { instructions: 112, first_misses: 6, ..inner });
    }
}
