//! Actions: from the arguments of the tool, and from a line of text.
//!
//! Both have the same names and the same meaning; every one that is offered is performed.

use clawhost_sdk::ToolSpec;
use clawhost_sdk::display::{Button, Input};
use task_json::Json;

/// The tool.
pub(crate) const TOOL: &str = "computer_use";
/// Pixels of one turn of the wheel, if none are given.
const SCROLL: f64 = 400.0;
/// Longest wait, in seconds.
const MAX_WAIT: f64 = 10.0;

/// System prompt of the text form.
pub(crate) const GRAMMAR: &str = "Reply with one action on one line:\n\
left_click MARK | right_click MARK | middle_click MARK | double_click MARK | mouse_move MARK\n\
left_click_drag MARK MARK\n\
scroll PIXELS | hscroll PIXELS (negative: down, left)\n\
type TEXT | key CHORD | wait SECONDS | navigate PAGE\n\
terminate success | terminate failure | terminate infeasible\n\
MARK is the number in brackets before an element, or X,Y in pixels.";

/// A position.
pub(crate) type Position = (u32, u32);

/// What the policy does.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    /// Inputs, in order.
    Inputs(Vec<Input>),
    /// Shows a page.
    Navigate(String),
    /// Ends the episode.
    Terminate(Verdict),
}

/// What the policy says at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Success,
    Failure,
    Infeasible,
}

/// What the policy sees, as far as actions need it.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    /// The position of each mark, from 1.
    pub(crate) marks: Vec<Position>,
    /// Where the mouse is.
    pub(crate) mouse: Position,
}

impl View {
    /// Reads the marks of an accessibility tree.
    pub(crate) fn read_marks(&mut self, tree: &str) {
        self.marks.clear();
        for line in tree.lines() {
            let line = line.trim_start();
            let Some((mark, _)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']'))
            else {
                continue;
            };
            let position = line
                .rsplit_once(" @")
                .and_then(|(_, place)| position(place));
            if let (Ok(mark), Some(position)) = (mark.parse::<usize>(), position)
                && mark == self.marks.len() + 1
            {
                self.marks.push(position);
            }
        }
    }

    fn mark(&self, mark: f64) -> Result<Position, String> {
        let index = (mark >= 1.0 && mark.fract() == 0.0).then(|| mark as usize - 1);
        let found = index.and_then(|index| self.marks.get(index));
        found.copied().ok_or_else(|| {
            format!(
                "there is no mark {mark}; the marks are 1 to {}",
                self.marks.len()
            )
        })
    }
}

fn position(text: &str) -> Option<Position> {
    let (x, y) = text.split_once(',')?;
    Some((x.trim().parse().ok()?, y.trim().parse().ok()?))
}

/// The tool as it is offered.
pub(crate) fn spec() -> ToolSpec {
    ToolSpec::of_object(
        TOOL,
        "Uses the mouse and the keyboard of a browser, and returns the page's elements. Elements in view have a \
            mark, the number in brackets, and the pixel at their middle. Give `mark` or `coordinate` to actions of the mouse. \
            `left_click_drag` drags from `from_mark` or `from_coordinate` (default: where the mouse is). `scroll` and \
            `hscroll` turn the wheel by `pixels`: positive is up and right. `key` presses the chord `keys`, `type` types `text`, \
            `wait` waits for `time` seconds, `navigate` shows the page `url`. `terminate` ends the task with a `status`; \
            say `infeasible` if it cannot be done.",
        concat!(
            r#""action":{"type":"string","enum":["left_click","right_click","middle_click","#,
            r#""double_click","mouse_move","left_click_drag","scroll","hscroll","type","key","wait","navigate","terminate"]},"#,
            r#""mark":{"type":"integer"},"coordinate":{"type":"array","items":{"type":"number"}},"#,
            r#""from_mark":{"type":"integer"},"from_coordinate":{"type":"array","items":{"type":"number"}},"#,
            r#""pixels":{"type":"number"},"text":{"type":"string"},"keys":{"type":"array","items":{"type":"string"}},"#,
            r#""time":{"type":"number"},"url":{"type":"string"},"#,
            r#""status":{"type":"string","enum":["success","failure","infeasible"]}"#,
        ),
        r#""action""#,
    )
}

/// The action of a call's arguments.
///
/// # Errors
/// What is wrong with them, for the policy.
pub(crate) fn of_call(arguments: &str, view: &View) -> Result<Action, String> {
    let arguments = task_json::parse(arguments).ok_or("the arguments are no JSON")?;
    let number = |name: &str| arguments.get(name).and_then(Json::number);
    let words = |name: &str| arguments.get(name).and_then(Json::text);
    let place = |mark: &str, coordinate: &str| match (number(mark), arguments.get(coordinate)) {
        (Some(mark), _) => view.mark(mark).map(Some),
        (None, Some(Json::Null) | None) => Ok(None),
        (None, Some(place)) => match place.items() {
            [Json::Number(x), Json::Number(y)] if *x >= 0.0 && *y >= 0.0 => {
                Ok(Some((*x as u32, *y as u32)))
            }
            _ => Err(format!("`{coordinate}` is not [X, Y]")),
        },
    };
    let keys = match arguments.get("keys") {
        Some(Json::Text(keys)) => Some(keys.clone()),
        Some(keys) => {
            let keys: Vec<&str> = keys.items().iter().filter_map(Json::text).collect();
            (!keys.is_empty()).then(|| keys.join("+"))
        }
        None => None,
    };
    let name = words("action").ok_or("there is no `action`")?;
    build(
        name,
        Given {
            at: place("mark", "coordinate")?,
            from: place("from_mark", "from_coordinate")?,
            amount: number("pixels").or(number("time")),
            text: words("text")
                .or(words("url"))
                .or(words("status"))
                .map(str::to_owned)
                .or(keys),
        },
        view,
    )
}

/// The action of the first line of a reply that has one.
///
/// # Errors
/// What is wrong with the reply, for the policy.
pub(crate) fn of_text(reply: &str, view: &View) -> Result<Action, String> {
    let lines = reply.lines().map(|line| {
        let line = line.trim();
        let line = line.strip_prefix("Action:").unwrap_or(line);
        line.trim().trim_matches('`')
    });
    let mut first = Err(format!("there is no action in the reply. {GRAMMAR}"));
    for line in lines {
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        if NAMES.contains(&name) {
            first = of_line(name, rest.trim(), view);
            break;
        }
    }
    first
}

fn of_line(name: &str, rest: &str, view: &View) -> Result<Action, String> {
    let mut given = Given::default();
    let mut places = rest.split_whitespace().map(|word| match position(word) {
        Some(position) => Ok(position),
        None => match word.trim_matches(['[', ']']).parse() {
            Ok(mark) => view.mark(mark),
            Err(_) => Err(format!("`{word}` is neither a mark nor X,Y")),
        },
    });
    match name {
        "left_click_drag" => {
            let (first, second) = (places.next().transpose()?, places.next().transpose()?);
            (given.from, given.at) = match second {
                Some(second) => (first, Some(second)),
                None => (None, first),
            };
        }
        "scroll" | "hscroll" | "wait" => {
            let number = |_| format!("`{name}` takes a number");
            given.amount = (!rest.is_empty())
                .then(|| rest.parse())
                .transpose()
                .map_err(number)?;
        }
        "type" | "key" | "navigate" | "terminate" => given.text = Some(rest.to_owned()),
        _ => given.at = places.next().transpose()?,
    }
    build(name, given, view)
}

/// The actions.
pub(crate) const NAMES: [&str; 13] = [
    "left_click",
    "right_click",
    "middle_click",
    "double_click",
    "mouse_move",
    "left_click_drag",
    "scroll",
    "hscroll",
    "type",
    "key",
    "wait",
    "navigate",
    "terminate",
];

/// What an action was given.
#[derive(Default)]
struct Given {
    at: Option<Position>,
    from: Option<Position>,
    amount: Option<f64>,
    text: Option<String>,
}

fn build(name: &str, given: Given, view: &View) -> Result<Action, String> {
    let at = || {
        given
            .at
            .ok_or_else(|| format!("`{name}` takes a mark or a coordinate"))
    };
    let text = |what: &str| {
        let text = given.text.clone().filter(|text| !text.is_empty());
        text.ok_or_else(|| format!("`{name}` takes {what}"))
    };
    let click = |button| {
        let (x, y) = at()?;
        Ok(Action::Inputs(vec![Input::Click((x, y, button))]))
    };
    let scroll = |input: fn(i32) -> Input| {
        let pixels = given.amount.unwrap_or(-SCROLL).clamp(-1e5, 1e5) as i32;
        let mut inputs: Vec<Input> = given.at.map(Input::Move).into_iter().collect();
        inputs.push(input(pixels));
        Ok(Action::Inputs(inputs))
    };
    match name {
        "left_click" => click(Button::Left),
        "right_click" => click(Button::Right),
        "middle_click" => click(Button::Middle),
        "double_click" => Ok(Action::Inputs(vec![Input::DoubleClick(at()?)])),
        "mouse_move" => Ok(Action::Inputs(vec![Input::Move(at()?)])),
        "left_click_drag" => {
            let from = given.from.unwrap_or(view.mouse);
            Ok(Action::Inputs(vec![Input::Drag((from, at()?))]))
        }
        "scroll" => scroll(|pixels| Input::Scroll((0, -pixels))),
        "hscroll" => scroll(|pixels| Input::Scroll((pixels, 0))),
        "type" => Ok(Action::Inputs(vec![Input::Text(text("a text")?)])),
        "key" => Ok(Action::Inputs(vec![Input::Keys(text(
            "a chord such as ctrl+a",
        )?)])),
        "wait" => {
            let seconds = given.amount.unwrap_or(1.0).clamp(0.0, MAX_WAIT);
            Ok(Action::Inputs(vec![Input::Wait((seconds * 1e3) as u32)]))
        }
        "navigate" => Ok(Action::Navigate(text("a page")?)),
        "terminate" => match text("success, failure or infeasible")?.as_str() {
            "success" => Ok(Action::Terminate(Verdict::Success)),
            "failure" => Ok(Action::Terminate(Verdict::Failure)),
            "infeasible" => Ok(Action::Terminate(Verdict::Infeasible)),
            _ => Err("`terminate` takes success, failure or infeasible".to_owned()),
        },
        _ => Err(format!(
            "there is no action `{name}`; the actions are: {}",
            NAMES.join(", ")
        )),
    }
}

/// Where the mouse is after an input.
pub(crate) fn mouse_after(input: &Input) -> Option<Position> {
    match input {
        Input::Move(at) | Input::DoubleClick(at) | Input::Drag((_, at)) => Some(*at),
        Input::Click((x, y, _)) => Some((*x, *y)),
        Input::Scroll(_) | Input::Text(_) | Input::Keys(_) | Input::Wait(_) => None,
    }
}
