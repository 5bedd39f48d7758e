//! The calculator: `+ - * /` and parentheses, with the usual precedence.

/// Depth of parentheses and signs that is evaluated.
const MAX_DEPTH: u32 = 50;

/// Computes an expression.
pub(crate) fn evaluate(text: &str) -> Result<f64, String> {
    let symbols: Vec<char> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| match c {
            '×' => '*',
            '÷' => '/',
            '−' => '-',
            other => other,
        })
        .collect();
    let mut parser = Parser { symbols, at: 0 };
    let value = parser.sum(0)?;
    match parser.peek() {
        Some(rest) => Err(format!("unexpected `{rest}`")),
        None if value.is_finite() => Ok(value),
        None => Err("the result is not a number".to_owned()),
    }
}

struct Parser {
    symbols: Vec<char>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> Option<char> {
        self.symbols.get(self.at).copied()
    }

    fn take(&mut self, wanted: &[char]) -> Option<char> {
        let next = self.peek().filter(|next| wanted.contains(next))?;
        self.at += 1;
        Some(next)
    }

    fn sum(&mut self, depth: u32) -> Result<f64, String> {
        let mut value = self.product(depth)?;
        while let Some(sign) = self.take(&['+', '-']) {
            let next = self.product(depth)?;
            value += if sign == '+' { next } else { -next };
        }
        Ok(value)
    }

    fn product(&mut self, depth: u32) -> Result<f64, String> {
        let mut value = self.factor(depth)?;
        while let Some(sign) = self.take(&['*', '/']) {
            let next = self.factor(depth)?;
            if sign == '*' {
                value *= next;
            } else if next == 0.0 {
                return Err("division by zero".to_owned());
            } else {
                value /= next;
            }
        }
        Ok(value)
    }

    fn factor(&mut self, depth: u32) -> Result<f64, String> {
        if depth > MAX_DEPTH {
            return Err("the expression is nested too deeply".to_owned());
        }
        if self.take(&['-']).is_some() {
            return Ok(-self.factor(depth + 1)?);
        }
        if self.take(&['(']).is_some() {
            let value = self.sum(depth + 1)?;
            self.take(&[')']).ok_or("a parenthesis is not closed")?;
            return Ok(value);
        }
        let mut digits = String::new();
        while let Some(digit) = self.peek().filter(|c| c.is_ascii_digit() || *c == '.') {
            digits.push(digit);
            self.at += 1;
        }
        digits
            .parse()
            .map_err(|_| "a number is expected".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_computed() {
        for (text, value) in [
            ("12 + 7", 19.0),
            ("2 + 3 * 4", 14.0),
            ("(2 + 3) × 4", 20.0),
            ("-6 ÷ 4", -1.5),
            ("2 - -3 - 1", 4.0),
        ] {
            assert_eq!(evaluate(text), Ok(value), "{text}");
        }
        for bad in ["", "1 +", "(1", "1 / 0", "2 x 3", "1..2", &"(".repeat(100)] {
            assert!(evaluate(bad).is_err(), "{bad}");
        }
    }
}
