//! Actions as events of mouse and keyboard.

use std::time::Duration;

use serde_json::{Value, json};

use super::cdp::Cdp;
use super::keys;
use crate::error::SandboxError;
use crate::frame::{HEIGHT, Input, MouseButton, WIDTH};

/// Longest text that is typed at once, in characters.
const MAX_TEXT: usize = 10_000;
/// Longest wait.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Furthest scroll in pixels.
const MAX_SCROLL: i32 = 100_000;
/// Moves of a drag between its ends.
const DRAG_MOVES: u32 = 8;

type Position = (u32, u32);

/// Performs an action. `mouse` is where the mouse is.
pub(super) async fn perform(
    cdp: &Cdp,
    mouse: &mut Position,
    input: Input,
) -> Result<(), SandboxError> {
    match input {
        Input::Move(x, y) => move_to(cdp, mouse, inside((x, y))?, None).await,
        Input::Click(x, y, button) => {
            move_to(cdp, mouse, inside((x, y))?, None).await?;
            click(cdp, *mouse, button, 1).await
        }
        Input::DoubleClick(x, y) => {
            move_to(cdp, mouse, inside((x, y))?, None).await?;
            click(cdp, *mouse, MouseButton::Left, 1).await?;
            click(cdp, *mouse, MouseButton::Left, 2).await
        }
        Input::Drag(from, to) => drag(cdp, mouse, inside(from)?, inside(to)?).await,
        Input::Scroll(right, down) => {
            if right.abs() > MAX_SCROLL || down.abs() > MAX_SCROLL {
                return Err(SandboxError::Denied(format!(
                    "a scroll of {right} and {down} pixels; {MAX_SCROLL} are allowed"
                )));
            }
            let mut event = mouse_event("mouseWheel", *mouse);
            event["deltaX"] = right.into();
            event["deltaY"] = down.into();
            dispatch(cdp, "Input.dispatchMouseEvent", event).await
        }
        Input::Text(text) => type_text(cdp, &text).await,
        Input::Keys(chord) => {
            for event in keys::chord(&chord)? {
                dispatch(cdp, "Input.dispatchKeyEvent", event).await?;
            }
            Ok(())
        }
        Input::Wait(milliseconds) => {
            let time = Duration::from_millis(milliseconds.into());
            if time > MAX_WAIT {
                return Err(SandboxError::Denied(format!(
                    "a wait of {milliseconds} ms; {} are allowed",
                    MAX_WAIT.as_millis()
                )));
            }
            tokio::time::sleep(time).await;
            Ok(())
        }
    }
}

fn inside((x, y): Position) -> Result<Position, SandboxError> {
    if x < WIDTH && y < HEIGHT {
        return Ok((x, y));
    }
    Err(SandboxError::Denied(format!(
        "the position {x},{y} is outside of the {WIDTH} by {HEIGHT} pixels of the display"
    )))
}

fn mouse_event(kind: &str, (x, y): Position) -> Value {
    json!({"type": kind, "x": x, "y": y, "button": "none", "buttons": 0, "pointerType": "mouse"})
}

async fn dispatch(cdp: &Cdp, method: &str, event: Value) -> Result<(), SandboxError> {
    cdp.call(method, event).await.map(|_| ())
}

/// Moves the mouse, with the left button held if `held`.
async fn move_to(
    cdp: &Cdp,
    mouse: &mut Position,
    to: Position,
    held: Option<()>,
) -> Result<(), SandboxError> {
    let mut event = mouse_event("mouseMoved", to);
    if held.is_some() {
        event["button"] = "left".into();
        event["buttons"] = 1.into();
    }
    dispatch(cdp, "Input.dispatchMouseEvent", event).await?;
    *mouse = to;
    Ok(())
}

async fn button(
    cdp: &Cdp,
    kind: &str,
    at: Position,
    button: MouseButton,
    count: u32,
) -> Result<(), SandboxError> {
    let (name, bit) = match button {
        MouseButton::Left => ("left", 1),
        MouseButton::Right => ("right", 2),
        MouseButton::Middle => ("middle", 4),
    };
    let mut event = mouse_event(kind, at);
    event["button"] = name.into();
    event["buttons"] = if kind == "mousePressed" { bit } else { 0 }.into();
    event["clickCount"] = count.into();
    dispatch(cdp, "Input.dispatchMouseEvent", event).await
}

async fn click(
    cdp: &Cdp,
    at: Position,
    which: MouseButton,
    count: u32,
) -> Result<(), SandboxError> {
    button(cdp, "mousePressed", at, which, count).await?;
    button(cdp, "mouseReleased", at, which, count).await
}

/// Drags. If the page lets its own data be dragged, the moves are intercepted and the data is dropped at the end.
async fn drag(
    cdp: &Cdp,
    mouse: &mut Position,
    from: Position,
    to: Position,
) -> Result<(), SandboxError> {
    cdp.update(|status| status.drag = None);
    move_to(cdp, mouse, from, None).await?;
    button(cdp, "mousePressed", from, MouseButton::Left, 1).await?;
    for step in 1..=DRAG_MOVES {
        let between = |from: u32, to: u32| {
            let (from, to, step) = (i64::from(from), i64::from(to), i64::from(step));
            let at = from + (to - from) * step / i64::from(DRAG_MOVES);
            u32::try_from(at).expect("between two positions")
        };
        let at = (between(from.0, to.0), between(from.1, to.1));
        move_to(cdp, mouse, at, Some(())).await?;
        if cdp.status().drag.is_some() {
            break;
        }
        // A frame, after which the start of a drag is known.
        super::next_frame(cdp).await?;
    }
    if let Some(data) = cdp.status().drag {
        for kind in ["dragEnter", "dragOver", "drop"] {
            let event = json!({"type": kind, "x": to.0, "y": to.1, "data": data});
            dispatch(cdp, "Input.dispatchDragEvent", event).await?;
        }
        *mouse = to;
    }
    cdp.update(|status| status.drag = None);
    button(cdp, "mouseReleased", to, MouseButton::Left, 1).await
}

async fn type_text(cdp: &Cdp, text: &str) -> Result<(), SandboxError> {
    let length = text.chars().count();
    if length > MAX_TEXT {
        return Err(SandboxError::QuotaExceeded(format!(
            "a text of {length} characters; {MAX_TEXT} are allowed at once"
        )));
    }
    let mut sent = Vec::new();
    for sign in text.chars().filter(|sign| *sign != '\r') {
        match keys::typed(sign) {
            Some(events) => {
                sent.extend(events.map(|event| cdp.send("Input.dispatchKeyEvent", event)));
            }
            None => sent.push(cdp.send("Input.insertText", json!({"text": sign}))),
        }
    }
    for one in sent {
        let answer = one.answer().await?;
        answer.map_err(|error| SandboxError::Unavailable(format!("typing: {error}")))?;
    }
    Ok(())
}
