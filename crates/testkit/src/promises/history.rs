//! The values of one thing over time, and since when it is durable.

/// Values with the sequence numbers of the operations that set them, and the one up to which it is
/// known to be durable.
#[derive(Debug, Clone)]
pub(super) struct History<T> {
    values: Vec<(u64, T)>,
    floor: u64,
}

impl<T> History<T> {
    /// `value` from the beginning, durable.
    pub fn new(value: T) -> Self {
        Self { values: vec![(0, value)], floor: 0 }
    }

    /// The value now.
    pub fn now(&self) -> &T {
        &self.values.last().expect("a history is not empty").1
    }

    /// From `sequence` on it is `value`.
    pub fn push(&mut self, sequence: u64, value: T) {
        match self.values.last_mut() {
            Some((last, old)) if *last == sequence => *old = value,
            _ => self.values.push((sequence, value)),
        }
    }

    /// The last value is better known now.
    pub fn correct(&mut self, value: T) {
        self.values.last_mut().expect("a history is not empty").1 = value;
    }

    /// From now on its state is that of `sequence`, or later.
    pub fn promise(&mut self, sequence: u64) {
        self.floor = self.floor.max(sequence);
    }

    /// The sequence number up to which it is durable.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// The values that may be found after a crash, with their sequence numbers.
    pub fn allowed(&self) -> &[(u64, T)] {
        let later = self.values.partition_point(|(sequence, _)| *sequence <= self.floor);
        &self.values[later.saturating_sub(1)..]
    }

    /// Each change: when the value before it began, that value, when it changed, and to what.
    pub fn steps(&self) -> impl Iterator<Item = (u64, &T, u64, &T)> {
        self.values.windows(2).map(|pair| (pair[0].0, &pair[0].1, pair[1].0, &pair[1].1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promised_and_later_values_are_allowed() {
        let mut history = History::new('a');
        history.push(3, 'b');
        history.push(5, 'c');
        let allowed = |history: &History<char>| history.allowed().iter().map(|value| value.1).collect::<String>();
        assert_eq!(allowed(&history), "abc");
        history.promise(4);
        assert_eq!(allowed(&history), "bc");
        history.promise(2);
        assert_eq!(allowed(&history), "bc");
        history.promise(5);
        assert_eq!(allowed(&history), "c");
        assert_eq!(*history.now(), 'c');
    }
}
