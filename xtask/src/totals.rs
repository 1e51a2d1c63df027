//! How tests went, counted from what libtest prints.

/// How many passed and failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Totals {
    /// Adds those of another run.
    pub(crate) const fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }

    /// Reads libtest's summary of one binary: `test result: ok. 5 passed; 0 failed; …`.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let rest = line.strip_prefix("test result: ")?;
        let number = |name: &str| -> Option<u64> {
            let before = rest.split(&format!(" {name}")).next()?;
            before.rsplit(' ').next()?.parse().ok()
        };
        Some(Self {
            passed: number("passed")?,
            failed: number("failed")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_a_test_binary_is_counted() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        let wanted = Totals {
            passed: 12,
            failed: 3,
        };
        assert_eq!(Totals::parse(line), Some(wanted));
        assert_eq!(Totals::parse("test it::works ... ok"), None);
    }
}
