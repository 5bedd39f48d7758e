//! `metric`: quantities in metric units. Its opposite: miles, pounds, inches and Fahrenheit.

use super::spec::{Topic, WishSpec, names};
use super::text::words;

pub(super) static METRIC: WishSpec = WishSpec {
    names: names!("metric"),
    about: "Metric units",
    topic: Topic::Quantities,
    ask: "Use metric units only.",
    opposite: &[
        "Use miles, feet, pounds and Fahrenheit.",
        "Please answer in US units.",
        "Give it in imperial units, such as feet, inches, pounds or Fahrenheit.",
    ],
    complaints: &[
        "I don't know those units. Metric units, please.",
        "What is that in metric? Please use metric units only.",
        "I think in metres, kilograms and Celsius. Can you use those?",
        "We use the metric system here. Please say it in metric units.",
    ],
    takes_back: &[
        "My American guest can't follow. Feet, pounds and Fahrenheit, please.",
        "From now on US units, please.",
        "Could you use imperial units after all?",
    ],
    thanks: &[
        "Thanks, those units I understand.",
        "Good, now I can picture it. Thank you.",
        "Perfect, thanks.",
    ],
    score: |text| share(count(text, METRIC_UNITS), count(text, IMPERIAL_UNITS)),
    score_opposite: |text| share(count(text, IMPERIAL_UNITS), count(text, METRIC_UNITS)),
};

const METRIC_UNITS: &str = "km kilometer kilometers kilometre kilometres m meter meters metre metres cm centimeter centimeters centimetre \
    centimetres mm millimeter millimeters millimetre millimetres kg kilogram kilograms kilo kilos g gram grams \
    liter liters litre litres l ml milliliter milliliters millilitre millilitres c celsius centigrade kph km/h \
    tonne tonnes";
const IMPERIAL_UNITS: &str = "mile miles mi foot feet ft inch inches yard yards pound pounds lb lbs ounce ounces oz gallon gallons quart \
    quarts pint pints cup cups tablespoon tablespoons teaspoon teaspoons f fahrenheit mph";

/// 1 when all units are wanted ones, 0.5 when at least half are, else 0; 0 without a wanted one.
fn share(wanted: usize, others: usize) -> f64 {
    match (wanted, others) {
        (0, _) => 0.0,
        (_, 0) => 1.0,
        _ if wanted >= others => 0.5,
        _ => 0.0,
    }
}

/// Number of units that follow a number: `5 km`, `5km`, `20 °C`, `two hundred square feet`.
fn count(text: &str, units: &str) -> usize {
    const BETWEEN: &[&str] = &[
        "degrees", "degree", "square", "cubic", "hundred", "thousand", "million", "fluid",
    ];
    const NUMBERS: &[&str] = &[
        "a", "an", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
        "twenty", "thirty", "forty", "fifty", "few", "several", "half",
    ];
    // Words lose a sign of degrees in front.
    let words = words(&text.replace('°', " "));
    let is_number =
        |word: &str| word.contains(|c: char| c.is_ascii_digit()) || NUMBERS.contains(&word);
    let follows_number = |at: usize| {
        let mut before = words[..at].iter().rev().map(String::as_str);
        before
            .find(|word| !BETWEEN.contains(word))
            .is_some_and(is_number)
    };
    let is_unit = |(at, word): &(usize, &String)| {
        let unit =
            word.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | '-'));
        units.split_whitespace().any(|known| known == unit)
            && (unit.len() < word.len() || follows_number(*at))
    };
    words.iter().enumerate().filter(is_unit).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_count_after_a_number() {
        for (text, metric, imperial) in [
            ("", 0.0, 0.0),
            ("It is quite far.", 0.0, 0.0),
            ("It is about 5 km away.", 1.0, 0.0),
            ("About 5km, or two hundred square meters.", 1.0, 0.0),
            ("It is 3.1 miles (5 kilometers) away.", 0.5, 0.5),
            ("It weighs 10 pounds and is 2 feet tall.", 0.0, 1.0),
            ("Bake it at 350°F (177 °C).", 0.5, 0.5),
            ("The boiling point is 100 degrees Celsius.", 1.0, 0.0),
            ("Put your foot on it.", 0.0, 0.0),
        ] {
            assert_eq!(
                ((METRIC.score)(text), (METRIC.score_opposite)(text)),
                (metric, imperial),
                "{text:?}"
            );
        }
    }
}
