//! Text in columns.

/// Formats rows as lines with aligned columns.
pub(super) fn align_columns<R: AsRef<[String]>>(rows: &[R]) -> String {
    let widest = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.as_ref().get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..widest).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.as_ref().iter().zip(&widths);
        let line: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        out.push_str(line.join("  ").trim_end());
        out.push('\n');
    }
    out
}
