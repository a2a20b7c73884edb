//! The figures of all loads as plots.

use std::path::Path;

use plotters::prelude::*;

use crate::head::{FONT, GREY, head};
use crate::sample::{Figure, Load};
use crate::server::Result;
use crate::store::read;

const COLOURS: [RGBColor; 3] = [RGBColor(42, 127, 232), RGBColor(226, 116, 0), RGBColor(26, 158, 92)];
const SIZE: (u32, u32) = (760, 320);

/// One plot, and the figure of a sample that it shows.
struct Plot {
    file: &'static str,
    title: &'static str,
    up: &'static str,
    /// How much wider a line is than the one above it, so that lines that coincide are all visible.
    wider: u32,
    of: Figure,
}

const PLOTS: [Plot; 3] = [
    Plot {
        file: "load-memory.svg",
        title: "Memory of the client under a load that lasts",
        up: "MiB",
        wider: 0,
        of: |one| one.client_bytes as f64 / 1048576.0,
    },
    Plot {
        file: "load-processor.svg",
        title: "Processor time of the client under a load that lasts",
        up: "% of a core",
        wider: 0,
        of: |one| one.client_share * 100.0,
    },
    Plot {
        file: "load-connections.svg",
        title: "Connections of the client under a load that lasts",
        up: "connections",
        wider: 2,
        of: |one| one.connections as f64,
    },
];

pub(crate) fn draw(results: &Path, folder: &Path) -> Result<()> {
    let mut loads = Vec::new();
    for (_, load) in read(results)? {
        loads.push(serde_json::from_value::<Load>(load)?);
    }
    PLOTS.iter().try_for_each(|plot| draw_one(&folder.join(plot.file), plot, &loads))
}

fn draw_one(file: &Path, plot: &Plot, loads: &[Load]) -> Result<()> {
    let samples = || loads.iter().flat_map(|load| &load.samples);
    let longest = samples().map(|one| one.seconds).fold(1.0, f64::max);
    let highest = samples().map(plot.of).fold(1.0, f64::max) * 1.1;
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    let names: Vec<_> = loads.iter().map(|load| load.what.as_str()).zip(COLOURS).collect();
    let below = head(&root, plot.title, &names)?;
    let mut chart = ChartBuilder::on(&below)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..longest, 0.0..highest)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GREY.mix(0.3))
        .light_line_style(TRANSPARENT)
        .axis_style(GREY)
        .label_style(FONT.into_font().color(&GREY))
        // There are no fractions of a connection.
        .y_labels((highest as usize + 1).min(11))
        .x_desc("seconds")
        .y_desc(plot.up)
        .y_label_formatter(&|value| format!("{value:.1}").trim_end_matches(".0").to_owned())
        .x_label_formatter(&|value| format!("{value:.0}"))
        .draw()?;
    let mut width = 2 + plot.wider * loads.len() as u32;
    for (load, colour) in loads.iter().zip(COLOURS) {
        width -= plot.wider;
        let points = load.samples.iter().map(|one| (one.seconds, (plot.of)(one)));
        chart.draw_series(LineSeries::new(points, colour.stroke_width(width)))?;
    }
    Ok(root.present()?)
}
