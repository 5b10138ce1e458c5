//! Pauses between attempts to connect.

use std::time::Duration;

use rand::Rng;

/// Doubling pauses with jitter: many clients that lost one daemon do not come back in step.
#[derive(Debug)]
pub(crate) struct Backoff {
    least: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(least: Duration, most: Duration) -> Self {
        Self { least, most, next: least }
    }

    /// The pause before the next attempt: between half and all of the current step.
    pub(crate) fn pause(&mut self) -> Duration {
        let step = self.next;
        self.next = (step * 2).min(self.most);
        step.mul_f64(rand::rng().random_range(0.5..=1.0))
    }

    /// An attempt succeeded.
    pub(crate) fn reset(&mut self) {
        self.next = self.least;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_limit_and_start_over() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(100), ms(350));
        for most in [100, 200, 350, 350] {
            let pause = backoff.pause();
            assert!(pause >= ms(most) / 2 && pause <= ms(most), "{pause:?} of {most} ms");
        }
        backoff.reset();
        assert!(backoff.pause() <= ms(100));
    }
}
