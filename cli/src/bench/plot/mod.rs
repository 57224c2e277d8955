//! A plot of results: time and bus bandwidth over size. Each library has a colour, and each
//! collective a dash and a marker. All axes are logarithmic.

use super::{Row, fold, size};
use plotters::{
    coord::{
        Shift,
        ranged1d::{KeyPointHint, Ranged},
    },
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use std::{collections::BTreeSet, error::Error, ops::Range};

/// The width of a panel without the labels at the ends of lines.
const WIDTH: u32 = 530;
/// The least height of a panel, and the height of what is above and below its frame.
const HEIGHT: u32 = 480;
const AROUND: u32 = 100;
/// The height of a line of the title, and of a line below it.
const TITLE: u32 = 22;
const BELOW: u32 = 17;
/// The least distance between two labels.
const LABEL: i32 = 15;
/// The longest name of a library in a label. Of a longer one, such as a path, the end is shown.
const NAME: usize = 28;
/// The number of labels that have room beside each other on an axis of sizes.
const TICKS: f64 = 8.0;
/// Logarithms by which a frame is larger than the data, as a part of their range.
const INSET: f64 = 0.05;

/// Colours that colour-blind readers can distinguish, too. Ours comes first.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0xd1, 0x49, 0x5b),
    RGBColor(0x00, 0x79, 0x8c),
    RGBColor(0xd9, 0x8e, 0x04),
    RGBColor(0x30, 0x63, 0x8e),
    RGBColor(0x7b, 0x5e, 0xa7),
    RGBColor(0x4f, 0x8f, 0x6b),
];

/// The colour of the limit, which is no library.
const LIMIT: RGBColor = RGBColor(0x88, 0x88, 0x88);

const INK: RGBColor = RGBColor(0x33, 0x33, 0x33);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// The lengths of dashes and of the spaces between them, in pixels, by collective.
const DASHES: [(u32, u32); 5] = [(1, 0), (9, 4), (2, 4), (14, 5), (5, 2)];

/// One library's results of one collective.
struct Series {
    label: String,
    colour: RGBColor,
    /// The number of the collective.
    shape: usize,
    /// Bytes, and the value.
    points: Vec<(usize, f64)>,
}

/// The end of a line, with its label.
struct End {
    at: (i32, i32),
    label: String,
    colour: RGBColor,
}

/// One of the panels.
struct Panel {
    title: &'static str,
    series: Vec<Series>,
    /// Writes a value of the axis.
    unit: fn(f64) -> String,
}

/// The texts above the panels.
struct Titles {
    title: String,
    below: String,
}

/// An axis of logarithms with given ticks.
struct Axis {
    range: Range<f64>,
    ticks: Vec<f64>,
}

impl Ranged for Axis {
    type FormatOption = plotters::coord::ranged1d::NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let place = (value - self.range.start) / (self.range.end - self.range.start);
        limit.0 + (place * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Light lines would be between the ticks.
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl plotters::coord::ranged1d::ValueFormatter<f64> for Axis {
    fn format(value: &f64) -> String {
        value.to_string()
    }
}

impl Axis {
    /// Returns an axis for these values, and the ticks of `ticks` that it shows.
    fn around(values: &[f64], ticks: impl Fn(f64, f64) -> Vec<f64>) -> Axis {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let inset = if high > low { INSET * (high - low) } else { 0.5 };
        Axis { range: low - inset..high + inset, ticks: ticks(low - inset, high + inset) }
    }
}

/// Returns the plot as SVG. `machine` says where the rows were measured.
///
/// # Errors
/// What the library for plots refuses.
pub fn plot(rows: &[Row], machine: &str) -> Result<String, String> {
    let mut svg = String::new();
    draw(rows, machine, &mut svg).map_err(|error| error.to_string())?;
    Ok(svg)
}

fn draw(rows: &[Row], machine: &str, svg: &mut String) -> Result<(), Box<dyn Error>> {
    let time = |row: &Row| row.figures.map(|figures| figures.time_us_median * 1e-6);
    let panels = [
        Panel { title: "median time of a call", series: series(rows, time), unit: seconds },
        Panel { title: "bus bandwidth", series: series(rows, Row::busbw), unit: bandwidth },
    ];
    // A barrier has no bandwidth.
    let panels: Vec<Panel> = panels.into_iter().filter(|panel| !panel.series.is_empty()).collect();
    let labels = panels.iter().flat_map(Panel::labels).map(|label| width_of(&label, 12)).max().unwrap_or(0) + 20;
    let ends = panels.iter().map(|panel| panel.series.len() as u32).max().unwrap_or(0) * LABEL as u32;
    let (across, down) = ((WIDTH + labels) * panels.len().max(1) as u32, HEIGHT.max(ends + AROUND));
    let Titles { title, below } = titles(rows, machine);
    let titles = lines(&title, 18, across).into_iter().map(|line| (line, 18, INK, TITLE));
    let others = lines(&below, 13, across).into_iter().map(|line| (line, 13, RGBColor(0x66, 0x66, 0x66), BELOW));
    let lines: Vec<(String, u32, RGBColor, u32)> = titles.chain(others).collect();
    let top = lines.iter().map(|line| line.3).sum::<u32>() + 24;
    let root = SVGBackend::with_string(svg, (across, down + top)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut at = 8;
    for (line, size, colour, height) in lines {
        root.draw(&Text::new(line, (across as i32 / 2, at + height as i32 / 2), text(size, colour, HPos::Center)))?;
        at += height as i32;
    }
    let (_, below) = root.split_vertically(top);
    for (panel, area) in panels.iter().zip(below.split_evenly((1, panels.len().max(1)))) {
        panel.draw(&area, labels)?;
    }
    root.present()?;
    Ok(())
}

impl Panel {
    /// Returns the label of each line. A single point has no line whose height one could compare
    /// along the axis, so its value is in the label.
    fn labels(&self) -> impl Iterator<Item = String> {
        self.series.iter().map(|series| match series.points[..] {
            [(_, value)] => format!("{} {}", series.label, (self.unit)(value)),
            _ => series.label.clone(),
        })
    }

    /// Draws the panel, with `right` pixels for the labels.
    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>, right: u32) -> Result<(), Box<dyn Error>> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let sizes: BTreeSet<usize> = points().map(|(bytes, _)| *bytes).collect();
        // A call without data has the place of half the least size.
        let least = sizes.iter().copied().find(|bytes| *bytes > 0);
        let nothing = least.map_or(0.0, |least| (least as f64).log2() - 1.0);
        let across = |bytes: usize| if bytes == 0 { nothing } else { (bytes as f64).log2() };
        let x: Vec<f64> = points().map(|(bytes, _)| across(*bytes)).collect();
        let y: Vec<f64> = points().map(|(_, value)| value.log10()).collect();
        let x = Axis::around(&x, |low, high| spread(sizes.iter().map(|bytes| across(*bytes)), high - low));
        let y = Axis::around(&y, ticks);
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(right)
            .caption(self.title, text(15, INK, HPos::Center))
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d(x, y)?;
        let bytes_at = |x: &f64| match least {
            None => String::new(),
            Some(_) if *x == nothing => size(0),
            Some(_) => size(x.exp2().round() as usize),
        };
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style(text(12, INK, HPos::Center))
            .x_label_formatter(&bytes_at)
            .y_label_formatter(&|y| (self.unit)(10f64.powf(*y)))
            .x_desc(if least.is_some() { "bytes of the larger buffer" } else { "" })
            .draw()?;
        let mut ends = Vec::new();
        for (series, label) in self.series.iter().zip(self.labels()) {
            let points: Vec<(f64, f64)> = series.points.iter().map(|(x, y)| (across(*x), y.log10())).collect();
            let style = series.colour.stroke_width(2);
            match DASHES[series.shape % DASHES.len()] {
                (_, 0) => _ = chart.draw_series(LineSeries::new(points.iter().copied(), style))?,
                (size, space) => {
                    _ = chart.draw_series(DashedLineSeries::new(points.iter().copied(), size, space, style))?
                }
            }
            let plane = chart.plotting_area();
            for point in &points {
                marker(area, plane.map_coordinate(point), series)?;
            }
            ends.extend(points.last().map(|last| End { at: plane.map_coordinate(last), label, colour: series.colour }));
        }
        let (_, bottom) = chart.plotting_area().get_pixel_range();
        let (offset, _) = area.get_pixel_range();
        label(area, ends, (offset.start, right), bottom)
    }
}

/// Writes the label of each line beside its end, none over another.
fn label(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    mut ends: Vec<End>,
    (left, right): (i32, u32),
    frame: Range<i32>,
) -> Result<(), Box<dyn Error>> {
    ends.sort_by_key(|end| end.at.1);
    let (width, _) = area.dim_in_pixel();
    let place = left + width as i32 - right as i32 + 10;
    let top = area.get_pixel_range().1.start;
    // From the top, each at least a label below the last; then from the bottom, each in the frame.
    let mut places: Vec<i32> = Vec::new();
    for End { at: (_, y), .. } in &ends {
        places.push(places.last().map_or(*y, |last| (*y).max(last + LABEL)));
    }
    let mut most = frame.end - 4;
    for place in places.iter_mut().rev() {
        *place = (*place).min(most);
        most = *place - LABEL;
    }
    for (End { at: (x, y), label, colour }, beside) in ends.into_iter().zip(places) {
        let line = vec![(x - left + 6, y - top), (place - left - 4, beside - top)];
        area.draw(&PathElement::new(line, colour.mix(0.4)))?;
        area.draw(&Text::new(label, (place - left, beside - top), text(12, colour, HPos::Left)))?;
    }
    Ok(())
}

/// Draws a point, in the shape of its collective.
fn marker(area: &DrawingArea<SVGBackend<'_>, Shift>, at: (i32, i32), series: &Series) -> Result<(), Box<dyn Error>> {
    let (columns, rows) = area.get_pixel_range();
    let at = (at.0 - columns.start, at.1 - rows.start);
    let style = series.colour.filled();
    match series.shape % 5 {
        0 => area.draw(&Circle::new(at, 3, style))?,
        1 => area.draw(&TriangleMarker::new(at, 5, style))?,
        2 => area.draw(&Rectangle::new([(at.0 - 3, at.1 - 3), (at.0 + 3, at.1 + 3)], style))?,
        3 => area.draw(&Cross::new(at, 4, series.colour.stroke_width(2)))?,
        _ => area.draw(&Circle::new(at, 4, series.colour.stroke_width(2)))?,
    }
    Ok(())
}

/// Returns a line for each library and collective that has positive values, in the order of rows.
fn series(rows: &[Row], value: impl Fn(&Row) -> Option<f64>) -> Vec<Series> {
    let collectives = once_each(rows.iter().map(|row| row.case.collective.name()));
    let libraries = once_each(rows.iter().map(|row| row.library.as_str()).filter(|name| *name != "limit"));
    let mut all: Vec<Series> = Vec::new();
    let pairs = once_each(rows.iter().map(|row| (row.library.as_str(), row.case.collective.name())));
    for (library, collective) in pairs {
        let own = rows.iter().filter(|row| row.library == library && row.case.collective.name() == collective);
        let points = own.filter_map(|row| Some((row.case.bytes(), value(row)?)));
        let points: Vec<(usize, f64)> = points.filter(|(_, value)| *value > 0.0).collect();
        if points.is_empty() {
            continue;
        }
        let name = match library.char_indices().rev().nth(NAME) {
            Some(_) => format!("…{}", library.chars().skip(library.chars().count() - NAME).collect::<String>()),
            None => library.to_owned(),
        };
        let colour = libraries.iter().position(|name| *name == library);
        all.push(Series {
            label: if collectives.len() == 1 { name } else { format!("{name} {collective}") },
            colour: colour.map_or(LIMIT, |number| COLOURS[number % COLOURS.len()]),
            shape: collectives.iter().position(|name| *name == collective).unwrap_or(0),
            points,
        });
    }
    all
}

/// Returns the title, and the line below it.
fn titles(rows: &[Row], machine: &str) -> Titles {
    let Some(row) = rows.first() else {
        return Titles { title: "nothing was measured".to_owned(), below: machine.to_owned() };
    };
    let collectives = once_each(rows.iter().map(|row| row.case.collective.name())).join(", ");
    let combines = rows.iter().any(|row| row.case.collective.kind().combines());
    let op = if combines { format!(", {}", row.case.op) } else { String::new() };
    let has_elements = rows.iter().any(|row| row.case.bytes() > 0);
    let dtype = if has_elements { format!(" of {}", row.case.dtype) } else { String::new() };
    let ranks = if row.case.ranks == 1 { "1 rank".to_owned() } else { format!("{} ranks", row.case.ranks) };
    let versions = once_each(
        rows.iter()
            .filter(|row| row.figures.is_some())
            .filter_map(|row| row.version.as_ref().map(|version| format!("{} {version}", row.library))),
    );
    let place = if row.case.in_place { ", in place" } else { "" };
    Titles {
        title: format!("{collectives}{dtype}{op}{place}: {ranks}, {}", row.transport),
        below: [&[machine.to_owned()][..], &versions].concat().join(" · "),
    }
}

/// Returns about how many pixels wide a text is. Viewers have other fonts.
fn width_of(text: &str, size: u32) -> u32 {
    text.chars().count() as u32 * size * 3 / 5
}

/// Breaks a text of this font size into lines that fit `width` pixels.
fn lines(text: &str, size: u32, width: u32) -> Vec<String> {
    let columns = 100 * width.saturating_sub(20) / width_of("m", 100 * size).max(1);
    fold(text, columns as usize).lines().map(|line| line.trim().to_owned()).collect()
}

fn once_each<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    all.into_iter().fold(Vec::new(), |mut first, next| {
        if !first.contains(&next) {
            first.push(next);
        }
        first
    })
}

/// Returns some of these ascending places, the last one among them, so far apart that their labels
/// have room on an axis of this length.
fn spread(places: impl DoubleEndedIterator<Item = f64>, length: f64) -> Vec<f64> {
    let is_apart = |last: &f64, place: f64| last - place >= length / TICKS;
    let mut ticks: Vec<f64> = Vec::new();
    for place in places.rev() {
        if ticks.last().is_none_or(|last| is_apart(last, place)) {
            ticks.push(place);
        }
    }
    ticks
}

/// Returns the logarithms of round numbers between two logarithms: powers of ten, and if these are
/// few, their double and their fivefold, too.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let powers = low.floor() as i32..=high.ceil() as i32;
    let with = |factors: &[f64]| -> Vec<f64> {
        let all = powers.clone().flat_map(|power| factors.iter().map(move |factor| f64::from(power) + factor.log10()));
        all.filter(|tick| (low..=high).contains(tick)).collect()
    };
    [&[1.0][..], &[1.0, 2.0, 5.0], &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]]
        .into_iter()
        .map(with)
        .find(|ticks| ticks.len() >= 3)
        .unwrap_or_else(|| vec![(low + high) / 2.0])
}

/// Formats seconds: 2 µs, 100 ms.
fn seconds(value: f64) -> String {
    let (factor, unit) = match value {
        value if value < 0.9995e-6 => (1e9, "ns"),
        value if value < 0.9995e-3 => (1e6, "µs"),
        value if value < 0.9995 => (1e3, "ms"),
        _ => (1.0, "s"),
    };
    format!("{} {unit}", rounded(value * factor))
}

/// Formats GB/s.
fn bandwidth(value: f64) -> String {
    match value {
        value if value < 0.9995e-3 => format!("{} KB/s", rounded(value * 1e6)),
        value if value < 0.9995 => format!("{} MB/s", rounded(value * 1e3)),
        _ => format!("{} GB/s", rounded(value)),
    }
}

/// Rounds to three digits.
fn rounded(value: f64) -> f64 {
    let factor = 10f64.powi(2 - value.log10().floor() as i32);
    (value * factor).round() / factor
}

fn text(size: u32, colour: RGBColor, across: HPos) -> TextStyle<'static> {
    // The backend writes sizes of points as pixels of the height of a line.
    ("sans-serif", f64::from(size) * 1.24).into_font().color(&colour).pos(Pos::new(across, VPos::Center))
}

#[cfg(test)]
mod tests;
