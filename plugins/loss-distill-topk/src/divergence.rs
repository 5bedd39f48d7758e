//! The divergence of one position, and its derivative by each of the student's log-probs.

use clawhost_sdk::{PluginError, Settings};

/// Largest log of the mass of the k entries: it leaves the tail a log-prob of about -16.1 where the
/// entries are all there is, instead of minus infinity.
const MASS_BOUND: f64 = -1e-7;

/// Which divergence. Default: reverse, with a tail.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Divergence {
    /// 1: KL(student || teacher); 0: KL(teacher || student); between: Jensen-Shannon.
    pub alpha: f64,
    /// Whether the rest of the vocabulary is an outcome of its own; else both sides are normalised.
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
    /// By each of the student's k log-probs.
    pub d_student: Vec<f64>,
}

impl Divergence {
    /// The divergence that the settings name.
    ///
    /// # Errors
    /// [`PluginError::InvalidInput`] that names the setting which is wrong.
    pub fn of(settings: &Settings) -> Result<Divergence, PluginError> {
        let default = Divergence::default();
        Ok(Divergence {
            alpha: settings.number("alpha", default.alpha, 0.0..=1.0)?,
            tail: settings.flag("tail", default.tail)?,
        })
    }

    /// The loss of one position from the log-probs of the same entries.
    pub fn row(&self, student: &[f64], teacher: &[f64]) -> Row {
        if self.tail {
            self.with_tail(student, teacher)
        } else {
            self.normalised(student, teacher)
        }
    }

    fn with_tail(&self, student: &[f64], teacher: &[f64]) -> Row {
        let (student_tail, bounded) = tail(student);
        let (teacher_tail, _) = tail(teacher);
        let of_tail = self.outcome(student_tail, teacher_tail);
        let mut value = of_tail.value;
        // The tail is log(1 - sum of p), so its derivative by the log-prob of p is -p / tail mass.
        let through_tail = if bounded {
            0.0
        } else {
            of_tail.slope / student_tail.exp()
        };
        let mut d_student = Vec::with_capacity(student.len());
        for (s, t) in student.iter().zip(teacher) {
            let outcome = self.outcome(*s, *t);
            value += outcome.value;
            d_student.push(outcome.slope - s.exp() * through_tail);
        }
        Row { value, d_student }
    }

    fn normalised(&self, student: &[f64], teacher: &[f64]) -> Row {
        let (student_mass, teacher_mass) = (log_sum(student), log_sum(teacher));
        let mut value = 0.0;
        let mut d_student = Vec::with_capacity(student.len());
        for (s, t) in student.iter().zip(teacher) {
            let outcome = self.outcome(s - student_mass, t - teacher_mass);
            value += outcome.value;
            d_student.push(outcome.slope);
        }
        let total: f64 = d_student.iter().sum();
        for (d, s) in d_student.iter_mut().zip(student) {
            *d -= (s - student_mass).exp() * total;
        }
        Row { value, d_student }
    }

    /// One outcome's share of the divergence, and its slope by the student's log-prob of it.
    fn outcome(&self, s: f64, t: f64) -> Outcome {
        let (p, q) = (s.exp(), t.exp());
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
                // The derivatives through m cancel against that of p.
                slope: (1.0 - a) * p * (s - m),
            }
        }
    }
}

struct Outcome {
    value: f64,
    slope: f64,
}

/// The log-prob of everything that is not in the row, and whether the bound decided it.
fn tail(row: &[f64]) -> (f64, bool) {
    let mass = log_sum(row);
    let bounded = mass > MASS_BOUND;
    let mass = if bounded { MASS_BOUND } else { mass };
    ((-mass.exp_m1()).ln(), bounded)
}

fn log_sum(row: &[f64]) -> f64 {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if most == f64::NEG_INFINITY {
        return most;
    }
    let sum: f64 = row.iter().map(|value| (value - most).exp()).sum();
    most + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUDENTS: [[f64; 3]; 3] = [[-1.9, -2.7, -1.0], [-0.5, -2.2, -2.3], [-3.0, -4.0, -0.1]];
    const TEACHERS: [[f64; 3]; 3] = [[-0.9, -1.5, -2.0], [-1.2, -3.2, -1.9], [-2.0, -0.3, -5.0]];

    fn all() -> Vec<Divergence> {
        [0.0, 0.3, 0.5, 0.9, 1.0]
            .into_iter()
            .flat_map(|alpha| [true, false].map(|tail| Divergence { alpha, tail }))
            .collect()
    }

    #[test]
    fn derivatives_are_the_slopes_of_the_value() {
        let h = 1e-6;
        for divergence in all() {
            for (student, teacher) in STUDENTS.iter().zip(&TEACHERS) {
                let here = divergence.row(student, teacher);
                for i in 0..student.len() {
                    let (mut up, mut down) = (*student, *student);
                    up[i] += h;
                    down[i] -= h;
                    let slope = (divergence.row(&up, teacher).value
                        - divergence.row(&down, teacher).value)
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
    fn it_is_zero_between_equals_and_positive_between_others() {
        for divergence in all() {
            for (student, teacher) in STUDENTS.iter().zip(&TEACHERS) {
                let same = divergence.row(student, student);
                assert!(same.value.abs() < 1e-12);
                assert!(same.d_student.iter().sum::<f64>().abs() < 1e-12);
                assert!(divergence.row(student, teacher).value > 1e-3);
            }
        }
    }

    #[test]
    fn a_row_that_is_everything_leaves_a_small_tail() {
        let row = [0.5f64.ln(), 0.3f64.ln(), 0.2f64.ln()];
        let (log, bounded) = tail(&row);
        assert!(bounded && (log + 16.118).abs() < 1e-3);
        let divergence = Divergence::default();
        let here = divergence.row(&row, &TEACHERS[0]);
        assert!(here.value.is_finite() && here.d_student.iter().all(|d| d.is_finite()));
    }
}
