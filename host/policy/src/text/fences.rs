//! Follows fenced code blocks through the content of a reply: what stands in one is shown, not done.

/// The blocks of the text so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Fences {
    /// Mark and length of the fence that is open.
    inside: Option<(char, usize)>,
    line: Line,
}

/// The line that has begun.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    indent: usize,
    mark: Option<char>,
    run: usize,
    /// There is more on it than a fence.
    more: bool,
    /// Behind the fence stands a backtick, so it is code in a line of text.
    inline: bool,
}

impl Fences {
    /// Takes text that follows.
    pub(super) fn feed(&mut self, text: &str) {
        for character in text.chars() {
            self.take(character);
        }
    }

    /// Whether text that follows `text` stands in a block.
    pub(super) fn inside_after(&self, text: &str) -> bool {
        if self.inside.is_none() && !text.contains('\n') {
            return false;
        }
        let mut after = self.clone();
        after.feed(text);
        after.inside.is_some()
    }

    fn take(&mut self, character: char) {
        if character == '\n' {
            let line = std::mem::take(&mut self.line);
            if let Some(mark) = line.mark.filter(|_| line.run >= 3 && line.indent <= 3) {
                match self.inside {
                    None if !line.inline => self.inside = Some((mark, line.run)),
                    Some((open, run)) if open == mark && line.run >= run && !line.more => {
                        self.inside = None;
                    }
                    _ => {}
                }
            }
            return;
        }
        let line = &mut self.line;
        match (line.mark, character) {
            (None, ' ') if !line.more => line.indent += 1,
            (None, '`' | '~') if !line.more => (line.mark, line.run) = (Some(character), 1),
            (Some(mark), _) if mark == character && !line.more => line.run += 1,
            _ => {
                line.more |= !character.is_whitespace();
                line.inline |= line.mark == Some('`') && character == '`';
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_open_and_close_as_readers_see_them() {
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
            assert_eq!(Fences::default().inside_after(text), inside, "{text:?}");
            let mut fences = Fences::default();
            text.chars().for_each(|c| fences.feed(&c.to_string()));
            assert_eq!(fences.inside.is_some(), inside, "{text:?}");
        }
    }
}
