//! Tables for people.

use comfy_table::{
    CellAlignment, ContentArrangement, ContentLineStyle, LineStyle, Table, TableStyle,
};

/// A table without a frame.
pub fn plain_table() -> Table {
    let mut table = Table::new();
    let line = ContentLineStyle::none().junction(' ');
    let style = TableStyle::new()
        .header_lines(line)
        .header_separator(LineStyle::none().fill('─').junction('─'))
        .content_lines(line);
    table.load_style(style).set_content_arrangement(ContentArrangement::Disabled);
    table
}

/// Aligns all columns except the first to the right.
pub fn align_right(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}
