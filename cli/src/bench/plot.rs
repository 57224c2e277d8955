//! A plot of results: time and bus bandwidth over size, with a line for each library. All axes are
//! logarithmic.

use super::Row;
use std::fmt::Write;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 360.0;
/// Space for the labels of the axes.
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 64.0;
const TOP: f64 = 50.0;
/// The space between the panels.
const GAP: f64 = 90.0;
/// The legend below the panels: names in a line, width of a name and height of a line.
const NAMES: usize = 6;
const NAME: f64 = 210.0;
const LINE: f64 = 20.0;

/// Colours that colour-blind readers can distinguish, too. Ours comes first.
const COLOURS: [&str; 6] = ["#d1495b", "#00798c", "#edae49", "#30638e", "#7b5ea7", "#66a182"];

/// The colour of the limit, which is no library.
const LIMIT_COLOUR: &str = "#888888";

/// One of the two panels.
struct Panel {
    title: &'static str,
    left: f64,
    unit: &'static str,
    /// The axes of bytes and of values.
    x: Axis,
    y: Axis,
}

/// Values from `low` to `high`, both powers of `base`.
#[derive(Clone, Copy)]
struct Axis {
    base: f64,
    low: f64,
    high: f64,
}

impl Axis {
    /// Returns the axis between the powers of `base` around all positive values; around 1 if there
    /// are none.
    fn around(base: f64, values: impl Iterator<Item = f64> + Clone) -> Axis {
        let values = values.filter(|value| *value > 0.0);
        let least = values.clone().fold(f64::INFINITY, f64::min);
        let greatest = values.fold(0.0, f64::max);
        let (least, greatest) = if greatest > 0.0 { (least, greatest) } else { (1.0, 1.0) };
        let low = least.log(base).floor();
        Axis { base, low, high: greatest.log(base).ceil().max(low + 1.0) }
    }

    /// Returns the position of a value on the axis, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        (value.log(self.base) - self.low) / (self.high - self.low)
    }

    /// Returns powers of the base, 13 at most.
    fn ticks(&self) -> impl Iterator<Item = f64> {
        let (low, high, base) = (self.low as i32, self.high as i32, self.base);
        let step = ((high - low) as usize).div_ceil(12);
        (low..=high).step_by(step).map(move |power| base.powi(power))
    }
}

impl Panel {
    fn point(&self, bytes: f64, value: f64) -> (f64, f64) {
        (self.left + self.x.place(bytes) * WIDTH, TOP + (1.0 - self.y.place(value)) * HEIGHT)
    }

    /// Draws the frame, the title and the axes.
    fn frame(&self, svg: &mut String) {
        let (left, bottom) = (self.left, TOP + HEIGHT);
        let middle = left + WIDTH / 2.0;
        line(
            svg,
            format_args!(
                r##"<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#444"/>"##
            ),
        );
        line(
            svg,
            format_args!(
                r#"<text x="{middle}" y="{}" text-anchor="middle" font-weight="bold">{}</text>"#,
                TOP - 12.0,
                self.title
            ),
        );
        line(svg, format_args!(r#"<text x="{middle}" y="{}" text-anchor="middle">bytes</text>"#, bottom + 40.0));
        for bytes in self.x.ticks() {
            let (x, _) = self.point(bytes, 1.0);
            line(svg, format_args!(r##"<path d="M{x:.1} {TOP}V{bottom}" stroke="#ddd"/>"##));
            line(
                svg,
                format_args!(r#"<text x="{x:.1}" y="{}" text-anchor="middle">{}</text>"#, bottom + 18.0, short(bytes)),
            );
        }
        for value in self.y.ticks() {
            let (_, y) = self.point(1.0, value);
            line(svg, format_args!(r##"<path d="M{left} {y:.1}H{}" stroke="#ddd"/>"##, left + WIDTH));
            let (x, y) = (left - 6.0, y + 4.0);
            line(svg, format_args!(r#"<text x="{x}" y="{y:.1}" text-anchor="end">{value} {}</text>"#, self.unit));
        }
    }

    /// Draws a library's line.
    fn series(&self, svg: &mut String, points: &[(f64, f64)], colour: &str, dashes: &str) {
        let places: Vec<(f64, f64)> =
            points.iter().filter(|(_, value)| *value > 0.0).map(|&(bytes, value)| self.point(bytes, value)).collect();
        let path: String = places.iter().map(|(x, y)| format!("{x:.1},{y:.1} ")).collect();
        line(
            svg,
            format_args!(
                r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>"#,
                path.trim_end()
            ),
        );
        for (x, y) in places {
            line(svg, format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#));
        }
    }
}

/// Returns the plot as SVG.
pub fn plot(rows: &[Row]) -> String {
    let mut collectives: Vec<&str> = rows.iter().map(|row| row.case.collective.name()).collect();
    collectives.dedup();
    let is_one = collectives.iter().all(|name| *name == collectives[0]);
    // One line for each library, or for each collective of each library.
    let name = |row: &Row| match is_one {
        true => row.library.clone(),
        false => format!("{} {}", row.library, row.case.collective),
    };
    let mut names: Vec<String> = Vec::new();
    for name in rows.iter().filter(|row| row.figures.is_some()).map(name) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let bytes = |row: &Row| row.case.bytes().max(1) as f64;
    let time = |row: &Row| row.figures.map_or(0.0, |figures| figures.time_us_median);
    let busbw = |row: &Row| row.busbw().unwrap_or(0.0);
    let x = Axis::around(2.0, rows.iter().map(bytes));
    let second = LEFT + WIDTH + GAP;
    let panels = [
        Panel {
            title: "median time of a call",
            left: LEFT,
            unit: "µs",
            x,
            y: Axis::around(10.0, rows.iter().map(time)),
        },
        Panel { title: "bus bandwidth", left: second, unit: "GB/s", x, y: Axis::around(10.0, rows.iter().map(busbw)) },
    ];
    let (width, lines) = (second + WIDTH + 20.0, names.len().div_ceil(NAMES).max(1));
    let height = TOP + HEIGHT + BOTTOM + LINE * lines as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    if let Some(row) = rows.first() {
        let case = row.case;
        let op = if case.collective.kind().combines() { format!(", {}", case.op) } else { String::new() };
        let collective = if is_one { case.collective.name() } else { "collectives" };
        let title = format!("{collective}{op} of {}, {} ranks", case.dtype, case.ranks);
        line(
            &mut svg,
            format_args!(r#"<text x="{}" y="20" text-anchor="middle" font-size="15">{title}</text>"#, width / 2.0),
        );
    }
    panels.iter().for_each(|panel| panel.frame(&mut svg));
    for (index, series) in names.iter().enumerate() {
        let own = rows.iter().filter(|row| row.figures.is_some() && name(row) == *series);
        let (colour, dashes) = match own.clone().any(|row| row.library == "limit") {
            true => (LIMIT_COLOUR, r#" stroke-dasharray="6 4""#),
            false => (COLOURS[index % COLOURS.len()], ""),
        };
        panels[0].series(&mut svg, &own.clone().map(|row| (bytes(row), time(row))).collect::<Vec<_>>(), colour, dashes);
        panels[1].series(&mut svg, &own.map(|row| (bytes(row), busbw(row))).collect::<Vec<_>>(), colour, dashes);
        let (x, y) = (LEFT + NAME * (index % NAMES) as f64, TOP + HEIGHT + BOTTOM + LINE * (index / NAMES) as f64);
        line(&mut svg, format_args!(r#"<path d="M{x} {y}h24" stroke="{colour}" stroke-width="2"{dashes}/>"#));
        line(&mut svg, format_args!(r#"<text x="{}" y="{}">{}</text>"#, x + 30.0, y + 4.0, escaped(series)));
    }
    svg.push_str("</svg>\n");
    svg
}

fn line(svg: &mut String, element: std::fmt::Arguments<'_>) {
    writeln!(svg, "{element}").expect("text takes all that is written");
}

/// Escapes markup in a text.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Formats a size: 8, 64K, 1M.
fn short(bytes: f64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "K"), (0, "")];
    let (power, unit) = units.into_iter().find(|(power, _)| bytes >= f64::from(1u32 << power)).unwrap_or((0, ""));
    format!("{}{unit}", bytes / f64::from(1u32 << power))
}
