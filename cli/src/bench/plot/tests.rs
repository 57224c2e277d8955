//! Pictures of many libraries and collectives, and of few.

use super::{Row, plot};
use crate::bench::{
    Figures,
    case::{Case, Collective},
};
use consonance::{DType, ReduceOp};

/// Returns rows of these libraries for each collective and size.
fn rows(collectives: &[&str], libraries: &[&str], sizes: &[usize]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (at, (collective, library)) in
        collectives.iter().flat_map(|one| libraries.iter().map(move |other| (one, other))).enumerate()
    {
        let collective: Collective = collective.parse().expect("a collective");
        let (dtype, op) = (DType::F32, ReduceOp::Sum);
        let case = Case { collective, ranks: 2, count: 0, dtype, op, in_place: false, spread: 0 };
        let row = |bytes: usize| Row {
            library: (*library).to_owned(),
            version: Some("5.0.10".to_owned()),
            transport: "processes".to_owned(),
            round_trip_us: None,
            barrier: None,
            memory: "slice",
            case: case.with_bytes(bytes),
            step: None,
            figures: Some(Figures {
                time_us_median: 1.0 + bytes as f64 / 1000.0 + at as f64 / 100.0,
                time_us_mean: 9.0,
                time_us_p99: 9.0,
                cpu_seconds: 1.0,
                wrong: 0,
            }),
            is_below_limit: false,
        };
        let sizes = if collective.name() == "barrier" { &[0][..] } else { sizes };
        rows.extend(sizes.iter().map(|bytes| row(*bytes)));
    }
    rows
}

/// A text of a picture.
struct Text {
    at: (f64, f64),
    anchor: String,
    font_size: f64,
    words: String,
}

/// Returns the width and the height of a picture, and its texts.
fn texts(svg: &str) -> ((f64, f64), Vec<Text>) {
    let attribute = |tag: &str, name: &str| {
        let (_, rest) = tag.split_once(&format!(" {name}=\"")).expect("an attribute");
        rest.split('"').next().expect("a value").to_owned()
    };
    let number = |tag: &str, name: &str| attribute(tag, name).parse::<f64>().expect("a number");
    let texts = svg.split("<text").skip(1).map(|text| {
        let (tag, rest) = text.split_once('>').expect("a tag");
        Text {
            at: (number(tag, "x"), number(tag, "y")),
            anchor: attribute(tag, "text-anchor"),
            font_size: number(tag, "font-size"),
            words: rest.split("</text>").next().expect("words").trim().to_owned(),
        }
    });
    ((number(svg, "width"), number(svg, "height")), texts.collect())
}

const ALL: [&str; 14] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "all_to_all",
    "barrier",
    "gather",
    "scatter",
    "reduce",
    "send_recv",
    "all_gather_v",
    "gather_v",
    "scatter_v",
    "all_to_all_v",
];

#[test]
fn no_text_is_cut_or_over_another() {
    let path = "build:/home/somebody/consonance/target/release/consonance";
    let libraries = ["consonance", "intelmpi", "openmpi", path, "limit"];
    let doubled: Vec<usize> = (3..25).map(|power| 1 << power).collect();
    let cases =
        [(&ALL[..], &[8, 1024, 1 << 20][..]), (&ALL[..1], &[1 << 20]), (&ALL[5..6], &[0]), (&ALL[..2], &doubled)];
    for (collectives, sizes) in cases {
        for libraries in [&libraries[..], &libraries[..1]] {
            let svg =
                plot(&rows(collectives, libraries, sizes), "Intel(R) Xeon(R) Processor @ 2.10GHz, 64 cores").unwrap();
            let ((width, height), texts) = texts(&svg);
            let spans: Vec<_> = texts
                .iter()
                .map(|Text { at: (x, y), anchor, font_size, words }| {
                    let long = words.chars().count() as f64 * font_size * 0.6;
                    let left = match anchor.as_str() {
                        "start" => *x,
                        "end" => x - long,
                        _ => x - long / 2.0,
                    };
                    (left, left + long, *y, words)
                })
                .collect();
            for (index, (left, right, y, words)) in spans.iter().enumerate() {
                let is_in = *left >= 0.0 && *right <= width && *y >= 8.0 && *y <= height - 4.0;
                assert!(is_in, "{words:?} at {left} to {right}, {y} of {width}, {height}");
                for (other_left, other_right, other_y, other) in &spans[..index] {
                    let is_apart = left >= other_right || other_left >= right || (y - other_y).abs() >= 12.0;
                    assert!(is_apart, "{words:?} over {other:?}");
                }
            }
            assert_eq!(svg.contains("…"), libraries.len() > 1, "the end of the path is shown");
        }
    }
}

#[test]
fn a_call_without_data_is_beside_the_least_size() {
    let svg = plot(&rows(&["barrier", "broadcast"], &["consonance"], &[1024, 2048]), "a machine").unwrap();
    let (_, texts) = texts(&svg);
    let at =
        |words: &str| texts.iter().find(|text| text.words == words).unwrap_or_else(|| panic!("{words}: {svg}")).at.0;
    let (nothing, least, next) = (at("0 B"), at("1 KiB"), at("2 KiB"));
    assert!((least - nothing - (next - least)).abs() <= 1.0, "{nothing} {least} {next}");
}
