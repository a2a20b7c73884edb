//! The plots: SVG without a background, in colours that stand out from light and from dark.

use std::path::Path;

use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::server::Result;

const GREY: RGBColor = RGBColor(128, 128, 128);
const COLOURS: [RGBColor; 4] = [GREY, RGBColor(42, 127, 232), RGBColor(226, 116, 0), RGBColor(26, 158, 92)];
const SIZE: (u32, u32) = (760, 340);
/// The height of a bar's row.
const ROW: u32 = 44;
const FONT: (&str, i32) = ("sans-serif", 14);

/// A line with its name.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// The labels of the axes.
pub(crate) struct Axes<'a> {
    pub(crate) across: &'a str,
    pub(crate) up: &'a str,
}

/// A figure with its ends, and the limit that it should not exceed.
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
    pub(crate) limit: Option<f64>,
    /// Drawn in grey.
    pub(crate) aside: bool,
}

impl Bar {
    fn colour(&self) -> RGBColor {
        let is_missed = self.limit.is_some_and(|limit| self.median > limit);
        COLOURS[if is_missed { 2 } else { usize::from(!self.aside) }]
    }
}

/// Times over percentiles, the times on a logarithmic scale.
pub(crate) fn percentiles(file: &Path, axes: &Axes, lines: &[Line]) -> Result<()> {
    let times = || lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    // Whole decades: their ends are what gets a label.
    let decade = |time: f64, to: fn(f64) -> f64| 10_f64.powf(to(time.log10()));
    let low = decade(times().fold(f64::MAX, f64::min), f64::floor);
    let high = decade(times().fold(1.0, f64::max), f64::ceil);
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    draw(&root, (0.0..100.0, (low..high).log_scale()), axes, lines)
}

/// Counts over numbers, the numbers on a logarithmic scale.
pub(crate) fn counts(file: &Path, axes: &Axes, lines: &[Line], highest: f64) -> Result<()> {
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    draw(&root, ((8.0..1_250.0).log_scale(), 0.0..highest), axes, lines)
}

/// Times over powers of ten, both on logarithmic scales.
pub(crate) fn powers(file: &Path, axes: &Axes, lines: &[Line]) -> Result<()> {
    let (across, up) = (ends(lines, |point| point.0), ends(lines, |point| point.1));
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    let range = |(low, high): (f64, f64)| 10_f64.powf(low.log10().floor())..10_f64.powf(high.log10().ceil());
    // The names of the lines stand above them.
    let up = (up.0, up.1 * 10.0);
    draw(&root, ((across.0 * 0.8..across.1 * 1.25).log_scale(), range(up).log_scale()), axes, lines)
}

/// Times over numbers.
pub(crate) fn numbers(file: &Path, axes: &Axes, lines: &[Line]) -> Result<()> {
    let (across, up) = (ends(lines, |point| point.0), ends(lines, |point| point.1));
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    draw(&root, (across.0 - 0.2..across.1 + 0.2, 0.0..up.1 * 1.4), axes, lines)
}

fn ends(lines: &[Line], of: fn(&(f64, f64)) -> f64) -> (f64, f64) {
    let all = || lines.iter().flat_map(|line| &line.points).map(of);
    (all().fold(f64::MAX, f64::min), all().fold(f64::MIN, f64::max))
}

fn draw<X, Y>(
    root: &DrawingArea<SVGBackend, plotters::coord::Shift>,
    (across, up): (X, Y),
    axes: &Axes,
    lines: &[Line],
) -> Result<()>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
    X::CoordDescType: Ranged<ValueType = f64>,
    Y::CoordDescType: Ranged<ValueType = f64>,
{
    let text = FONT.into_font().color(&GREY);
    let mut chart = ChartBuilder::on(root)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(across, up)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GREY.mix(0.3))
        .light_line_style(TRANSPARENT)
        .axis_style(GREY)
        .label_style(text.clone())
        .x_desc(axes.across)
        .y_desc(axes.up)
        .y_label_formatter(&|value| short(*value))
        .x_label_formatter(&|value| short(*value))
        .draw()?;
    for (line, colour) in lines.iter().zip(COLOURS) {
        let series = LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)).point_size(0);
        let key = move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(3));
        chart.draw_series(series)?.label(line.name.as_str()).legend(key);
    }
    chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).label_font(text).draw()?;
    Ok(root.present()?)
}

/// Ratios: a dot for the median, a line from the lowest to the highest round, a mark at the limit.
pub(crate) fn ratios(file: &Path, bars: &[Bar]) -> Result<()> {
    let longest =
        bars.iter().map(|bar| bar.high.max(bar.limit.unwrap_or_default())).fold(1.0, f64::max) * 1.05;
    let across = Across { range: 0.0..longest, scaled: |ratio| ratio, label: short };
    draw_bars(file, bars, "times the floor; | is the target", &across)
}

/// The same on a logarithmic scale, whose labels are powers of two.
pub(crate) fn factors(file: &Path, bars: &[Bar], label: &str) -> Result<()> {
    let low = bars.iter().map(|bar| bar.low).fold(1.0, f64::min).log2();
    let high = bars.iter().map(|bar| bar.high).fold(1.0, f64::max).log2();
    let across = Across {
        range: low - 0.2..high + 0.2,
        scaled: f64::log2,
        label: |at| {
            let ratio = at.exp2();
            let decimals = if ratio < 0.1 { 3 } else { 2 };
            let digits = format!("{ratio:.decimals$}");
            digits.trim_end_matches('0').trim_end_matches('.').to_owned()
        },
    };
    draw_bars(file, bars, label, &across)
}

/// Where a ratio is drawn, and how a place is called.
struct Across {
    range: std::ops::Range<f64>,
    scaled: fn(f64) -> f64,
    label: fn(f64) -> String,
}

fn draw_bars(file: &Path, bars: &[Bar], label: &str, across: &Across) -> Result<()> {
    let root = SVGBackend::new(file, (SIZE.0, 70 + ROW * bars.len() as u32)).into_drawing_area();
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(300)
        .build_cartesian_2d(across.range.clone(), -(bars.len() as f64) + 0.5..0.5)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .axis_style(GREY)
        .y_labels(0)
        .label_style(FONT.into_font().color(&GREY))
        .x_label_formatter(&|at| (across.label)(*at))
        .x_desc(label)
        .draw()?;
    let place = across.scaled;
    let floor = [(place(1.0), 0.5), (place(1.0), 0.5 - bars.len() as f64)];
    chart.draw_series([PathElement::new(floor, GREY.mix(0.5))])?;
    let named = FONT.into_font().color(&GREY).pos(Pos::new(HPos::Right, VPos::Center));
    for (row, bar) in bars.iter().enumerate() {
        let at = -(row as f64);
        let colour = bar.colour();
        let mark = bar.limit.map(|limit| [(place(limit), at - 0.3), (place(limit), at + 0.3)]);
        chart.draw_series(mark.map(|mark| PathElement::new(mark, GREY.stroke_width(3))))?;
        let line = [(place(bar.low), at), (place(bar.high), at)];
        chart.draw_series([PathElement::new(line, colour.stroke_width(3))])?;
        chart.draw_series([Circle::new((place(bar.median), at), 6, colour.filled())])?;
        let (_, y) = chart.backend_coord(&(across.range.start, at));
        root.draw(&Text::new(bar.name.as_str(), (300, y), named.clone()))?;
    }
    Ok(root.present()?)
}

fn short(value: f64) -> String {
    if value >= 10.0 || value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}
