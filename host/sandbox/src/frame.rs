//! What is put into a display and what comes out of it.

/// Width of a display in pixels.
pub const WIDTH: u32 = 1024;
/// Height of a display in pixels.
pub const HEIGHT: u32 = 768;

/// A file of the pages that a display shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// A path such as `cart/index.html`, which is below `http://task.test/`, or a whole address with `http` or `https`.
    pub url: String,
    /// Media type, such as `text/html`.
    pub media_type: String,
    /// Content.
    pub data: Vec<u8>,
}

/// What a display shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The viewport as PNG, [`WIDTH`] by [`HEIGHT`] pixels.
    pub screenshot: Vec<u8>,
    /// The accessibility tree as text, if requested.
    pub tree: Option<String>,
    /// Address of the page.
    pub url: String,
}

/// A button of the mouse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MouseButton {
    /// Left.
    Left,
    /// Middle.
    Middle,
    /// Right.
    Right,
}

/// An action. Positions are pixels of the viewport, from its upper left corner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Moves the mouse.
    Move(u32, u32),
    /// Clicks.
    Click(u32, u32, MouseButton),
    /// Clicks twice with the left button.
    DoubleClick(u32, u32),
    /// Drags with the left button from one position to another.
    Drag((u32, u32), (u32, u32)),
    /// Turns the wheel where the mouse is: pixels to the right, and down.
    Scroll(i32, i32),
    /// Types a text: the keys of a US keyboard where it has them.
    Text(String),
    /// Presses a chord such as `ctrl+shift+t`.
    Keys(String),
    /// Waits for milliseconds.
    Wait(u32),
}
