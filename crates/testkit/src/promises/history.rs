//! The values of one thing over time, and the operation up to which it is durable.

/// Values with the sequence numbers of the operations that set them, and the number up to which the
/// state is known to be durable.
#[derive(Debug, Clone)]
pub(super) struct History<T> {
    values: Vec<(u64, T)>,
    floor: u64,
}

impl<T> History<T> {
    /// Makes a history in which `value` is durable from the beginning.
    pub fn new(value: T) -> Self {
        Self { values: vec![(0, value)], floor: 0 }
    }

    /// Returns the present value.
    pub fn now(&self) -> &T {
        &self.values.last().expect("a history is not empty").1
    }

    /// Sets the value from operation `sequence` on.
    pub fn push(&mut self, sequence: u64, value: T) {
        match self.values.last_mut() {
            Some((last, old)) if *last == sequence => *old = value,
            _ => self.values.push((sequence, value)),
        }
    }

    /// Replaces the last value, which is better known now.
    pub fn correct(&mut self, value: T) {
        self.values.last_mut().expect("a history is not empty").1 = value;
    }

    /// Notes that a crash leaves the state after `sequence`, or a later one.
    pub fn promise(&mut self, sequence: u64) {
        self.floor = self.floor.max(sequence);
    }

    /// Returns the sequence number up to which it is durable.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Returns the values that may be found after a crash, with their sequence numbers.
    pub fn allowed(&self) -> &[(u64, T)] {
        let later = self.values.partition_point(|(sequence, _)| *sequence <= self.floor);
        &self.values[later.saturating_sub(1)..]
    }

    /// Returns each change: the operation that set the old value, that value, the operation of the
    /// change, and the new value.
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
