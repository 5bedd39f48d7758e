//! Tracks fenced Markdown code blocks in the content of a reply: tool-call tags inside them are not calls.

/// Fence state after the text so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct CodeFences {
    /// Character and length of the open fence.
    open_fence: Option<(char, usize)>,
    line: Line,
}

/// State of the current line.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    indent: usize,
    mark: Option<char>,
    run: usize,
    /// It has other text after the fence.
    has_more: bool,
    /// A backtick follows the fence, so it is inline code.
    inline: bool,
}

impl CodeFences {
    /// Advances over `text`.
    pub(crate) fn push(&mut self, text: &str) {
        for character in text.chars() {
            self.push_char(character);
        }
    }

    /// Whether text after `text` is inside a block.
    pub(crate) fn inside_after(&self, text: &str) -> bool {
        if self.open_fence.is_none() && !text.contains('\n') {
            return false;
        }
        let mut after = self.clone();
        after.push(text);
        after.open_fence.is_some()
    }

    fn push_char(&mut self, character: char) {
        if character == '\n' {
            let line = std::mem::take(&mut self.line);
            if let Some(mark) = line.mark.filter(|_| line.run >= 3 && line.indent <= 3) {
                match self.open_fence {
                    None if !line.inline => self.open_fence = Some((mark, line.run)),
                    Some((open, run)) if open == mark && line.run >= run && !line.has_more => {
                        self.open_fence = None;
                    }
                    _ => {}
                }
            }
            return;
        }
        let line = &mut self.line;
        match (line.mark, character) {
            (None, ' ') if !line.has_more => line.indent += 1,
            (None, '`' | '~') if !line.has_more => (line.mark, line.run) = (Some(character), 1),
            (Some(mark), _) if mark == character && !line.has_more => line.run += 1,
            _ => {
                line.has_more |= !character.is_whitespace();
                line.inline |= line.mark == Some('`') && character == '`';
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_open_and_close_as_in_markdown() {
        for (text, inside) in [
            ("a ``` b\n", false),
            ("```\n", true),
            ("```", false),
            ("```json\n{", true),
            ("```json\n{}\n```\n", false),
            ("```\n``\n", true),
            ("````\n```\n", true),
            ("```\n``` no end\n", true),
            ("```\n```  \n", false),
            ("~~~\n```\n", true),
            ("    ```\n", false),
            ("``` `a` ```\n", false),
            ("```\n````\n", false),
            ("x\n ```py\ny", true),
        ] {
            assert_eq!(CodeFences::default().inside_after(text), inside, "{text:?}");
            let mut fences = CodeFences::default();
            text.chars().for_each(|c| fences.push(&c.to_string()));
            assert_eq!(fences.open_fence.is_some(), inside, "{text:?}");
        }
    }
}
