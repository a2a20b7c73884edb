//! The plots.

use std::path::Path;

use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::head::{FONT, GREY, head};
use crate::server::Result;

const COLOURS: [RGBColor; 4] =
    [RGBColor(42, 127, 232), RGBColor(226, 116, 0), RGBColor(26, 158, 92), RGBColor(160, 90, 200)];
const SIZE: (u32, u32) = (760, 360);
/// The height of a bar's row.
const ROW: u32 = 24;
/// The part of the smallest median that is still shown on a logarithmic scale.
const SHOWN: f64 = 0.5;

/// A line with its name.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// What a plot shows, and the labels of its axes.
pub(crate) struct Labels<'a> {
    pub(crate) title: &'a str,
    pub(crate) across: &'a str,
    pub(crate) up: &'a str,
}

/// A figure with its lowest and highest value.
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
    /// Whether it is drawn in grey.
    pub(crate) aside: bool,
}

/// Bars that belong together, below a heading unless it is empty.
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) bars: Vec<Bar>,
}

/// Plots counts over powers of ten.
pub(crate) fn counts(file: &Path, labels: &Labels, lines: &[Line]) -> Result<()> {
    let (across, up) = (ends(lines, |point| point.0), ends(lines, |point| point.1));
    let across = (across.0 * 0.8..across.1 * 1.25).log_scale();
    draw(file, (across, 0.0..up.1 * 1.1), labels, lines)
}

/// Plots times over powers of `base`, both on logarithmic scales.
pub(crate) fn powers(file: &Path, labels: &Labels, lines: &[Line], base: f64) -> Result<()> {
    let (across, up) = (ends(lines, |point| point.0), ends(lines, |point| point.1));
    // Whole decades, because their ends get the labels.
    let up = 10_f64.powf(up.0.log10().floor())..10_f64.powf(up.1.log10().ceil());
    let across = (across.0 * 0.8..across.1 * 1.25).log_scale().base(base);
    draw(file, (across, up.log_scale()), labels, lines)
}

/// Plots times over numbers.
pub(crate) fn numbers(file: &Path, labels: &Labels, lines: &[Line]) -> Result<()> {
    let (across, up) = (ends(lines, |point| point.0), ends(lines, |point| point.1));
    draw(file, (across.0 - 0.2..across.1 + 0.2, 0.0..up.1 * 1.1), labels, lines)
}

fn ends(lines: &[Line], of: fn(&(f64, f64)) -> f64) -> (f64, f64) {
    let all = || lines.iter().flat_map(|line| &line.points).map(of);
    (all().fold(f64::MAX, f64::min), all().fold(f64::MIN, f64::max))
}

fn draw<X, Y>(file: &Path, (across, up): (X, Y), labels: &Labels, lines: &[Line]) -> Result<()>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
    X::CoordDescType: Ranged<ValueType = f64>,
    Y::CoordDescType: Ranged<ValueType = f64>,
{
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    let names: Vec<_> = lines.iter().map(|line| line.name.as_str()).zip(COLOURS).collect();
    let below = head(&root, labels.title, &names)?;
    let mut chart = ChartBuilder::on(&below)
        .margin(12)
        .margin_right(28)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(across, up)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GREY.mix(0.3))
        .light_line_style(TRANSPARENT)
        .axis_style(GREY)
        .label_style(FONT.into_font().color(&GREY))
        .x_desc(labels.across)
        .y_desc(labels.up)
        .y_label_formatter(&|value| short(*value))
        .x_label_formatter(&|value| short(*value))
        .draw()?;
    for (line, colour) in lines.iter().zip(COLOURS) {
        let points = line.points.iter().copied();
        chart.draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(3))?;
    }
    Ok(root.present()?)
}

/// Plots figures beside 1, which is the floor: a dot for the median, and a line from the lowest to the highest round.
pub(crate) fn ratios(file: &Path, title: &str, across: &str, groups: &[Group]) -> Result<()> {
    let longest = bars(groups).map(|bar| bar.high).fold(1.0, f64::max) * 1.05;
    let scale = Scale { range: 0.0..longest, floor: 1.0, scaled: |ratio| ratio, label: short };
    draw_bars(file, title, across, groups, &scale)
}

/// Plots figures beside the floor on a logarithmic scale, whose labels are powers of two.
pub(crate) fn factors(file: &Path, title: &str, across: &str, groups: &[Group]) -> Result<()> {
    // A single round in which almost nothing was done would leave no room for all others.
    let least = bars(groups).map(|bar| bar.median).fold(1.0, f64::min) * SHOWN;
    let low = bars(groups).map(|bar| bar.low).fold(1.0, f64::min).max(least).log2();
    let high = bars(groups).map(|bar| bar.high).fold(1.0, f64::max).log2();
    let label = |at: f64| match at {
        whole if whole.fract() != 0.0 => format!("{:.2}", whole.exp2()),
        below if below < 0.0 => format!("1/{:.0}", (-below).exp2()),
        above => format!("{:.0}", above.exp2()),
    };
    let scale = Scale { range: low - 0.2..high + 0.2, floor: 1.0, scaled: f64::log2, label };
    draw_bars(file, title, across, groups, &scale)
}

/// Plots times: a dot for the median, and a line up to the 99th percentile. The first one is the floor.
pub(crate) fn times(file: &Path, title: &str, across: &str, bars: Vec<Bar>) -> Result<()> {
    let longest = bars.iter().map(|bar| bar.high).fold(0.0, f64::max) * 1.05;
    let floor = bars.first().map_or(0.0, |bar| bar.median);
    let scale = Scale { range: 0.0..longest, floor, scaled: |time| time, label: short };
    draw_bars(file, title, across, &[Group { name: String::new(), bars }], &scale)
}

fn bars(groups: &[Group]) -> impl Iterator<Item = &Bar> {
    groups.iter().flat_map(|group| &group.bars)
}

/// How figures become places on the axis, and how places are labelled.
struct Scale {
    range: std::ops::Range<f64>,
    /// Where the floor is drawn, as a line down the plot.
    floor: f64,
    scaled: fn(f64) -> f64,
    label: fn(f64) -> String,
}

/// The place of a name: its right end, or its left one.
const NAMES: i32 = 300;

fn draw_bars(file: &Path, title: &str, across: &str, groups: &[Group], scale: &Scale) -> Result<()> {
    let headings = groups.iter().filter(|group| !group.name.is_empty()).count();
    let rows = headings + bars(groups).count();
    let root = SVGBackend::new(file, (SIZE.0, 36 + 68 + ROW * rows as u32)).into_drawing_area();
    let below = head(&root, title, &[])?;
    let mut chart = ChartBuilder::on(&below)
        .margin(6)
        .margin_right(28)
        .x_label_area_size(48)
        .y_label_area_size(NAMES + 6)
        .build_cartesian_2d(scale.range.clone(), -(rows as f64) + 0.5..0.5)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .axis_style(GREY)
        .y_labels(0)
        .label_style(FONT.into_font().color(&GREY))
        .x_label_formatter(&|at| (scale.label)(*at))
        .x_desc(across)
        .draw()?;
    let place = |figure: f64| (scale.scaled)(figure).max(scale.range.start);
    let floor = [(place(scale.floor), 0.5), (place(scale.floor), 0.5 - rows as f64)];
    chart.draw_series([PathElement::new(floor, GREY.mix(0.5))])?;
    let named = FONT.into_font().color(&GREY);
    let (mut row, top) = (0.0, below.get_pixel_range().1.start);
    let write = |row: f64, name: &str, x: i32, ends: HPos| {
        let (_, y) = chart.backend_coord(&(scale.range.start, row));
        below.draw(&Text::new(name.to_owned(), (x, y - top), named.pos(Pos::new(ends, VPos::Center))))
    };
    let mut placed = Vec::new();
    for group in groups {
        if !group.name.is_empty() {
            write(row, &group.name, 12, HPos::Left)?;
            row -= 1.0;
        }
        for bar in &group.bars {
            write(row, &bar.name, NAMES, HPos::Right)?;
            placed.push((row, bar));
            row -= 1.0;
        }
    }
    for (row, bar) in placed {
        let colour = if bar.aside { GREY } else { COLOURS[0] };
        let line = [(place(bar.low), row), (place(bar.high), row)];
        chart.draw_series([PathElement::new(line, colour.stroke_width(3))])?;
        if (scale.scaled)(bar.low) < scale.range.start {
            // The line continues to the left of the plot.
            let (x, y) = chart.backend_coord(&(scale.range.start, row));
            let tip = [(x, y - top), (x + 9, y - top - 5), (x + 9, y - top + 5)];
            below.draw(&Polygon::new(tip, colour.filled()))?;
        }
        chart.draw_series([Circle::new((place(bar.median), row), 5, colour.filled())])?;
    }
    Ok(root.present()?)
}

fn short(value: f64) -> String {
    if value >= 10.0 || value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}
