//! The divergence at one position, and its derivative with respect to each of the student's logprobs.

use clawhost_sdk::{PluginError, Settings};

/// Upper bound on the log of the mass of the k entries. It keeps the tail's logprob at about -16.1 if the entries have all of
/// the mass, instead of minus infinity.
const MASS_BOUND: f64 = -1e-7;

/// The divergence. Default: reverse KL with a tail.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Divergence {
    /// 1: KL(student || teacher); 0: KL(teacher || student); between: Jensen-Shannon.
    pub alpha: f64,
    /// Whether the rest of the vocabulary is a separate outcome; otherwise both distributions are renormalized.
    pub tail: bool,
}

impl Default for Divergence {
    fn default() -> Divergence {
        Divergence {
            alpha: 1.0,
            tail: true,
        }
    }
}

/// The loss of one position.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Nats, at least 0 up to rounding.
    pub value: f64,
    /// Derivatives with respect to each of the student's k logprobs.
    pub d_student: Vec<f64>,
}

impl Divergence {
    /// Reads the divergence from the settings.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] with the name of the invalid setting.
    pub fn of(settings: &Settings) -> Result<Divergence, PluginError> {
        let default = Divergence::default();
        Ok(Divergence {
            alpha: settings.number("alpha", default.alpha, 0.0..=1.0)?,
            tail: settings.flag("tail", default.tail)?,
        })
    }

    /// The loss of one position, from the same entries of student and teacher.
    pub fn row(&self, student: &Entries, teacher: &Entries) -> Row {
        if self.tail {
            self.with_tail(student, teacher)
        } else {
            self.normalised(student, teacher)
        }
    }

    fn with_tail(&self, student: &Entries, teacher: &Entries) -> Row {
        let (student_tail, bounded) = student.tail();
        let (teacher_tail, _) = teacher.tail();
        let of_tail = self.outcome(student_tail, teacher_tail);
        let mut value = of_tail.value;
        // The tail is log(1 - sum of p), so its derivative with respect to the logprob of p is -p / (1 - sum of p).
        let through_tail = if bounded {
            0.0
        } else {
            of_tail.slope / student_tail.share
        };
        let mut d_student = Vec::with_capacity(student.all.len());
        for (s, t) in student.all.iter().zip(&teacher.all) {
            let outcome = self.outcome(*s, *t);
            value += outcome.value;
            d_student.push(outcome.slope - s.share * through_tail);
        }
        Row { value, d_student }
    }

    fn normalised(&self, student: &Entries, teacher: &Entries) -> Row {
        let (student_mass, teacher_mass) = (Mass::of(student), Mass::of(teacher));
        let mut value = 0.0;
        let mut total = 0.0;
        let mut d_student = Vec::with_capacity(student.all.len());
        for (s, t) in student.all.iter().zip(&teacher.all) {
            let outcome = self.outcome(student_mass.within(*s), teacher_mass.within(*t));
            value += outcome.value;
            total += outcome.slope;
            d_student.push(outcome.slope);
        }
        for (d, s) in d_student.iter_mut().zip(&student.all) {
            *d -= student_mass.within(*s).share * total;
        }
        Row { value, d_student }
    }

    /// One outcome's share of the divergence, and its derivative with respect to the student's logprob of it.
    fn outcome(&self, student: Entry, teacher: Entry) -> Outcome {
        let (s, t) = (student.log, teacher.log);
        let (p, q) = (student.share, teacher.share);
        let a = self.alpha;
        if a == 1.0 {
            Outcome {
                value: p * (s - t),
                slope: p * (s - t + 1.0),
            }
        } else if a == 0.0 {
            Outcome {
                value: q * (t - s),
                slope: -q,
            }
        } else {
            let m = ((1.0 - a) * p + a * q).ln();
            Outcome {
                value: (1.0 - a) * p * (s - m) + a * q * (t - m),
                // The derivatives through m cancel with that of p.
                slope: (1.0 - a) * p * (s - m),
            }
        }
    }
}

struct Outcome {
    value: f64,
    slope: f64,
}

/// The logprob and the probability of one outcome. Both are stored because the exponential is expensive.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Entry {
    log: f64,
    share: f64,
}

/// The k entries of one position, and their sum.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Entries {
    all: Vec<Entry>,
    mass: f64,
}

/// Tolerance for a probability sum above 1, due to rounding in f32.
const EXCESS: f64 = 1e-3;

impl Entries {
    /// Loads the logprobs of another position.
    pub fn read(&mut self, logs: impl IntoIterator<Item = f64>) {
        self.all.clear();
        self.mass = 0.0;
        for log in logs {
            let share = log.exp();
            self.mass += share;
            self.all.push(Entry { log, share });
        }
    }

    /// Whether the entries can be part of a distribution.
    pub fn is_distribution(&self) -> bool {
        let is_logprob = |entry: &Entry| entry.log.is_finite() && entry.log <= EXCESS;
        self.mass <= 1.0 + EXCESS && self.all.iter().all(is_logprob)
    }

    /// The mass outside of the entries, and whether the bound applied.
    fn tail(&self) -> (Entry, bool) {
        let bounded = self.mass > MASS_BOUND.exp();
        let share = if bounded {
            -MASS_BOUND.exp_m1()
        } else {
            1.0 - self.mass
        };
        let log = share.ln();
        (Entry { log, share }, bounded)
    }
}

/// The normalizer with which the entries sum to 1. It is computed relative to the likeliest entry, because all of them may be
/// so unlikely that their sum is 0 in f64.
struct Mass {
    most: f64,
    log: f64,
    sum: f64,
}

impl Mass {
    fn of(entries: &Entries) -> Mass {
        let logs = entries.all.iter().map(|entry| entry.log);
        let most = logs.clone().fold(f64::NEG_INFINITY, f64::max);
        if entries.mass > f64::MIN_POSITIVE {
            return Mass {
                most: 0.0,
                log: entries.mass.ln(),
                sum: entries.mass,
            };
        }
        let sum: f64 = logs.map(|log| (log - most).exp()).sum();
        Mass {
            most,
            log: most + sum.ln(),
            sum,
        }
    }

    fn within(&self, entry: Entry) -> Entry {
        let share = if self.most == 0.0 {
            entry.share
        } else {
            (entry.log - self.most).exp()
        };
        Entry {
            log: entry.log - self.log,
            share: share / self.sum,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUDENTS: [[f64; 3]; 3] = [[-1.9, -2.7, -1.0], [-0.5, -2.2, -2.3], [-3.0, -4.0, -0.1]];
    const TEACHERS: [[f64; 3]; 3] = [[-0.9, -1.5, -2.0], [-1.2, -3.2, -1.9], [-2.0, -0.3, -5.0]];

    fn entries(logs: &[f64]) -> Entries {
        let mut entries = Entries::default();
        entries.read(logs.iter().copied());
        entries
    }

    fn row(divergence: &Divergence, student: &[f64], teacher: &[f64]) -> Row {
        divergence.row(&entries(student), &entries(teacher))
    }

    fn all() -> Vec<Divergence> {
        [0.0, 0.3, 0.5, 0.9, 1.0]
            .into_iter()
            .flat_map(|alpha| [true, false].map(|tail| Divergence { alpha, tail }))
            .collect()
    }

    #[test]
    fn derivatives_match_finite_differences() {
        let h = 1e-6;
        for divergence in all() {
            for (student, teacher) in STUDENTS.iter().zip(&TEACHERS) {
                let here = row(&divergence, student, teacher);
                for i in 0..student.len() {
                    let (mut up, mut down) = (*student, *student);
                    up[i] += h;
                    down[i] -= h;
                    let slope = (row(&divergence, &up, teacher).value
                        - row(&divergence, &down, teacher).value)
                        / (2.0 * h);
                    assert!(
                        (slope - here.d_student[i]).abs() < 1e-7,
                        "{divergence:?}: {slope} {here:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn divergence_is_zero_for_equal_distributions_and_positive_otherwise() {
        for divergence in all() {
            for (student, teacher) in STUDENTS.iter().zip(&TEACHERS) {
                let same = row(&divergence, student, student);
                assert!(same.value.abs() < 1e-12);
                assert!(same.d_student.iter().sum::<f64>().abs() < 1e-12);
                assert!(row(&divergence, student, teacher).value > 1e-3);
            }
        }
    }

    #[test]
    fn entries_with_underflowing_probabilities_are_compared() {
        let far = |logs: &[f64; 3]| logs.map(|log| log - 2000.0);
        let divergence = Divergence {
            alpha: 1.0,
            tail: false,
        };
        for (student, teacher) in STUDENTS.iter().zip(&TEACHERS) {
            let near = row(&divergence, student, teacher);
            let far = row(&divergence, &far(student), &far(teacher));
            assert!((near.value - far.value).abs() < 1e-9);
        }
    }

    #[test]
    fn a_row_with_full_mass_has_a_small_tail() {
        let logs = [0.5f64.ln(), 0.3f64.ln(), 0.2f64.ln()];
        let (tail, bounded) = entries(&logs).tail();
        assert!(bounded && (tail.log + 16.118).abs() < 1e-3);
        let divergence = Divergence::default();
        let here = row(&divergence, &logs, &TEACHERS[0]);
        assert!(here.value.is_finite() && here.d_student.iter().all(|d| d.is_finite()));
    }
}
