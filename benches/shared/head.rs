//! The head of a plot: its title, and the names of its lines, above the drawing so that no line crosses them. Plots are SVG without a
//! background, in colours that stand out from light and from dark.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::server::Result;

pub(crate) const GREY: RGBColor = RGBColor(128, 128, 128);
pub(crate) const FONT: (&str, i32) = ("sans-serif", 14);
const TITLE: (&str, i32) = ("sans-serif", 17);
/// The left end of title and names.
const LEFT: i32 = 12;
/// The height of a row of names.
const ROW: i32 = 22;

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws the head, and returns the area below it.
pub(crate) fn head<'a>(root: &Area<'a>, title: &str, lines: &[(&str, RGBColor)]) -> Result<Area<'a>> {
    let (width, (mut x, mut y)) = (root.dim_in_pixel().0 as i32, (LEFT, 46));
    let mut keys = Vec::new();
    for (name, colour) in lines {
        // The widths of letters are not known here; this is more than enough.
        let needed = 26 + 7 * name.chars().count() as i32;
        if x > LEFT && x + needed > width {
            (x, y) = (LEFT, y + ROW);
        }
        keys.push((x, y, *name, *colour));
        x += needed + 18;
    }
    let (above, below) = root.split_vertically(if keys.is_empty() { 36 } else { y + 14 });
    above.draw(&Text::new(title, (LEFT, 12), TITLE.into_font().color(&GREY)))?;
    for (x, y, name, colour) in keys {
        above.draw(&PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(3)))?;
        above.draw(&Text::new(name, (x + 26, y - 7), FONT.into_font().color(&GREY)))?;
    }
    Ok(below)
}
